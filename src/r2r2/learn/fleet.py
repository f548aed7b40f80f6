"""A fleet on the device: every member's networks, replay and acting policy.

Updates run in a thread of their own, since an accelerator's program keeps the thread
that calls it until its last kernel is launched. Meanwhile members act on copies of
their policies, and what they see waits on the host.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.core import Agent
from r2r2.envs.members import Spec
from r2r2.interact import replay as ring
from r2r2.interact.keys import member_key
from r2r2.interact.normalise import Scales
from r2r2.interact.replay import Replay
from r2r2.interact.rollout import Seen
from r2r2.learn import programs, update
from r2r2.learn.arrivals import STEPS, Arrivals
from r2r2.learn.bursts import Call, filled, group_size, stride_of
from r2r2.learn.held import Held
from r2r2.learn.loop import Group, longest_stride
from r2r2.learn.programs import Updates, doubles, run
from r2r2.learn.rows import HostRows, fetch_rows, put_rows
from r2r2.learn.update import Data, Learner, Lengths


class Fleet:
    """Members that learn in one program, each from its own numbers.

    Args:
        agent: the algorithm.
        spec: the task's sizes.
        seeds: one per member.
        lengths: of every member.
        apart: act on the CPU beside an accelerator, so that members that collect do
            not wait for those that train.
    """

    def __init__(
        self,
        agent: Agent,
        spec: Spec,
        seeds: Sequence[int],
        lengths: Lengths,
        apart: bool,
    ):
        self.size, self._agent = len(seeds), agent
        self._keys = jnp.stack([member_key(seed) for seed in seeds])
        nothing = np.zeros((self.size, spec.obs_dim))
        replay: Replay = jax.jit(partial(ring.init, lengths.rows, spec))(nothing)
        self._rows, self._newest = replay.rows, replay.newest
        here = jax.devices()[0]
        self._stage = jax.devices("cpu")[0] if apart else here
        self.timed = self._stage != here
        self._stage_keys = jax.device_put(self._keys, self._stage)
        # A GPU takes half a minute to compile the QR of orthogonal weights.
        states = jax.jit(partial(update.first_states, agent))(
            self._stage_keys, np.asarray(lengths.updates)
        )
        self._learners: Learner = jax.jit(partial(update.init, agent))(
            jax.device_put(states, here), replay
        )
        waits = here.platform != "cpu"  # for launches, and for branches
        self._growth = 4 if waits else 2  # fillers are then all but free
        self._stride = longest_stride(agent, self.size) if waits else 1
        self.phase = max(agent.phase, self._stride)  # of which calls make whole ones
        fields = spec.action_dim + 2 * spec.obs_dim + len(Seen._fields) - 3
        self._arrivals = Arrivals(self.size, fields)
        self.opened = np.zeros(self.size, dtype=int)
        self._kept: set[int] = set()
        self._trainer = ThreadPoolExecutor(1)
        self._flight: Future[Learner] | None = None
        self._compile()
        if self.timed:
            self.compile_ahead()
        self._policies = self._copy(agent.acting(self._learners.state))

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
        data = self.data(scales if agent.normalises else None)
        self._updates = Updates(agent, (data, self._learners, self._keys))

    def compile_ahead(self) -> Updates:
        """Asks for every program that updates may need; they can be waited for."""
        return self._updates.ahead(self.size, self._growth, self._stride)

    @property
    def ring(self) -> int:
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
    def learners(self) -> Learner:
        """All that updates change, [S, ...]; waits for every one started so far."""
        self._catch_up()
        return self._learners

    @property
    def states(self) -> Any:
        """The agents' states, [S, ...]; waits for every update started so far."""
        return self.learners.state

    def begin(self, obs: NDArray[np.floating]) -> None:
        """Stores the first observations of all members, [S, obs]."""
        self._rows = self._first(self._rows, obs)

    def act(
        self, obs: NDArray[np.floating], steps: np.ndarray, warm: np.ndarray
    ) -> NDArray[np.floating]:
        """Actions [S, action] of all members; uniform ones where warm-up goes on."""
        arguments = jax.device_put((obs, steps, warm), self._stage)
        return np.asarray(self._act(self._policies, self._stage_keys, *arguments))

    def add(self, members: Sequence[int], seen: Seen) -> None:
        """Stores a step of `members`, whose fields are [K, ...]."""
        self._arrivals.add(members, seen)
        if len(self._arrivals) >= STEPS and self._flight is None:
            self._catch_up()

    def keep(self, members: Sequence[int]) -> None:
        """The acting policies of `members` become their policy checkpoints."""
        self._kept |= set(members)

    def train(self, call: Call, made: np.ndarray, scales: Scales | None = None) -> None:
        """Starts `call.updates` updates of `call.members`; made and scales are [S]."""
        self._catch_up()
        members, whole = call.members, len(call.members) == self.size
        who = filled(members, group_size(len(members), self.size, self._growth))
        keys = self._keys if whole else self._keys[who]  # which takes 2 ms
        # Fillers are put back beyond the fleet's end, which is nowhere.
        place = np.where(np.arange(len(who)) < len(members), who, self.size)
        # Left on the host: an array sent by itself takes as long as half an update.
        rest = Group(who, keys, made[who]), place, np.asarray(call.updates)
        stride = stride_of(call, made, self._stride)
        program = self._updates.of(len(who), whole, stride)
        given = program, doubles(), self.data(scales), self._learners, rest
        self._flight = self._trainer.submit(run, *given)

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
        trained = self._agent.acting(self._learners.state)
        if len(members) == self.size:
            self._policies = self._copy(trained)
            return
        size = group_size(len(members), self.size, self._growth)
        who = filled(tuple(members), size)
        there = jax.device_put(self._taken(trained, who), self._stage)
        self._policies = self._placed(self._policies, who, there)

    def read_metrics(self) -> dict[str, NDArray[np.floating]]:
        """Means per member since the last reading, NaN where nothing was computed."""
        self.wait()
        sums = jax.device_get(self._learners.metrics)
        zero = jax.tree.map(jnp.zeros_like, self._learners.metrics)
        self._learners = self._learners._replace(metrics=zero)
        with np.errstate(invalid="ignore"):
            return {name: metric.total / metric.times for name, metric in sums.items()}

    def alarmed(self) -> list[int]:
        """Members with a loss that is not finite, as of the updates that are done."""
        return np.flatnonzero(np.asarray(self._learners.alarm.raised)).tolist()

    def batch_of(self, member: int) -> HostRows:
        """The transitions in which a member's loss was first not finite."""
        index = self._learners.alarm.batch[member]
        batch = jax.jit(ring.fetch)(self._rows, jnp.asarray(member), index)
        return {name: np.asarray(x) for name, x in batch._asdict().items()}

    def rows(self, member: int, first: int) -> HostRows:
        """A member's rows from number `first` on, the newest included, on the host."""
        return fetch_rows(self._rows, member, first, int(self.opened[member]))

    def put_rows(self, member: int, first: int, rows: HostRows) -> None:
        """Puts back what `rows` gave."""
        self._rows = put_rows(self._rows, member, first, rows)

    def held(self) -> Held:
        """All but the rows, copied to the host; no updates may be under way."""
        kept = np.isin(np.arange(self.size), list(self._kept))
        parts = self._learners, self._policies, self._newest
        learners, policies, newest = jax.tree.map(np.array, jax.device_get(parts))
        rest = self._arrivals.steps, self.opened.copy(), kept
        return Held(learners, policies, newest, *rest)

    def hold(self, held: Held) -> None:
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
        return jax.device_put(policies, self._stage, may_alias=False)
