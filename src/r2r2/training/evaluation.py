"""Evaluation of policies on whole episodes without exploration, many at once."""

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Agent
from r2r2.agents.registry import build_agent, state_shapes
from r2r2.config.errors import UserError, invalid_value
from r2r2.config.fields import one_of
from r2r2.config.run import RunConfig
from r2r2.envs.make import episode_seed
from r2r2.envs.spec import Fault, Member, Spec
from r2r2.envs.vector.pool import EnvPool, TakenRows, available_cores
from r2r2.envs.vector.step_types import NO_EPISODE, EnvFactory, EnvSlot
from r2r2.envs.vector.streams import GREEDY, StreamPlan
from r2r2.replay.normalizer import Scales, initial_statistics, make_normalizer
from r2r2.storage.arrays import load_weights
from r2r2.storage.checkpoints import ARRAYS, checkpoint_numbers, file_name, read_latest
from r2r2.storage.files import is_count, read_json_object
from r2r2.storage.run_folder import RunFolder, run_status
from r2r2.training.acting import parameters
from r2r2.training.rollout import LONG_EPISODE, warn_endless
from r2r2.training.saved_config import last_step

# Evaluation environments per core, at most: more would not be faster, and a dog takes 85 MB.
SLOTS_PER_CORE = 32
# Decision steps after which an evaluation cuts off an episode of a task without a time limit.
MAX_EVAL_STEPS = 100_000
OTHER_MEMBER = "evaluate another member with --member"

Tree = TypeVar("Tree")


def member_of(tree: Tree, member: int) -> Tree:
    """Return one member's part of a tree of arrays [S, ...]."""
    part: Tree = jax.tree.map(operator.itemgetter(member), tree)
    return part


class EvalEpisode(NamedTuple):
    """A running evaluation episode."""

    member: int
    slot: int  # in the pool
    number: int  # index within the evaluation, from 0


