"""Diagnosis of a fleet's members: latents and values on a fixed batch of rows."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Agent, Array
from r2r2.agents.losses.representation import redundancy, variance_hinge
from r2r2.compute.update import Data
from r2r2.config.common import Representation
from r2r2.config.run import DiagnosticsConfig
from r2r2.diagnostics.representation import Diagnosis, diagnose
from r2r2.replay.buffer import fetch
from r2r2.replay.normalizer import normalize_batch

Number = float | int | bool


def fixed_rows(seed: int, probe: DiagnosticsConfig) -> NDArray[np.int_]:
    """Return a member's diagnosis rows: `probe_batch` different ones of its first `probe_rows`.

    They stay the same, so that only the encoder changes between evaluations, and depend
    on the seed alone, so that a longer run continues with the same rows.
    """
    count = probe.probe_batch
    return np.random.default_rng([seed, count]).permutation(probe.probe_rows)[:count]


def existing_rows(rows: NDArray[np.int_], count: int) -> NDArray[np.int_]:
    """Return the rows, with those beyond the first `count` replaced evenly by earlier ones."""
    return rows % count


class ProbeLatents(NamedTuple):
    """A member's latents on its fixed rows."""

    z: NDArray[np.floating]  # [N, d]
    terms: dict[str, float]  # of R2R2's loss, unweighted
    inputs: int  # size of an observation

    def diagnose(self) -> tuple[Diagnosis, dict[str, Number]]:
        """Return the diagnosis and all its numbers."""
        diagnosis = diagnose(self.z, self.inputs)
        return diagnosis, diagnosis.numbers() | self.terms


class LatentProbe:
    """Diagnoses members of a fleet, each on its own fixed rows.

    One program serves every member, with the member as an argument: members reach
    their evaluations at different times, and a program for every number of members
    would have to be compiled and would hold all their batches at once.
    """

    def __init__(
        self, agent: Agent, weights: Representation, seeds: list[int], probe: DiagnosticsConfig
    ):
        self._rows = [fixed_rows(seed, probe) for seed in seeds]
        if agent.encode is None:
            raise ValueError("the agent has no encoder to diagnose")
        self._latents = jax.jit(partial(latents_and_terms, agent.encode, weights))
        self._values = jax.jit(partial(expected_values, agent))

    def latents(self, member: int, data: Data, states: Any, opened: int) -> "ProbeLatents":
        """Return a member's latents and R2R2's terms; `opened` is its newest row, from 0."""
        count = min(opened + 1, data.rows.reward.shape[1])
        rows = jnp.asarray(existing_rows(self._rows[member], count))
        z, terms = jax.device_get(self._latents(data, states, jnp.asarray(member), rows))
        return ProbeLatents(z, {k: float(x) for k, x in terms.items()}, data.rows.obs.shape[-1])

    def values(self, member: int, states: Any, obs: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the values of a member's policy for normalized obs [E, obs], [E]."""
        return np.asarray(self._values(states, jnp.asarray(member), obs))


def latents_and_terms(
    encode: Callable[[Any, Array], Array],
    weights: Representation,
    data: Data,
    states: Any,
    member: Array,
    rows: Array,
) -> tuple[Array, dict[str, Array]]:
    """Return a member's latents of its rows, [N, d], and R2R2's unweighted terms on them."""
    batch = fetch(data.rows, member, rows)
    if data.scales is not None:
        batch = normalize_batch(batch, _member_of(data.scales, member))
    z = encode(_member_of(states, member), batch.obs)
    return z, {
        "redundancy": redundancy(z, weights.zero_centred),
        "variance_hinge": variance_hinge(z, weights.variance_threshold),
    }


def expected_values(agent: Agent, states: Any, member: Array, obs: Array) -> Array:
    """Return the values of the evaluated policy's actions, [E]."""
    state = _member_of(states, member)
    return agent.value(state, obs, agent.greedy(agent.eval_policy(state), obs))


def _member_of(tree: Any, member: Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[member], tree)
