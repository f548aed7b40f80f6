"""Episodes that workers play by themselves, and the rows that they produce.

While a policy is fixed, nobody else is needed to play an episode: its worker acts, steps
the environment and writes every step into a ring of rows in shared memory. The main
process starts each episode with a plan and takes the rows in order, so that results do
not depend on how far ahead a worker is.

Rows of a slot are numbered from 0. The worker may make those below `allowed`, which the
main process raises as it takes rows; each side writes only its own counters, and a
counter after the data that it announces (see `ipc` on other processors than x86).
"""

import math
import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.config.errors import UserError
from r2r2.envs.spec import Spec
from r2r2.envs.vector import ipc
from r2r2.policy.actor import Actor, PolicySpec, UniformActions

RING_BYTES = 2**20  # of a training slot's rows, about
NOISE_ROWS = 128  # for which noise is drawn ahead; an episode may end at any time
MANY_ROWS = NOISE_ROWS // 4  # of a slot, after which they are taken
RANDOM, EXPLORE, GREEDY = range(3)  # kinds of actions
READY, FAILED = range(2)  # states of a slot


class Actors(NamedTuple):
    """The policies that workers can run, for all members of a fleet."""

    explore: PolicySpec | None  # None: members do not explore in workers
    greedy: PolicySpec
    seeds: tuple[int, ...]  # of the members
    noise: int  # numbers that an exploring action needs


