"""A fleet on the device: every member's networks, replay and acting policy.

Updates run in a thread of their own, since an accelerator's program keeps the thread
that calls it until its last kernel is launched. Meanwhile members act on copies of
their policies, and what they see waits on the host.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Agent, Array
from r2r2.compute import compiled as programs
from r2r2.compute import update
from r2r2.compute.compiled import CompiledUpdates, run_compiled, x64_enabled
from r2r2.compute.random_keys import member_key
from r2r2.compute.update import Data, LearnerState, RunLengths
from r2r2.compute.update_grouping import (
    UpdateCall,
    choose_stride,
    group_size,
    pad_members,
)
from r2r2.compute.update_loop import UpdateGroup, longest_stride
from r2r2.envs.spec import Spec
from r2r2.replay import buffer as ring
from r2r2.replay.buffer import Replay
from r2r2.replay.normalizer import Scales
from r2r2.replay.transfer import HostRows, fetch_rows, put_rows
from r2r2.training.rollout import HostTransition

STEPS = 32  # stored by one program at once; a transfer of each would cost more


class StackedSteps(NamedTuple):
    """Several steps, the oldest first."""

    members: NDArray[np.int_]  # [T, S], those who made each, the first repeated
    packed: NDArray[np.floating]  # [T, S, all fields of Seen side by side]
    opened: NDArray[np.int_]  # [T, S], rows that each opens in every ring


class PendingSteps:
    """A queue of steps of a fleet of `size`, each with `fields` numbers a member."""

    def __init__(self, size: int, fields: int):
        self._size, self._fields = size, fields
        self._steps: list[Any] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, members: Sequence[int], seen: HostTransition) -> None:
        """Takes in a step of `members`, whose fields are [K, ...]."""
        who = pad_members(tuple(range(len(members))), self._size)
        opened = np.zeros(self._size, dtype=int)
        opened[list(members)] = 1 + seen.ended
        packed = np.column_stack(seen)[who]
        self._steps.append((np.asarray(members)[who], packed, opened))

    def take(self) -> tuple[StackedSteps, int]:
        """The oldest steps, at most `STEPS`, and how many.

        Several are filled up to `STEPS` with others, which are not to be stored.
        """
        steps, self._steps = self._steps[:STEPS], self._steps[STEPS:]
        count = len(steps)
        steps += steps[:1] * (STEPS - count if count > 1 else 0)
        return StackedSteps(*map(np.stack, zip(*steps, strict=True))), count

    @property
    def steps(self) -> StackedSteps:
        """All of them, to be saved."""
        if self._steps:
            return StackedSteps(*map(np.stack, zip(*self._steps, strict=True)))
        none = np.zeros((0, self._size), dtype=int)
        return StackedSteps(none, np.zeros((0, self._size, self._fields)), none)

    @steps.setter
    def steps(self, steps: StackedSteps) -> None:
        self._steps = list(zip(*steps, strict=True))


class FleetSnapshot(NamedTuple):
    """What a fleet is made of besides the replay's rows."""

    learners: LearnerState
    policies: Any  # that act, [S, ...]
    newest: Array  # [S], as in `Replay`
    waiting: StackedSteps  # not in the replay yet
    opened: NDArray[np.int_]  # [S], rows ever opened in every ring, after its first
    kept: NDArray[np.bool_]  # [S], whose policy is to become its checkpoint


