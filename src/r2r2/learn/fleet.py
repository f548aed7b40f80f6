"""A fleet on the device: every member's networks, replay and acting policy.

All that runs there is one of a few compiled programs, called with the members it is
for; nothing waits for its result but acting, evaluation and reading metrics.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.core import Agent, Array
from r2r2.envs.members import Spec
from r2r2.interact import replay as ring
from r2r2.interact.keys import Purpose, member_key, step_key
from r2r2.interact.normalise import Scales
from r2r2.interact.replay import Experience, Priorities, Replay, Rows
from r2r2.interact.rollout import Seen
from r2r2.learn import update
from r2r2.learn.bursts import Call, filled, group_size
from r2r2.learn.targets import pick
from r2r2.learn.update import Data, Group, Learner, update_many


class Lengths(NamedTuple):
    """How far a member's run goes."""

    rows: int  # of its replay
    updates: int  # of the whole run, which learning-rate schedules span


class Fleet:
    """Members that learn in one program, each from its own numbers.

    Args:
        agent: the algorithm.
        spec: the task's sizes.
        seeds: one per member.
        lengths: of every member.
        obs: the first observations, [S, obs].
        apart: act on the CPU beside an accelerator, so that members that collect do
            not wait for those that train.
    """

    def __init__(
        self,
        agent: Agent,
        spec: Spec,
        seeds: Sequence[int],
        lengths: Lengths,
        obs: NDArray[np.floating],
        apart: bool,
    ):
        self.size = len(seeds)
        self._agent = agent
        self._keys = jnp.stack([member_key(seed) for seed in seeds])
        replay: Replay = jax.jit(partial(ring.init, lengths.rows, spec))(obs)
        self._rows, self._newest = replay.rows, replay.newest
        self._learners: Learner = jax.jit(partial(update.init, agent))(
            self._keys, replay, jnp.asarray(lengths.updates)
        )
        here = jax.devices()[0]
        self._stage = jax.devices("cpu")[0] if apart else here
        self.timed = self._stage != here
        self._stage_keys = jax.device_put(self._keys, self._stage)
        self._compile()
        self._policies = self._copy(agent.acting(self._learners.state))

    def _compile(self) -> None:
        agent = self._agent
        self._act = jax.jit(partial(_act, agent))
        self._add = jax.jit(_add, donate_argnums=(0, 1, 2))
        self._keep = jax.jit(partial(_keep, agent), donate_argnums=0)
        self._whole = jax.jit(partial(update_many, agent), donate_argnums=1)
        self._part = jax.jit(partial(_update_part, agent), donate_argnums=1)
        self._pick = jax.jit(pick)

    @property
    def ready(self) -> bool:
        """Whether every update started so far is done."""
        # Metrics are the part that storing new experience does not replace.
        return all(leaf.is_ready() for leaf in jax.tree.leaves(self._learners.metrics))

    def wait(self) -> None:
        """Waits for every update started so far."""
        for leaf in jax.tree.leaves(self._learners.metrics):
            leaf.block_until_ready()

    @property
    def states(self) -> Any:
        """The agents' states, [S, ...]."""
        return self._learners.state

    def act(
        self, obs: NDArray[np.floating], steps: np.ndarray, warm: np.ndarray
    ) -> NDArray[np.floating]:
        """Actions [S, action] of all members; uniform ones where warm-up goes on."""
        arguments = jax.device_put((obs, steps, warm), self._stage)
        return np.asarray(self._act(self._policies, self._stage_keys, *arguments))

    def add(self, members: Sequence[int], seen: Seen) -> None:
        """Stores a step of `members`, whose fields are [K, ...]."""
        who = filled(tuple(range(len(members))), self.size)
        # One array, since every transfer to an accelerator waits some 100 us.
        packed = np.column_stack(seen)[who]
        arguments = jax.device_put((np.asarray(members)[who], packed))
        self._rows, self._newest, priorities = self._add(
            self._rows, self._newest, self._learners.priorities, *arguments
        )
        self._learners = self._learners._replace(priorities=priorities)

    def keep(self, members: Sequence[int]) -> None:
        """The acting policies of `members` become their policy checkpoints."""
        self._learners = self._keep(self._learners, jnp.asarray(self._mask(members)))

    def train(self, call: Call, made: np.ndarray, scales: Scales | None = None) -> None:
        """Starts `call.updates` updates of `call.members`; made and scales are [S]."""
        members, count = call.members, jnp.asarray(call.updates)
        who = filled(members, group_size(len(members), self.size))
        group = Group(jnp.asarray(who), self._keys[who], jnp.asarray(made[who]))
        data = Data(self._rows, jax.tree.map(jnp.asarray, scales))
        if len(members) == self.size:
            self._learners = self._whole(data, self._learners, group, count)
            return
        # Fillers are put back beyond the fleet's end, which is nowhere.
        place = np.where(np.arange(len(who)) < len(members), who, self.size)
        self._learners = self._part(
            data, self._learners, group, jnp.asarray(place), count
        )

    def refresh(self, members: Sequence[int]) -> None:
        """The acting policies of `members` become the trained ones."""
        trained = self._agent.acting(self._learners.state)
        if len(members) == self.size:
            self._policies = self._copy(trained)
        else:
            there = jax.device_put((self._mask(members), trained), self._stage)
            self._policies = self._pick(*there, self._policies)

    def read_metrics(self) -> dict[str, NDArray[np.floating]]:
        """Means per member since the last reading, NaN where nothing was computed."""
        sums = jax.device_get(self._learners.metrics)
        zero = jax.tree.map(jnp.zeros_like, self._learners.metrics)
        self._learners = self._learners._replace(metrics=zero)
        with np.errstate(invalid="ignore"):
            return {name: metric.total / metric.times for name, metric in sums.items()}

    def _copy(self, policies: Any) -> Any:
        # The originals are donated to the next update.
        return jax.device_put(policies, self._stage, may_alias=False)

    def _mask(self, members: Sequence[int]) -> NDArray[np.bool_]:
        return np.isin(np.arange(self.size), list(members))