class StreamLayout(NamedTuple):
    """What the shared memory of streams is for."""

    owners: tuple[int, ...]  # the member of each of N slots
    training: int  # number of training slots, T, which are the first ones
    spec: Spec
    actors: Actors

    @property
    def ring(self) -> int:
        """Rows of a slot that may wait to be taken."""
        row = 8 * (2 * self.spec.obs_dim + self.spec.action_dim + 1)
        return max(2 * NOISE_ROWS, min(2048, RING_BYTES // row))


class StreamArrays(NamedTuple):
    """Shared memory of the streams of N slots, T of them for training, and of M members."""

    # Written by the main process.
    plan: NDArray[np.int64]  # [N], number of the plan
    kind: NDArray[np.uint8]  # [N], of the actions
    first_step: NDArray[np.int64]  # [N], decision step of the plan's first action
    allowed: NDArray[np.int64]  # [N], the worker may make the rows before this one
    version: NDArray[np.int64]  # [2, M], of the parameters
    explore: NDArray[np.uint8]  # [M, bytes of the parameters]
    greedy: NDArray[np.uint8]  # [M, bytes of the parameters]
    noise: NDArray[np.float32]  # [T, ring, numbers], of exploring actions
    # Written by the workers.
    made: NDArray[np.int64]  # [N], rows made so far
    state: NDArray[np.uint8]  # [N]
    seconds: NDArray[np.float64]  # [N, 2], spent on acting and in the environment
    reward: NDArray[np.float64]  # [N, ring]
    terminated: NDArray[np.bool_]  # [N, ring]
    truncated: NDArray[np.bool_]  # [N, ring]
    action: NDArray[np.float64]  # [T, ring, action]
    next_obs: NDArray[np.float64]  # [T, ring, obs], as in StepResult
    obs: NDArray[np.float64]  # [T, ring, obs], as in StepResult


ROWS = "reward", "terminated", "truncated", "action", "next_obs", "obs"


def _shapes(layout: StreamLayout) -> dict[str, tuple[tuple[int, ...], Any]]:
    slots, (obs, action), actors = len(layout.owners), layout.spec, layout.actors
    members, ring, training = len(actors.seeds), layout.ring, layout.training
    explore = actors.explore.nbytes if actors.explore else 0
    return {
        **dict.fromkeys(("plan", "first_step", "allowed", "made"), ((slots,), np.int64)),
        **dict.fromkeys(("kind", "state"), ((slots,), np.uint8)),
        "seconds": ((slots, 2), np.float64),
        "version": ((2, members), np.int64),
        "explore": ((members, explore), np.uint8),
        "greedy": ((members, actors.greedy.nbytes), np.uint8),
        "noise": ((training, ring, actors.noise if explore else 0), np.float32),
        "reward": ((slots, ring), np.float64),
        **dict.fromkeys(("terminated", "truncated"), ((slots, ring), np.bool_)),
        "action": ((training, ring, action), np.float64),
        **dict.fromkeys(("next_obs", "obs"), ((training, ring, obs), np.float64)),
    }


def _offsets(shapes: Mapping[str, tuple[tuple[int, ...], Any]]) -> tuple[dict[str, int], int]:
    offsets, end = dict[str, int](), 0
    for name, (shape, dtype) in shapes.items():
        offsets[name] = end
        end += math.ceil(math.prod(shape) * np.dtype(dtype).itemsize / 64) * 64
    return offsets, end


def create_streams(layout: StreamLayout) -> int:
    """Return the descriptor of new shared memory for streams."""
    file = ipc.create_file()
    os.ftruncate(file, _offsets(_shapes(layout))[1])
    return file


def map_streams(file: int, layout: StreamLayout) -> StreamArrays:
    """Map the memory behind a file descriptor; it is freed with the arrays."""
    shapes = _shapes(layout)
    offsets, size = _offsets(shapes)
    memory = mmap.mmap(file, size)
    arrays: dict[str, Any] = {
        name: np.ndarray(shape, dtype, memory, offsets[name])
        for name, (shape, dtype) in shapes.items()
    }
    return StreamArrays(**arrays)


class Player:
    """Makes rows of some slots, in the process of their environments.

    `step` makes one step of a slot with the action in `arrays`, and raises what the
    environment raises.
    """

    def __init__(
        self,
        slots: Sequence[int],
        layout: StreamLayout,
        arrays: ipc.SharedArrays,
        streams: StreamArrays,
        step: Callable[[int], None],
    ):
        self._layout, self._arrays, self._streams, self._step = layout, arrays, streams, step
        self._slots = np.array(slots, dtype=int)
        self._turns = list(slots)  # the next slot to play comes first
        self._seen = streams.plan[self._slots]
        self._seen_bytes = self._seen.tobytes()
        self._next_step: dict[int, int] = {}  # by slot that plays
        self._actors: dict[tuple[int, int], tuple[int, Actor]] = {}  # with their versions
        self._uniform: dict[int, UniformActions] = {}
        self._rows = {slot: self._row_fields(slot) for slot in slots}

    def _row_fields(self, slot: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return views of a slot's fields: the ring, and the step that is written to it."""
        names = ROWS if slot < self._layout.training else ROWS[:3]
        return [
            (getattr(self._streams, name)[slot], getattr(self._arrays, name)[slot, ...])
            for name in names
        ]

    def next_slot(self) -> int | None:
        """Return a slot that can make a row now; they take turns."""
        self._start_plans()
        if not self._next_step:
            return None
        for slot in self._turns:
            if slot in self._next_step and self._streams.made[slot] < self._streams.allowed[slot]:
                return slot
        return None

    def play(self, slot: int) -> None:
        """Make one row of a slot; after an error the slot's plan is over."""
        self._start_plans()
        streams, arrays = self._streams, self._arrays
        step, start = self._next_step.pop(slot), time.perf_counter()
        arrays.action[slot] = self._act(slot, step)
        acted = time.perf_counter()
        self._step(slot)
        end, seconds = time.perf_counter(), streams.seconds
        seconds[slot, 0] += acted - start
        seconds[slot, 1] += end - acted
        made = int(streams.made[slot])
        row = made % self._layout.ring
        for ring, value in self._rows[slot]:
            ring[row] = value
        if not (arrays.terminated[slot] or arrays.truncated[slot]):
            self._next_step[slot] = step + 1
        if len(self._turns) > 1:
            self._turns.append(self._turns.pop(self._turns.index(slot)))
        streams.made[slot] = made + 1

    def cancel(self, slot: int) -> None:
        """End a slot's plan."""
        self._start_plans()
        self._next_step.pop(slot, None)

    def _start_plans(self) -> None:
        plans = self._streams.plan.take(self._slots)
        if (seen := plans.tobytes()) == self._seen_bytes:
            return
        for slot in self._slots[plans != self._seen].tolist():
            self._next_step[slot] = int(self._streams.first_step[slot])
        self._seen, self._seen_bytes = plans, seen

    def _act(self, slot: int, step: int) -> NDArray[np.floating]:
        streams, member = self._streams, self._layout.owners[slot]
        kind = int(streams.kind[slot])
        if kind == RANDOM:
            if member not in self._uniform:
                seed, size = self._layout.actors.seeds[member], self._layout.spec.action_dim
                self._uniform[member] = UniformActions(seed, size)
            return self._uniform[member](step)
        actor, obs = self._actor(kind, member), self._arrays.obs[slot]
        if kind == GREEDY:
            return actor(obs)
        return actor(obs, streams.noise[slot, int(streams.made[slot]) % self._layout.ring])

    def _actor(self, kind: int, member: int) -> Actor:
        version = int(self._streams.version[kind - 1, member])
        known = self._actors.get((kind, member))
        if known is None or known[0] != version:
            spec, memory = _policy_memory(self._layout.actors, self._streams, kind)
            views = spec.views(memory[member])  # no copy: they do not change while it is played
            actor = Actor(spec, views) if known is None else known[1].with_parameters(views)
            known = self._actors[kind, member] = version, actor
        return known[1]


def _policy_memory(
    actors: Actors, streams: StreamArrays, kind: int
) -> tuple[PolicySpec, NDArray[np.uint8]]:
    if kind == GREEDY:
        return actors.greedy, streams.greedy
    if actors.explore is None:
        raise ValueError("these actors do not explore")
    return actors.explore, streams.explore


# Noise of rows: the decision step of the first, how many -> [rows, numbers].
NoiseSource = Callable[[int, int], NDArray[np.floating]]


class StreamPlan(NamedTuple):
    """What a slot shall play: steps of one episode."""

    kind: int
    first_step: int  # decision step of the first action
    steps: int  # at most
    seed: int  # of the episode to start when this one ends, or NO_EPISODE
    noise: NoiseSource | None = None  # for exploring actions


class StreamTable:
    """The main process's side of the streams: plans, and rows that were not taken yet."""

    def __init__(self, layout: StreamLayout, arrays: ipc.SharedArrays, streams: StreamArrays):
        self._layout, self._arrays, self._streams = layout, arrays, streams
        self._taken = [0] * len(layout.owners)
        self._plans: dict[int, tuple[StreamPlan, int]] = {}  # by slot, with their first row

    def set_policy(self, kind: int, member: int, parameters: Sequence[NDArray[Any]]) -> None:
        """Set the parameters of a member's policy; nobody may be playing it."""
        spec, memory = _policy_memory(self._layout.actors, self._streams, kind)
        spec.write(memory[member], parameters)
        self._streams.version[kind - 1, member] += 1

    def has_plan(self, slot: int) -> bool:
        """Return whether a slot plays, or has rows to be taken or a failure to be reported."""
        return slot in self._plans or self.has_row(slot) or self.has_failed(slot)

    def has_row(self, slot: int) -> bool:
        """Return whether a row of a slot can be taken."""
        return bool(self._streams.made[slot] > self._taken[slot])

    def should_take(self, slots: NDArray[np.int_]) -> bool:
        """Return whether one of the slots has ended its episode, failed, or made many rows."""
        streams, taken = self._streams, np.array([self._taken[slot] for slot in slots])
        made = streams.made[slots]
        last = slots, (made - 1) % self._layout.ring
        ended = (streams.terminated[last] | streams.truncated[last]) & (made > taken)
        many, failed = made - taken >= MANY_ROWS, streams.state[slots] == FAILED
        return bool((ended | many | failed).any())

    def has_failed(self, slot: int) -> bool:
        """Return whether a slot's environment failed after the rows that it made."""
        return bool(self._streams.state[slot] == FAILED)

    def start(self, slot: int, plan: StreamPlan) -> None:
        """Have a slot play."""
        self._plans[slot] = plan, self._taken[slot]
        self._streams.kind[slot], self._streams.first_step[slot] = plan.kind, plan.first_step
        self._streams.allowed[slot] = self._taken[slot]
        self._arrays.seed[slot] = plan.seed
        self._streams.plan[slot] += 1
        self._allow(slot)

    def _allow(self, slot: int) -> bool:
        """Allow more rows; return whether the worker had none left to make."""
        (plan, first), allowed = self._plans[slot], int(self._streams.allowed[slot])
        until = min(first + plan.steps, self._taken[slot] + self._layout.ring)
        if until <= allowed:
            return False
        if plan.noise is not None:
            until = min(until, allowed + NOISE_ROWS)
            rows = np.arange(allowed, until) % self._layout.ring
            numbers = plan.noise(plan.first_step + allowed - first, until - allowed)
            self._streams.noise[slot, rows] = numbers
        self._streams.allowed[slot] = until
        return bool(self._streams.made[slot] >= allowed)

    def take(self, slot: int, most: int = 1) -> tuple[tuple[NDArray[Any], ...], bool]:
        """Return the next rows, [K] and their fields as in `ROWS`, and whether to wake the worker.

        They are at most `most`, and of one episode.
        """
        streams, first = self._streams, self._taken[slot]
        count = min(int(streams.made[slot]) - first, most)
        names = ROWS if slot < self._layout.training else ROWS[:3]
        rows = np.arange(first, first + count) % self._layout.ring
        ended = streams.terminated[slot, rows] | streams.truncated[slot, rows]
        if (over := np.flatnonzero(ended)).size:
            rows = rows[: over[0] + 1]
        self._taken[slot] += len(rows)
        values = tuple(getattr(streams, name)[slot, rows] for name in names)
        if slot not in self._plans:  # rows from a checkpoint
            return values, False
        (plan, begin), taken = self._plans[slot], self._taken[slot]
        if over.size or taken == begin + plan.steps:
            del self._plans[slot]
            return values, False
        left = int(streams.allowed[slot]) - max(taken, int(streams.made[slot]))
        few = NOISE_ROWS if plan.noise else self._layout.ring
        return values, left <= few // 2 and self._allow(slot)

    def seconds(self) -> NDArray[np.float64]:
        """Return the seconds of each slot on acting and in its environment so far, [N, 2]."""
        return self._streams.seconds.copy()

    def clear(self, slot: int) -> None:
        """Drop a slot's plan and its rows; its worker has ended the plan, or is gone."""
        self._plans.pop(slot, None)
        self._streams.state[slot] = READY
        self._streams.allowed[slot] = self._taken[slot] = int(self._streams.made[slot])

    def rows_until(self, slot: int, made: int) -> dict[str, NDArray[Any]]:
        """Return a slot's rows before number `made` that were not taken yet."""
        rows = np.arange(self._taken[slot], made) % self._layout.ring
        names = ROWS if slot < self._layout.training else ROWS[:3]
        return {name: getattr(self._streams, name)[slot, rows] for name in names}

    def check_rows(self, slot: int, saved: Mapping[str, NDArray[Any]]) -> None:
        """Raise a UserError if arrays are not rows that `rows_until` returned."""
        like = self.rows_until(slot, self._taken[slot])
        if saved.keys() != like.keys():
            odd = min(saved.keys() ^ like.keys())
            raise UserError(f"array '{slot}/stream/{odd}' is missing or unexpected")
        for name, values in saved.items():
            expected = like[name].dtype, like[name].ndim, like[name].shape[1:]
            if (values.dtype, values.ndim, values.shape[1:]) != expected:
                form = f"{like[name].dtype}[rows{''.join(f', {n}' for n in like[name].shape[1:])}]"
                got = f"{values.dtype}{list(values.shape)}"
                raise UserError(f"array '{slot}/stream/{name}': expected {form}, got {got}")
        lengths = {len(values) for values in saved.values()}
        if len(lengths) > 1 or max(lengths) > self._layout.ring:
            raise UserError(
                f"the arrays of '{slot}/stream/' have different lengths, or too many rows"
            )

    def put_rows(self, slot: int, saved: Mapping[str, NDArray[Any]]) -> None:
        """Restore the rows that `rows_until` returned, in a slot without a plan."""
        count = len(saved["reward"])
        rows = (self._taken[slot] + np.arange(count)) % self._layout.ring
        for name, values in saved.items():
            getattr(self._streams, name)[slot, rows] = values
        self._streams.made[slot] = self._taken[slot] + count

    def set_failed(self, slot: int) -> None:
        """Restore a slot whose environment failed after the rows that it made."""
        self._streams.state[slot] = FAILED
