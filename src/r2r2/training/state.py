"""The state of a run: one object with all mutable parts, and its snapshot as arrays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Agent
from r2r2.agents.registry import build_agent
from r2r2.compute.precision import ComputeOptions
from r2r2.compute.update import RunLengths
from r2r2.config.errors import UserError
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Member
from r2r2.envs.vector.pool import EnvPool
from r2r2.replay import sum_tree
from r2r2.replay.normalizer import (
    IdentityNormalizer,
    Normalizer,
    Statistics,
    initial_statistics,
    make_normalizer,
)
from r2r2.replay.prefill import RecordedRows
from r2r2.storage.arrays import flatten_tree
from r2r2.training.eval_scheduler import EvalScheduler, SavedEvals
from r2r2.training.evaluation import EvalPolicies, SavedPolicy, member_of
from r2r2.training.fleet import Fleet, FleetOptions, FleetSnapshot, MixedData
from r2r2.training.memory import replay_rows
from r2r2.training.rollout import Rollout
from r2r2.training.run_log import Counts, RunLog
from r2r2.training.saved_config import fleet_members
from r2r2.training.schedule import Schedule
from r2r2.training.time_account import BusySeconds, TimeAccount, TimeSummary, summarize

OnMessage = Callable[[str], None]


def ignore(*_: object) -> None:
    """Ignore a message or a progress report."""


class StartedUpdates(NamedTuple):
    """Updates in flight."""

    members: list[int]
    finished: list[int]  # those of the members that have no more updates pending


@dataclass
class TrainState:
    """Everything that changes during a run, shared by the loop and its helpers."""

    config: RunConfig
    members: tuple[Member, ...]
    agent: Agent
    pool: EnvPool  # slots of the members, then those of their evaluation
    log: RunLog
    fleet: Fleet  # networks, replay and policies, on the device
    rollout: Rollout
    schedule: Schedule
    normalizer: Normalizer | IdentityNormalizer
    evals: EvalScheduler
    on_message: OnMessage
    failures: dict[int, int] = field(default_factory=dict[int, int])  # by member
    stopped: dict[int, str] = field(default_factory=dict[int, str])  # with the reason
    collapsed: set[int] = field(default_factory=set[int])  # at their last diagnosis
    # The oldest first. The fleet may already have waited for the first ones.
    updates_in_flight: list[StartedUpdates] = field(default_factory=list[StartedUpdates])
    times: TimeAccount = field(default_factory=TimeAccount)

    @property
    def updating(self) -> list[int]:
        """The members that are being updated."""
        return [member for updates in self.updates_in_flight for member in updates.members]

    @property
    def shared_env(self) -> bool:
        """Whether training and evaluation share one environment."""
        return self.evals.shared_env

    def fuses_step(self) -> bool:
        """Return whether one call can make the pending updates and the next actions."""
        if not self.fleet.fuses_steps or self.updates_in_flight or self.stopped:
            return False
        pending = self.schedule.pending.tolist()
        same = pending.count(pending[0]) == len(pending)
        return pending[0] > 0 and same and self.fleet.has_one_step

    def free_members(self) -> list[int]:
        """Return the members that have steps left and are not stopped."""
        members = np.flatnonzero(self.rollout.steps < self.config.steps)
        return [int(member) for member in members if member not in self.stopped]

    def counts(self, member: int) -> Counts:
        """Return a member's decision steps and updates."""
        return int(self.rollout.steps[member]), int(self.schedule.done[member])

    def step(self) -> int:
        """Return the least decision step of the members that are not stopped."""
        active = [m for m in range(len(self.members)) if m not in self.stopped]
        return int(self.rollout.steps[active or slice(None)].min())

    def training_done(self, member: int) -> bool:
        """Return whether a member has made its last step."""
        return bool(self.rollout.steps[member] >= self.config.steps)

    def time_summary(self) -> TimeSummary:
        """Return where the time since the start of this process's run went."""
        slots, workers = self.pool.busy_seconds()
        seconds = self.fleet.update_seconds
        busy = BusySeconds(seconds.running, seconds.compiling, slots[:, 0], slots[:, 1], workers)
        return summarize(self.times.seconds(), busy, len(self.members))

    def running_seeds(self) -> dict[int, int]:
        """Return the seed of each running episode by its slot."""
        members = [m for m in range(len(self.members)) if m not in self.stopped]
        if self.shared_env:  # the last evaluation has replaced the training episode
            members = [m for m in members if not self.training_done(m)]
        training = {member: self.rollout.seed(member) for member in members}
        return training | self.evals.running_seeds()


def make_state(
    config: RunConfig,
    pool: EnvPool,
    log: RunLog,
    shared_env: bool = False,
    on_message: OnMessage = ignore,
    data: RecordedRows | None = None,
) -> TrainState:
    """Return the state of a run before its first step; data is what `config.prefill` holds."""
    members = fleet_members(config)
    recorded = 0 if data is None else len(data.live)
    updates = config.steps * config.utd + config.prefill_only_updates
    fleet = Fleet(
        build_agent(config.agent, pool.spec, config.utd),
        pool.spec,
        [member.seed for member in members],
        RunLengths(replay_rows(config, recorded), updates),
        FleetOptions(
            act_on_cpu=config.agent.policy_checkpoints,
            compute=ComputeOptions(config.compute.fast, config.precision),
            utd=config.utd,
            fuse_steps=not config.overlap_acting,
        ),
        MixedData(data, config.mix) if data is not None and config.mix else None,
    )
    statistics = initial_statistics(len(members), pool.spec.obs_dim)
    return TrainState(
        config=config,
        members=members,
        agent=fleet.agent,
        pool=pool,
        log=log,
        fleet=fleet,
        rollout=Rollout(members, pool.spec),
        schedule=Schedule(config, len(members)),
        normalizer=make_normalizer(config.agent, statistics),
        evals=EvalScheduler(config, members, pool, log, shared_env),
        on_message=on_message,
    )