def _act(
    agent: Agent, policies: Any, keys: Array, obs: Array, steps: Array, warm: Array
) -> Array:
    def one(policy: Any, key: Array, obs: Array, step: Array, warm: Array) -> Array:
        k_noise, k_uniform = jax.random.split(step_key(key, Purpose.ACT, step))
        action = agent.explore(policy, obs, agent.draw_action(k_noise))
        uniform = jax.random.uniform(k_uniform, action.shape, minval=-1, maxval=1)
        return jnp.where(warm, action, uniform.astype(action.dtype))

    return jax.vmap(one)(policies, keys, obs, steps, warm)


def _add(
    rows: Rows, newest: Array, priorities: Priorities, member: Array, packed: Array
) -> tuple[Rows, Array, Priorities]:
    actions, obs = rows.action.shape[-1], rows.obs.shape[-1]
    ends = np.cumsum([actions, 1, 1, 1, obs])
    action, reward, terminated, ended, next_obs, first = jnp.split(packed, ends, axis=1)
    seen = Experience(
        action=action,
        reward=reward[:, 0],
        terminated=terminated[:, 0] > 0,
        ended=ended[:, 0] > 0,
        next_obs=next_obs,
        obs=first,
    )
    replay = ring.add(Replay(rows, priorities, newest), member, seen)
    return replay.rows, replay.newest, replay.priorities


def _keep(agent: Agent, learners: Learner, chosen: Array) -> Learner:
    state = pick(chosen, jax.vmap(agent.keep)(learners.state), learners.state)
    return learners._replace(state=state)


def _update_part(
    agent: Agent,
    data: Data,
    learners: Learner,
    group: Group,
    place: Array,
    count: Array,
) -> Learner:
    part = jax.tree.map(lambda x: x[group.member], learners)
    part = update_many(agent, data, part, group, count)

    def placed(whole: Array, new: Array) -> Array:
        return whole.at[place].set(new, mode="drop")

    result: Learner = jax.tree.map(placed, learners, part)
    return result