class EvalEpisodes:
    """Tracks running evaluations through their episodes.

    Episode `index` of a purpose is seeded by (seed, purpose, index) alone, so that an
    evaluation does not depend on the other members or on how many run at once. The
    slots are in the order of `eval_slots`.
    """

    def __init__(self, members: Sequence[Member], slots: range, episodes: int, purpose: str):
        self._members, self._slots = tuple(members), slots
        self._episodes, self._purpose = episodes, purpose
        self.width = len(slots) // len(members)  # slots per member
        # Observations with which episodes began or were resumed, by slot; workers have later ones.
        self.obs: dict[int, NDArray[np.float64]] = {}
        self.running: list[EvalEpisode] = []
        self._returns: dict[int, NDArray[np.float64]] = {}  # by member
        self._lengths: dict[int, list[int]] = {}  # the same, also of finished evaluations
        self._first: dict[int, int] = {}  # by member, the index of its first episode
        self._seeds: dict[int, list[int]] = {}
        self._failures: dict[tuple[int, int], int] = {}  # by member and number

    @property
    def busy(self) -> list[int]:
        """The members under evaluation."""
        return list(self._returns)

    def begin(self, member: int, first: int) -> list[EvalEpisode]:
        """Start a member's evaluation, whose first episode has index `first`."""
        self._returns[member] = np.zeros(self._episodes)
        self._set_seeds(member, first)
        slots = self._slots[member * self.width :]
        new = [EvalEpisode(member, slots[n], n) for n in range(self.width)]
        self.running += new
        return new

    def seed(self, episode: EvalEpisode) -> int:
        """Return the seed of an episode."""
        return self._seeds[episode.member][episode.number]

    def next_seed(self, episode: EvalEpisode) -> int:
        """Return the seed of the episode that follows in the same slot."""
        number = episode.number + self.width
        return self._seeds[episode.member][number] if number < self._episodes else NO_EPISODE

    def retry_seed(self, episode: EvalEpisode) -> int:
        """Return a failed episode's seed: its own once, then others, if its start is at fault."""
        member, number = episode.member, episode.number
        times = self._failures.get((member, number), 0) + 1
        self._failures[member, number] = times
        self._reseed(member, number, times)
        return self.seed(episode)

    def has_new_start(self, episode: EvalEpisode) -> bool:
        """Return whether an episode was reseeded because its own start failed."""
        return self._failures.get((episode.member, episode.number), 0) > 1

    def _reseed(self, member: int, number: int, times: int) -> None:
        if times > 1:
            seed, index = self._members[member].seed, self._first[member] + number
            self._seeds[member][number] = episode_seed(seed, f"{self._purpose}-{times}", index)

    def in_slot(self, slot: int) -> EvalEpisode | None:
        """Return the episode that runs in a slot, if any."""
        return next((x for x in self.running if x.slot == slot), None)

    def restart(self, slot: int, obs: NDArray[np.float64]) -> None:
        """Restart a slot's episode from `obs`; its rewards so far do not count."""
        if episode := self.in_slot(slot):
            self._returns[episode.member][episode.number] = 0
            self._lengths[episode.member][episode.number] = 0
            self.obs[slot] = obs

    def cut_episodes(self, member: int) -> int:
        """Return how many episodes of a member's last evaluation were cut off."""
        return self._lengths[member].count(MAX_EVAL_STEPS)

    def record(self, taken: TakenRows) -> list[tuple[int, NDArray[np.float64]]]:
        """Record steps of running episodes; return the finished members with their returns."""
        ended = taken.terminated | taken.truncated
        for slot, reward, over in zip(taken.slots, taken.reward, ended, strict=True):
            index = self._index(slot)
            episode = self.running[index]
            self._returns[episode.member][episode.number] += reward
            lengths = self._lengths[episode.member]
            lengths[episode.number] += 1
            if lengths[episode.number] == LONG_EPISODE:
                warn_endless(self._members[episode.member].task)
            if not over:
                continue
            if (number := episode.number + self.width) < self._episodes:
                self.running[index] = episode._replace(number=number)
            else:
                del self.running[index]
        unfinished = {episode.member for episode in self.running}
        finished = [member for member in self._returns if member not in unfinished]
        return [(member, self._returns.pop(member)) for member in finished]

    def _index(self, slot: int) -> int:
        return next(n for n, episode in enumerate(self.running) if episode.slot == slot)

    def cancel(self, member: int) -> None:
        """Cancel a member's evaluation, if one is running."""
        self.running = [x for x in self.running if x.member != member]
        self._returns.pop(member, None)

    def notes(self) -> dict[str, Any]:
        """Return the running evaluations as JSON values for a checkpoint."""
        return {
            "width": self.width,
            "playing": [list(episode) for episode in self.running],
            "returns": [[m, *returns.tolist()] for m, returns in self._returns.items()],
            "lengths": [[m, *x] for m in self._returns for x in enumerate(self._lengths[m])],
            "first": [[member, self._first[member]] for member in self._returns],
            "failed": [[*key, n] for key, n in self._failures.items() if key[0] in self._returns],
        }

    def restore(self, notes: Mapping[str, Any], obs: NDArray[np.float64]) -> None:
        """Continue saved evaluations; obs has a row for each running episode."""
        self.running = [EvalEpisode(*row) for row in notes["playing"]]
        self.obs = {episode.slot: row for episode, row in zip(self.running, obs, strict=True)}
        first = dict(notes["first"])
        for member, *returns in notes["returns"]:
            self._returns[member] = np.array(returns)
            self._set_seeds(member, first[member])
        for member, number, length in notes.get("lengths", []):
            self._lengths[member][number] = length
        for member, number, times in notes.get("failed", []):
            self._failures[member, number] = times
            self._reseed(member, number, times)

    def _set_seeds(self, member: int, first: int) -> None:
        seed, indices = self._members[member].seed, range(first, first + self._episodes)
        self._first[member], self._lengths[member] = first, [0] * self._episodes
        self._failures = {x: n for x, n in self._failures.items() if x[0] != member}
        self._seeds[member] = [episode_seed(seed, self._purpose, i) for i in indices]