class Fleet:
    """Members that learn in one program, each from its own numbers.

    Args:
        agent: the algorithm.
        spec: the task's sizes.
        seeds: one per member.
        lengths: of every member.
        act_on_cpu: act on the CPU beside an accelerator, so that collecting members do
            not wait for those that train.
    """

    def __init__(
        self,
        agent: Agent,
        spec: Spec,
        seeds: Sequence[int],
        lengths: RunLengths,
        act_on_cpu: bool,
    ):
        self.size, self._agent = len(seeds), agent
        self._keys = jnp.stack([member_key(seed) for seed in seeds])
        nothing = np.zeros((self.size, spec.obs_dim))
        replay: Replay = jax.jit(partial(ring.init, lengths.rows, spec))(nothing)
        self._rows, self._newest = replay.rows, replay.newest
        here = jax.devices()[0]
        self._act_device = jax.devices("cpu")[0] if act_on_cpu else here
        self.async_updates = self._act_device != here
        self._act_keys = jax.device_put(self._keys, self._act_device)
        # A GPU takes half a minute to compile the QR of orthogonal weights.
        states = jax.jit(partial(update.first_states, agent))(
            self._act_keys, np.asarray(lengths.updates)
        )
        self._learners: LearnerState = jax.jit(partial(update.init, agent))(
            jax.device_put(states, here), replay
        )
        waits = here.platform != "cpu"  # for launches, and for branches
        self._growth = 4 if waits else 2  # fillers are then all but free
        self._stride = longest_stride(agent, self.size) if waits else 1
        self.update_multiple = max(
            agent.policy_period, self._stride
        )  # of which calls make whole ones
        fields = spec.action_dim + 2 * spec.obs_dim + len(HostTransition._fields) - 3
        self._arrivals = PendingSteps(self.size, fields)
        self.opened = np.zeros(self.size, dtype=int)
        self._kept: set[int] = set()
        self._trainer = ThreadPoolExecutor(1)
        self._flight: Future[LearnerState] | None = None
        self._compile()
        if self.async_updates:
            self.compile_ahead()
        self._policies = self._copy(agent.behavior_policy(self._learners.state))

    def _compile(self) -> None:
        agent = self._agent
        self._act = jax.jit(partial(programs.act, agent))
        self._first = jax.jit(ring.begin, donate_argnums=0)
        self._store = jax.jit(programs.store, donate_argnums=0)
        self._keep = jax.jit(partial(programs.keep, agent), donate_argnums=0)
        self._taken = jax.jit(lambda whole, who: jax.tree.map(lambda x: x[who], whole))
        self._placed = jax.jit(programs.placed, donate_argnums=0)
        members, _, obs = self._rows.obs.shape
        scales = Scales(*map(jnp.zeros, ((members, obs), (members, obs), members)))
        data = self.data(scales if agent.normalizes else None)
        self._updates = CompiledUpdates(agent, (data, self._learners, self._keys))

    def compile_ahead(self) -> CompiledUpdates:
        """Asks for every program that updates may need; they can be waited for."""
        return self._updates.ahead(self.size, self._growth, self._stride)

    @property
    def replay_rows(self) -> int:
        """Rows of every member's replay."""
        return int(self._rows.reward.shape[1])

    @property
    def ready(self) -> bool:
        """Whether every update started so far is done."""
        return self._flight is None or self._flight.done()

    def wait(self) -> None:
        """Waits for every update started so far."""
        if self._flight is not None:
            self._learners = self._flight.result()
            self._flight = None

    @property
    def learners(self) -> LearnerState:
        """All that updates change, [S, ...]; waits for every one started so far."""
        self._catch_up()
        return self._learners

    @property
    def states(self) -> Any:
        """The agents' states, [S, ...]; waits for every update started so far."""
        return self.learners.state

    def set_first_obs(self, obs: NDArray[np.floating]) -> None:
        """Stores the first observations of all members, [S, obs]."""
        self._rows = self._first(self._rows, obs)

    def act(
        self, obs: NDArray[np.floating], steps: np.ndarray, warm: np.ndarray
    ) -> NDArray[np.floating]:
        """Actions [S, action] of all members; uniform ones where warm-up goes on."""
        arguments = jax.device_put((obs, steps, warm), self._act_device)
        return np.asarray(self._act(self._policies, self._act_keys, *arguments))

    def add(self, members: Sequence[int], seen: HostTransition) -> None:
        """Stores a step of `members`, whose fields are [K, ...]."""
        self._arrivals.add(members, seen)
        if len(self._arrivals) >= STEPS and self._flight is None:
            self._catch_up()

    def checkpoint_policies(self, members: Sequence[int]) -> None:
        """The acting policies of `members` become their policy checkpoints."""
        self._kept |= set(members)

    def train(
        self, call: UpdateCall, made: np.ndarray, scales: Scales | None = None
    ) -> None:
        """Starts `call.updates` updates of `call.members`; made and scales are [S]."""
        self._catch_up()
        members, whole = call.members, len(call.members) == self.size
        who = pad_members(members, group_size(len(members), self.size, self._growth))
        keys = self._keys if whole else self._keys[who]  # which takes 2 ms
        # Fillers are put back beyond the fleet's end, which is nowhere.
        place = np.where(np.arange(len(who)) < len(members), who, self.size)
        # Left on the host: an array sent by itself takes as long as half an update.
        rest = UpdateGroup(who, keys, made[who]), place, np.asarray(call.updates)
        stride = choose_stride(call, made, self._stride)
        program = self._updates.of(len(who), whole, stride)
        given = program, x64_enabled(), self.data(scales), self._learners, rest
        self._flight = self._trainer.submit(run_compiled, *given)

    def _catch_up(self) -> None:
        """Brings to the device what had to wait for the updates under way."""
        self.wait()
        if self._kept:
            chosen = np.isin(np.arange(self.size), list(self._kept))
            self._learners = self._keep(self._learners, chosen)
            self._kept = set()
        while self._arrivals:
            (members, packed, opened), count = self._arrivals.take()
            self.opened += opened[:count].sum(axis=0)
            stores = self._rows, self._newest, self._learners.priorities
            stored = self._store(stores, members, packed, count)
            self._rows, self._newest, priorities = stored
            self._learners = self._learners._replace(priorities=priorities)

    def refresh(self, members: Sequence[int]) -> None:
        """The acting policies of `members` become the trained ones."""
        self.wait()
        trained = self._agent.behavior_policy(self._learners.state)
        if len(members) == self.size:
            self._policies = self._copy(trained)
            return
        size = group_size(len(members), self.size, self._growth)
        who = pad_members(tuple(members), size)
        there = jax.device_put(self._taken(trained, who), self._act_device)
        self._policies = self._placed(self._policies, who, there)

    def read_metrics(self) -> dict[str, NDArray[np.floating]]:
        """Means per member since the last reading, NaN where nothing was computed."""
        self.wait()
        sums = jax.device_get(self._learners.metrics)
        zero = jax.tree.map(jnp.zeros_like, self._learners.metrics)
        self._learners = self._learners._replace(metrics=zero)
        with np.errstate(invalid="ignore"):
            return {name: metric.total / metric.times for name, metric in sums.items()}

    def nonfinite_members(self) -> list[int]:
        """Members with a loss that is not finite, as of the updates that are done."""
        return np.flatnonzero(np.asarray(self._learners.alarm.raised)).tolist()

    def nonfinite_batch(self, member: int) -> HostRows:
        """The transitions in which a member's loss was first not finite."""
        index = self._learners.alarm.batch[member]
        batch = jax.jit(ring.fetch)(self._rows, jnp.asarray(member), index)
        return {name: np.asarray(x) for name, x in batch._asdict().items()}

    def fetch_rows(self, member: int, first: int) -> HostRows:
        """A member's rows from number `first` on, the newest included, on the host."""
        return fetch_rows(self._rows, member, first, int(self.opened[member]))

    def put_rows(self, member: int, first: int, rows: HostRows) -> None:
        """Puts back what `rows` gave."""
        self._rows = put_rows(self._rows, member, first, rows)

    def snapshot(self) -> FleetSnapshot:
        """All but the rows, copied to the host; no updates may be under way."""
        kept = np.isin(np.arange(self.size), list(self._kept))
        parts = self._learners, self._policies, self._newest
        learners, policies, newest = jax.tree.map(np.array, jax.device_get(parts))
        rest = self._arrivals.steps, self.opened.copy(), kept
        return FleetSnapshot(learners, policies, newest, *rest)

    def restore(self, held: FleetSnapshot) -> None:
        """Becomes what `held` gave, but for the rows."""
        self._learners = jax.tree.map(jnp.asarray, held.learners)
        self._policies = self._copy(held.policies)
        self._newest = jnp.asarray(held.newest)
        self._arrivals.steps = held.waiting
        self.opened = held.opened.copy()
        self._kept = {int(member) for member in np.flatnonzero(held.kept)}

    def data(self, scales: Scales | None) -> Data:
        """What updates read of the fleet, at these scales."""
        kind = self._rows.obs.dtype
        there = scales and Scales(*(np.array(part, kind) for part in scales))
        return Data(self._rows, there)

    def _copy(self, policies: Any) -> Any:
        # The originals are donated to the next update.
        return jax.device_put(policies, self._act_device, may_alias=False)
