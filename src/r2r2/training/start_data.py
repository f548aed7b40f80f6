"""What a run starts from besides new networks: recorded transitions, a trained member."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.optimizer import is_opt_state
from r2r2.config.errors import UserError
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Spec
from r2r2.policy.spaces import TaskSpaces
from r2r2.replay.normalizer import Normalizer, statistics_of
from r2r2.replay.prefill import RecordedRows, RecordedSteps, lay_out
from r2r2.storage.transitions import (
    Transitions,
    TransitionSizes,
    check_for_task,
    file_sha256,
    read_transitions,
)
from r2r2.training.evaluation import MemberWeights, last_weights_file, load_last_weights
from r2r2.training.run_config import find_trained_member
from r2r2.training.saved_config import load_config
from r2r2.training.state import TrainState


class TrainedMember(NamedTuple):
    """The last weights of a member of another run."""

    weights: MemberWeights
    steps: int  # decision steps that it was trained for


class StartData(NamedTuple):
    """The data that a run starts from, checked and on the host."""

    recorded: RecordedRows | None = None  # transitions of `config.prefill`
    trained: TrainedMember | None = None  # of `config.init_from`

    @property
    def row_count(self) -> int:
        """Number of rows of recorded transitions."""
        return 0 if self.recorded is None else len(self.recorded.live)


NO_DATA = StartData()
# Samples that the statistics of a trained member count for at least: it may also have learned
# them from recorded data, whose number its weights do not tell.
LEAST_SAMPLES = 10_000


def load_start_data(
    config: RunConfig, spaces: Mapping[str, TaskSpaces], resumes: bool = False
) -> StartData:
    """Return the data of a finalized config; a run that resumes has its networks already.

    Raises:
        UserError: The data are missing, invalid, or do not fit the tasks, the replay or the agent.
    """
    first = next(iter(spaces.values()))
    spec = Spec(first.obs_dim, first.action_dim)
    recorded = _load_recorded(config, spaces) if config.prefill else None
    needed = bool(config.init_from) and not resumes
    return StartData(recorded, _load_trained(config, spec) if needed else None)


def _load_recorded(config: RunConfig, spaces: Mapping[str, TaskSpaces]) -> RecordedRows:
    source, first = config.prefill, next(iter(spaces.values()))
    low, high = _action_bounds(spaces)
    data = read_transitions(source)
    check_for_task(source, data, TransitionSizes(first.obs_dim, low, high, config.agent.batch_size))
    recorded = lay_out(_to_steps(data, low, high))
    if not config.mix and (rows := len(recorded.live)) >= config.replay_size:
        raise UserError(
            f"{source}: expected fewer rows than replay_size, {config.replay_size}, got {rows}: "
            f"{len(data.rewards)} transitions and the ends of episodes; increase --replay-size, "
            "or keep the data separate with --mix"
        )
    return recorded


def _action_bounds(
    spaces: Mapping[str, TaskSpaces],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the action bounds of the tasks, which must be equal."""
    bounds = [(own.action_low, own.action_high) for own in spaces.values()]
    if any(not np.array_equal(one, bounds[0]) for one in bounds):
        tasks = ", ".join(spaces)
        raise UserError(f"expected tasks with equal action bounds for data, got {tasks}", "env")
    return bounds[0]


def _to_steps(
    data: Transitions, low: NDArray[np.float64], high: NDArray[np.float64]
) -> RecordedSteps:
    action = np.clip(2 * (data.actions - low) / (high - low) - 1, -1, 1)
    return RecordedSteps(
        obs=data.observations,
        action=action,
        reward=data.rewards.astype(np.float64),
        next_obs=data.next_observations,
        terminated=data.terminations,
        ended=data.terminations | data.truncations,
    )


def _load_trained(config: RunConfig, spec: Spec) -> TrainedMember:
    folder, member = find_trained_member(config.init_from)
    file = last_weights_file(folder, member.name)
    if (digest := file_sha256(file)) != config.init_from_sha256:
        expected = f"the weights with the SHA-256 {config.init_from_sha256}"
        raise UserError(f"{file}: expected {expected}, got {digest}", "init_from")
    source = load_config(folder)
    if type(source.agent) is not type(config.agent):
        expected = f"a run of an agent of the same kind as {config.agent.name}"
        raise UserError(f"{folder.path}: expected {expected}, got {source.agent.name}", "init_from")
    try:
        # The arrays must be those of this run's agent.
        like = dataclasses.replace(source, agent=config.agent)
        weights, steps = load_last_weights(folder, like, spec, member.name)
    except UserError as error:
        text = f"{error}; agent, task and sizes of networks must be those of that run"
        raise UserError(text, "init_from") from None
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(weights)):
        raise UserError(f"{file}: the weights of {member.name} are not finite", "init_from")
    return TrainedMember(weights, steps)


def apply_start_data(state: TrainState, start: StartData) -> None:
    """Give every member what a new run starts from, before its first observation."""
    if start.trained is not None:
        state.fleet.set_states(take_over(state.fleet.states, start.trained.weights.state))
        scales, normalizer = start.trained.weights.scales, state.normalizer
        if isinstance(normalizer, Normalizer) and scales is not None:
            samples = max(start.trained.steps, LEAST_SAMPLES)
            normalizer.statistics = statistics_of(scales, samples, len(state.members))
    if start.recorded is None:
        return
    if not state.config.mix:
        state.fleet.prefill(start.recorded)
    if isinstance(state.normalizer, Normalizer):
        rows, live = start.recorded.rows, start.recorded.live
        reward, ended = rows["reward"][live], start.recorded.ended
        state.normalizer.observe_recorded(rows["obs"][live], reward, ended)
        # The last reward counts with the first observation that a member acts on.
        state.rollout.reward[:], state.rollout.ended[:] = reward[-1], ended[-1]


def take_over(fresh: Any, trained: Any) -> Any:
    """Return states [S, ...] with the networks of a trained member.

    Optimizer states and integers, which are counters and the length of the run, stay fresh.
    """

    def choose(new: Any, old: Any) -> Any:
        if is_opt_state(new) or not jnp.issubdtype(new.dtype, jnp.floating):
            return new
        return jnp.broadcast_to(jnp.asarray(old, new.dtype), new.shape)

    return jax.tree.map(choose, fresh, trained, is_leaf=is_opt_state)
