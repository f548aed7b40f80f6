"""Looking into the members of a fleet: their latents and values, on fixed rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Agent, Array
from r2r2.agents.losses.representation import redundancy, variance_hinge
from r2r2.compute.update import Data
from r2r2.config.common import Representation
from r2r2.diagnostics.representation import Diagnosis, diagnose
from r2r2.replay.buffer import fetch
from r2r2.replay.normalizer import normalize_batch

BATCH = 4096  # latents looked at
# Rows they are taken from, the run's first: far enough to reach past TD7's warm-up of
# random actions, and there for good after 5 of 50 evaluations.
SPAN = 40_960

Number = float | int | bool


def fixed_rows(seed: int, count: int) -> NDArray[np.int_]:
    """Rows of a member's batch: `count` different ones of its first `SPAN`.

    Chosen once, so that what changes from one evaluation to the next is the encoder;
    by the seed alone, so that a run that is made longer goes on with the same.

    Example:
        >>> len(set(fixed_rows(seed=0, count=5).tolist()))
        5
    """
    return np.random.default_rng([seed, count]).permutation(SPAN)[:count]


def present(rows: NDArray[np.int_], there: int) -> NDArray[np.int_]:
    """The rows with those that do not exist replaced by earlier ones.

    A batch is spread evenly over the rows that are `there`, with repetitions if it
    must; once all of it exists it stays as it is.

    Example:
        >>> present(np.array([2, 7, 9]), there=6).tolist()
        [2, 1, 3]
    """
    return rows % there


class LatentProbe:
    """Diagnoses members of a fleet, each on its own fixed rows.

    One program serves every member, with the member as an argument: members come to
    their evaluations at different times, and a program for every number of them would
    have to be compiled, and hold all their batches at once.

    Args:
        agent: the algorithm, which has an encoder.
        weights: what its own loss means by redundancy and the hinge.
        seeds: one per member.
        count: rows of a batch.
    """

    def __init__(
        self,
        agent: Agent,
        weights: Representation,
        seeds: list[int],
        count: int = BATCH,
    ):
        self._rows = [fixed_rows(seed, count) for seed in seeds]
        if agent.encode is None:
            raise ValueError("an agent without an encoder has nothing to look into")
        self._look = jax.jit(partial(look, agent.encode, weights))
        self._expect = jax.jit(partial(expected, agent))

    def diagnose(
        self, member: int, data: Data, states: Any, opened: int
    ) -> tuple[Diagnosis, dict[str, Number]]:
        """A member's diagnosis, and all its numbers by name.

        Args:
            member: whom.
            data: the whole fleet's.
            states: the agents', [S, ...].
            opened: the newest of the member's rows, counted from its first.
        """
        there = min(opened + 1, data.rows.reward.shape[1])
        rows = jnp.asarray(present(self._rows[member], there))
        z, terms = jax.device_get(self._look(data, states, jnp.asarray(member), rows))
        found = diagnose(z, inputs=data.rows.obs.shape[-1])
        return found, found.numbers() | {k: float(x) for k, x in terms.items()}

    def values(
        self, member: int, states: Any, obs: NDArray[np.floating]
    ) -> NDArray[np.floating]:
        """What a member's critics expect of its evaluated policy, [E].

        Args:
            member: whom.
            states: the agents', [S, ...].
            obs: as the member sees them, [E, obs].
        """
        return np.asarray(self._expect(states, jnp.asarray(member), obs))


def look(
    latents: Callable[[Any, Array], Array],
    weights: Representation,
    data: Data,
    states: Any,
    member: Array,
    rows: Array,
) -> tuple[Array, dict[str, Array]]:
    """A member's latents of its rows, [N, d], and R2R2's terms of them.

    The terms are the agent's own, but unweighted: they are there at a weight of 0 too.
    """
    batch = fetch(data.rows, member, rows)
    if data.scales is not None:
        batch = normalize_batch(batch, _of(member, data.scales))
    z = latents(_of(member, states), batch.obs)
    return z, {
        "redundancy": redundancy(z, weights.zero_centred),
        "variance_hinge": variance_hinge(z, weights.variance_threshold),
    }


def expected(agent: Agent, states: Any, member: Array, obs: Array) -> Array:
    """The values of the evaluated policy's own actions, [E]."""
    state = _of(member, states)
    return agent.value(state, obs, agent.greedy(agent.eval_policy(state), obs))


def _of(member: Array, tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[member], tree)