class Snapshot(NamedTuple):
    """All arrays of a run except replay rows and environment states."""

    fleet: FleetSnapshot
    rollout: dict[str, NDArray[Any]]
    schedule: dict[str, NDArray[Any]]
    statistics: Statistics | None
    evaluated: list[EvalPolicies]
    obs: NDArray[np.float64]  # of the running evaluations
    best: dict[int, SavedPolicy]  # by member


# Arrays whose first axis has another length in every snapshot.
VARIABLE = ("fleet/waiting/", "obs")
# Arrays of counts, which are never negative.
COUNTS = (
    *("fleet/newest", "fleet/waiting/members", "fleet/waiting/opened", "fleet/opened"),
    *("rollout/steps", "rollout/episode", "rollout/length"),
    *("schedule/made", "schedule/owed", "schedule/forgiven"),
)
LEVELS = "fleet/learners/priorities/tree/levels/"


def take_snapshot(state: TrainState, evals: SavedEvals) -> Snapshot:
    """Copy a run's arrays to the host; no updates may be in flight."""
    statistics = None
    if isinstance(state.normalizer, Normalizer):
        statistics = jax.tree.map(np.copy, state.normalizer.statistics)
    return Snapshot(
        fleet=state.fleet.snapshot(),
        rollout={name: x.copy() for name, x in state.rollout.arrays().items()},
        schedule={name: x.copy() for name, x in state.schedule.arrays().items()},
        statistics=statistics,
        evaluated=evals.policies,
        obs=evals.obs,
        best=evals.best,
    )


def snapshot_like(state: TrainState, evaluations: int, best: Sequence[int]) -> Snapshot:
    """Return a snapshot of this run's form, with policies of evaluations and of `best` members."""
    fresh = take_snapshot(state, SavedEvals([], np.zeros((0, state.pool.spec.obs_dim)), {}, {}))
    shapes = jax.eval_shape(state.agent.eval_policy, fresh.fleet.learners.state)
    policies = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    evaluated = EvalPolicies(policies, state.normalizer.scales())
    forms = {member: SavedPolicy(*member_of(evaluated, member)) for member in best}
    return fresh._replace(evaluated=[evaluated] * evaluations, best=forms)


def restore_snapshot(state: TrainState, snapshot: Snapshot) -> None:
    """Restore a run from the arrays of a snapshot, except those of evaluations."""
    state.fleet.restore(snapshot.fleet)
    state.rollout.restore(snapshot.rollout)
    state.schedule.restore(snapshot.schedule)
    if isinstance(state.normalizer, Normalizer) and snapshot.statistics is not None:
        state.normalizer.statistics = snapshot.statistics


def to_arrays(snapshot: Snapshot) -> dict[str, NDArray[Any]]:
    """Return a snapshot's arrays by name."""
    names, leaves = flatten_tree(snapshot)
    return {name: np.asarray(leaf) for name, leaf in zip(names, leaves, strict=True)}


def from_arrays(saved: Mapping[str, NDArray[Any]], like: Snapshot) -> Snapshot:
    """Return the snapshot whose arrays were saved, in the form of another one."""
    names, leaves = flatten_tree(like)
    if odd := sorted(set(names) ^ set(saved)):
        problem = "missing" if odd[0] in names else "unexpected"
        raise UserError(f"{problem} array '{odd[0]}'; the checkpoint is of another run")
    for name, leaf in zip(names, leaves, strict=True):
        _check_array(name, saved[name], np.asarray(leaf))
    if len({len(saved[name]) for name in names if name.startswith(VARIABLE[0])}) > 1:
        raise UserError(f"the arrays of '{VARIABLE[0]}' have different lengths")
    tree: Snapshot = jax.tree.unflatten(jax.tree.structure(like), [saved[name] for name in names])
    return tree


def _check_array(name: str, array: NDArray[Any], like: NDArray[Any]) -> None:
    skip = 1 if name.startswith(VARIABLE) else 0
    got, expected = ((x.dtype, x.ndim, x.shape[skip:]) for x in (array, like))
    if got != expected:
        raise UserError(
            f"array '{name}': expected {like.dtype}{list(like.shape)}, got "
            f"{array.dtype}{list(array.shape)}"
        )
    if name.startswith(COUNTS) and (array.astype(float) < 0).any():
        raise UserError(f"array '{name}': expected counts >= 0, got a negative one")


def grow_replay(
    saved: Mapping[str, NDArray[Any]], rows: int, new_rows: int
) -> dict[str, NDArray[Any]]:
    """Return arrays for replay buffers with more rows, none of which is full yet."""
    names = sorted(name for name in saved if name.startswith(LEVELS))
    if not names or (first := saved[names[0]]).ndim != 3 or not first.size:
        raise UserError(f"missing array '{LEVELS}0'")
    priorities = first.reshape(len(first), -1)[:, :rows]
    if (length := priorities.shape[1]) < rows:
        raise UserError(f"array '{LEVELS}0': expected {rows} rows, got {length}")
    grown = np.zeros((len(priorities), new_rows), priorities.dtype)
    grown[:, :rows] = priorities
    rest = {name: array for name, array in saved.items() if name not in names}
    return rest | {f"{LEVELS}{n}": level for n, level in enumerate(sum_tree.build_levels(grown))}