class EvalPolicies(NamedTuple):
    """The policies to evaluate, of all members."""

    policies: Any  # [S, ...]
    scales: Scales | None = None  # [S, ...], where observations are normalized


def eval_slots(
    members: Sequence[Member], factories: Sequence[EnvFactory], episodes: int
) -> list[EnvSlot]:
    """Return each member's slots in turn: one per episode, or as many as the cores can use."""
    width = max(1, min(episodes, SLOTS_PER_CORE * available_cores() // len(members)))
    factories = [x._replace(fallback=MAX_EVAL_STEPS * x.action_repeat) for x in factories]
    return [
        EnvSlot(member, factory, "evaluation")
        for member, factory in zip(members, factories, strict=True)
        for _ in range(width)
    ]


class Evaluator:
    """Has workers play the episodes of a fleet of `size`."""

    def __init__(self, episodes: EvalEpisodes, size: int):
        self.episodes, self._size = episodes, size
        self._policies: Any = None  # [S, ...] on the host, as of each member's evaluation
        self._scales: dict[int, Scales | None] = {}

    def begin(
        self, pool: EnvPool, members: Sequence[int], policies: EvalPolicies, first: Sequence[int]
    ) -> tuple[Fault, ...]:
        """Start evaluating members, from their episodes `first` on; return the failed slots."""
        self._set_policies(pool, members, policies)
        pairs = zip(members, first, strict=True)
        new = [episode for pair in pairs for episode in self.episodes.begin(*pair)]
        slots = [episode.slot for episode in new]
        obs, faults = pool.try_reset(slots, list(map(self.episodes.seed, new)))
        self.episodes.obs.update(zip(slots, obs, strict=True))
        return faults

    def _set_policies(self, pool: EnvPool, members: Sequence[int], policies: EvalPolicies) -> None:
        self._scales |= dict.fromkeys(members, policies.scales)
        # A copy: the originals are donated to the next update.
        copy = jax.tree.map(np.array, jax.device_get(policies.policies))
        if self._policies is None:
            self._policies = copy
        for member in members:
            pairs = zip(*map(jax.tree.leaves, (self._policies, copy)), strict=True)
            for policy, new in pairs:
                policy[member] = new[member]
            values = parameters(copy, policies.scales, member)
            pool.streams.set_policy(GREEDY, member, values)

    def play(self, pool: EnvPool) -> None:
        """Have the workers play the running episodes."""
        pool.play(
            {
                episode.slot: StreamPlan(GREEDY, 0, sys.maxsize, self.episodes.next_seed(episode))
                for episode in self.episodes.running
                if not pool.streams.has_plan(episode.slot)
            }
        )

    def policies(self) -> EvalPolicies:
        """Return the policies of the running evaluations."""
        busy = {m: scales for m in self.episodes.busy if (scales := self._scales[m])}
        policies = jax.tree.map(np.copy, self._policies)
        if not busy:
            return EvalPolicies(policies)
        merged = [np.zeros_like(part) for part in next(iter(busy.values()))]
        for member, scales in busy.items():
            for target, source in zip(merged, scales, strict=True):
                target[member] = source[member]
        return EvalPolicies(policies, Scales(*merged))

    def member_policy(self, member: int) -> tuple[Any, Scales | None]:
        """Return the policy and scales with which a member is evaluated."""
        policy = jax.tree.map(lambda leaf: np.array(leaf[member]), self._policies)
        return policy, member_of(self._scales[member], member)

    def restore(self, pool: EnvPool, policies: EvalPolicies) -> None:
        """Set the policies of saved evaluations, after their episodes are restored."""
        self._set_policies(pool, self.episodes.busy, policies)


def normalize_obs(
    scales: Scales | None, member: int, obs: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return a member's observations [..., obs] as its networks see them."""
    if scales is None:
        return obs
    mean, deviation = (np.asarray(x[member], np.float64) for x in scales[:2])
    return (obs - mean) / deviation


def play_to_end(
    evaluator: Evaluator, pool: EnvPool, recover: Callable[[Fault], None] | None = None
) -> dict[int, NDArray[np.float64]]:
    """Play all episodes and return the returns by member; raise failures without `recover`."""
    returns: dict[int, NDArray[np.float64]] = {}
    while evaluator.episodes.busy:
        evaluator.play(pool)
        taken = pool.take([episode.slot for episode in evaluator.episodes.running], wait=True)
        returns.update(evaluator.episodes.record(taken))
        for fault in taken.faults:
            if recover is None:
                raise pool.to_error(fault)
            recover(fault)
    return returns


WEIGHTS = one_of("last", "best")


class MemberWeights(NamedTuple):
    """The content of a member's weights file."""

    state: Any
    scales: Scales | None  # where observations are normalized


class SavedPolicy(NamedTuple):
    """A member's policy; that of its best evaluation is the content of a file."""

    policy: Any
    scales: Scales | None  # where observations are normalized
    step: Any = np.zeros((), dtype=int)  # decision step; None: unknown, of a stopped member
    mean: Any = np.zeros(())  # return of its best evaluation; NaN: another policy


class RunPolicies(NamedTuple):
    """Policies of some members of a run, and which ones they are."""

    agent: Agent
    policies: EvalPolicies  # [K, ...]
    steps: tuple[int | None, ...]  # as in `SavedPolicy`
    means: tuple[float, ...]
    weights: str  # last or best
    status: str  # of the run: finished, failed, running or interrupted
    description: str


def load_policies(
    folder: RunFolder, config: RunConfig, spec: Spec, members: Sequence[Member], weights: str
) -> RunPolicies:
    """Return policies of some members: the best ones, or the last of the run or its checkpoint."""
    if not WEIGHTS.is_valid(weights):
        raise invalid_value("weights", WEIGHTS.description, weights)
    agent, status = build_agent(config.agent, spec, config.utd), run_status(folder.path)
    names = [member.name for member in members]
    form, text = _weights_form(agent, spec), "final weights"
    if weights == "best":
        text = "weights of the best evaluation of each member"
        saved = {name: _read_best(folder, agent, form, name) for name in names}
    elif status == "finished":
        end = last_step(folder, config)
        saved = {name: _read_final(folder, agent, form, name, end) for name in names}
    else:
        step, weights_of = _read_checkpoint(folder, config, agent, form)
        saved = {
            name: SavedPolicy(agent.eval_policy(x.state), x.scales, at, np.nan)
            for name, (x, at) in weights_of.items()
        }
        state = "has failed" if status == "failed" else f"is {status}"
        text = f"checkpoint at step {step:,} of {config.steps:,}; the run {state}"
    policies, steps, means = _stack_policies(folder, {name: saved[name] for name in names})
    return RunPolicies(agent, policies, steps, means, weights, status, text)


def _weights_form(agent: Agent, spec: Spec) -> MemberWeights:
    """Return a member's weights with shapes and types in place of arrays."""
    zeros = np.zeros(spec.obs_dim)
    scales = Scales(zeros, zeros, np.zeros(())) if agent.normalizes else None
    return MemberWeights(state_shapes(agent), scales)


def last_weights_file(folder: RunFolder, name: str) -> Path:
    """Return the file with a member's last weights: its own, or that of the latest checkpoint."""
    if run_status(folder.path) == "finished" and (path := folder.weights(name)).exists():
        return path
    for number in checkpoint_numbers(folder.checkpoints):
        return folder.checkpoints / file_name(number, ARRAYS)
    raise UserError(f"{folder.path}: no weights of {name}; expected a finished run or a checkpoint")


def load_last_weights(
    folder: RunFolder, config: RunConfig, spec: Spec, name: str
) -> tuple[MemberWeights, int]:
    """Return a member's last weights, as in `last_weights_file`, and their decision step."""
    agent = build_agent(config.agent, spec, config.utd)
    form, path = _weights_form(agent, spec), last_weights_file(folder, name)
    if path == folder.weights(name):
        return load_weights(path, form), last_step(folder, config)
    return _read_checkpoint(folder, config, agent, form)[1][name]


def _stack_policies(
    folder: RunFolder, saved: Mapping[str, SavedPolicy]
) -> tuple[EvalPolicies, tuple[int | None, ...], tuple[float, ...]]:
    for name, (policy, *_) in saved.items():
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(policy)):
            raise UserError(f"{folder.path}: the weights of {name} are not finite; {OTHER_MEMBER}")
    policies, scales, steps, means = zip(*saved.values(), strict=True)
    stacked = EvalPolicies(
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies),
        # in NumPy, because JAX would round float64
        jax.tree.map(lambda *leaves: np.stack(leaves), *scales),
    )
    return stacked, tuple(None if x is None else int(x) for x in steps), tuple(map(float, means))


def _read_best(folder: RunFolder, agent: Agent, form: MemberWeights, name: str) -> SavedPolicy:
    if not (path := folder.best_weights(name)).exists():
        text = "written at its first evaluation, but not by earlier versions of r2r2"
        raise UserError(f"{folder.path}: no best weights of {name}; they are {text}")
    policy = jax.eval_shape(agent.eval_policy, form.state)
    return load_weights(path, SavedPolicy(policy, form.scales))


def _read_final(
    folder: RunFolder, agent: Agent, form: MemberWeights, name: str, steps: int
) -> SavedPolicy:
    path, stopped = folder.weights(name), read_json_object(folder.report(name))
    if stopped and not path.exists():
        path = folder.stopped_weights(name)
    if not path.exists():
        text = f"; it was stopped; {OTHER_MEMBER}" if stopped else ""
        raise UserError(f"{folder.path}: no final weights of {name}{text}")
    weights, step = load_weights(path, form), stopped.get("weights_of_step") if stopped else steps
    policy = agent.eval_policy(weights.state)
    return SavedPolicy(policy, weights.scales, step if is_count(step) else None, np.nan)


def _read_checkpoint(
    folder: RunFolder, config: RunConfig, agent: Agent, form: MemberWeights
) -> tuple[int, dict[str, tuple[MemberWeights, int]]]:
    """Return the step of the latest checkpoint, and weights and steps of all members in it."""
    size, scales = len(folder.members), form.scales
    states = jax.tree.map(lambda x: np.empty((size, *x.shape), x.dtype), form.state)
    like: Any = {  # arrays of a `Snapshot`, by their names
        "fleet": {"kept": np.zeros(size, dtype=bool), "learners": {"state": states}},
        "rollout": {"steps": np.zeros(size, dtype=int)},
        "statistics": initial_statistics(size, len(scales.mean)) if scales else None,
    }
    latest = read_latest(folder.checkpoints, partial(load_weights, like=like, subset=True))
    if latest is None:
        raise UserError(f"{folder.path}: no weights yet; not finished, and has no checkpoint")
    checkpoint, arrays = latest
    fleet, weights = arrays["fleet"], dict[str, tuple[MemberWeights, int]]()
    all_scales = make_normalizer(config.agent, arrays["statistics"]).scales()
    for index, name in enumerate(folder.members):
        state, scales = member_of((fleet["learners"]["state"], all_scales), index)
        if fleet["kept"][index]:  # still to be done when the checkpoint was taken
            state = agent.checkpoint_policy(state)
        step = int(arrays["rollout"]["steps"][index])
        weights[name] = MemberWeights(state, scales), step
    return checkpoint.step, weights


def deviation(returns: NDArray[np.float64]) -> float:
    """Return the unbiased standard deviation over episodes; NaN for one episode."""
    return float(returns.std(ddof=1)) if len(returns) > 1 else float("nan")
