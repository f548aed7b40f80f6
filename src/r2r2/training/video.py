"""Videos of a run's policies."""

import contextlib
import math
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import gymnasium
import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Agent
from r2r2.config.errors import UserError, invalid_value
from r2r2.config.fields import EPISODES
from r2r2.config.run import RunConfig
from r2r2.envs.make import (
    BorrowedEnv,
    Env,
    EnvBuilder,
    adapt_env,
    episode_seed,
    make_raw_env,
    spec_of,
    time_limit_of,
)
from r2r2.envs.rendering import Frame, gl_backend, rendering_problem
from r2r2.envs.spec import EnvFailure, Member
from r2r2.storage.run_folder import open_run
from r2r2.storage.video_file import check_video_path, write_mp4
from r2r2.training.evaluation import (
    MAX_EVAL_STEPS,
    EvalPolicies,
    RunPolicies,
    load_policies,
    normalize_obs,
)
from r2r2.training.saved_config import (
    check_env_given,
    fleet_members,
    load_config,
    members_to_evaluate,
)
from r2r2.training.state import ignore

Act = Callable[[NDArray[np.float64]], NDArray[np.floating]]  # observation -> action
# Called with the frames so far and their largest number, if known.
OnFrame = Callable[[int, int | None], None]

DEFAULT_FPS = 30.0  # environment steps per second where a task does not say


class EpisodeRecorder:
    """Plays episodes of an environment with render mode 'rgb_array', in real time.

    `returns` are those of the finished episodes; `max_steps` are the decision steps of
    the longest episode, if known. The environment is closed with the recorder.
    """

    def __init__(self, task: str, env: Env, action_repeat: int):
        self._task, self._env = task, env
        self.fps = float(env.metadata.get("render_fps") or DEFAULT_FPS) / action_repeat
        limit = time_limit_of(env)
        self.max_steps = None if limit is None else math.ceil(limit / action_repeat)
        self.returns: list[float] = []
        self._steps = 0

    def frames(self, act: Act, seeds: Sequence[int]) -> Generator[Frame]:
        """Play episodes; yield a frame of each start and one after every decision."""
        for seed in seeds:
            with self._env_errors():
                obs, _ = self._env.reset(seed=seed)
            yield self._frame()
            total, done = 0.0, False
            while not done:
                action = act(obs)
                with self._env_errors():
                    obs, reward, terminated, truncated, _ = self._env.step(action)
                self._steps += 1
                total, done = total + float(reward), terminated or truncated
                yield self._frame()
            self.returns.append(total)

    def _frame(self) -> Frame:
        """Render a frame; an error in the first means that rendering does not work."""
        with self._env_errors(), warnings.catch_warnings():
            # It warns about a missing display, and then fails.
            warnings.filterwarnings("ignore", module="glfw")
            try:
                return self._check_frame(self._env.render())
            except Exception as error:
                if self._steps or isinstance(error, UserError):
                    raise
                problem = rendering_problem(error)
                raise UserError(f"{self._task}: cannot be rendered here{problem}") from error

    def _check_frame(self, frame: object) -> Frame:
        got = type(frame).__name__
        if isinstance(frame, np.ndarray):
            if frame.ndim == 3 and frame.shape[2] == 3 and frame.dtype == np.uint8:
                return frame
            got = f"{frame.dtype}{list(frame.shape)}"
        raise UserError(
            f"{self._task}: invalid frame; expected an array [height, width, 3] of uint8, got {got}"
        )

    @contextlib.contextmanager
    def _env_errors(self) -> Generator[None]:
        """Raise errors of the environment as `EnvFailure`."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            detail = "".join(traceback.format_exception(error)).strip()
            raise EnvFailure(
                f"{self._task}: failed at step {self._steps} of its video: {detail}"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._env.close()


class Video(NamedTuple):
    """A recorded video."""

    path: Path
    member: Member
    returns: tuple[float, ...]  # of the episodes shown
    frames: int
    fps: float
    policies: RunPolicies  # of the member


class VideoOptions(NamedTuple):
    """Further options of `record_video`."""

    weights: str = "last"  # or 'best': the policy of the member's best evaluation
    on_progress: OnFrame = ignore  # called after every frame


DEFAULT_OPTIONS = VideoOptions()


def record_video(
    run: Path | str,
    path: Path | str,
    member: str | None = None,
    episodes: int = 1,
    *,
    env: EnvBuilder | Env | None = None,
    options: VideoOptions = DEFAULT_OPTIONS,
) -> Video:
    """Record episodes of a policy of a run in real time; needs no display.

    The policy and the starts of the episodes are those of `evaluate_run`.

    Args:
        run: the run folder.
        path: the mp4 file, which is written completely or not at all.
        member: `task:seed`; by default the run's first member.
        episodes: number of episodes.
        env: as in `train`, for a run on a user's environment; an instance must have
            the render mode 'rgb_array'.
        options: which weights, and a function for the progress.

    Raises:
        UserError: The folder is not a run or has no such member or weights, the task
            cannot be rendered, or the file cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import r2r2
        >>> fields = {"env": "InvertedPendulum-v5", "steps": 10, "random_only": True}
        >>> with TemporaryDirectory() as folder:
        ...     run = r2r2.train(r2r2.resolve(fields), f"{folder}/run").folder
        ...     video = record_video(run.path, f"{folder}/out.mp4")
        >>> video.fps
        25.0
    """
    if not EPISODES.is_valid(episodes):
        raise invalid_value("episodes", EPISODES.description, episodes)
    path = Path(path)
    check_video_path(path)
    folder = open_run(Path(run))
    check_env_given(Path(run), env)
    config = load_config(folder)
    (player, *_) = members_to_evaluate(folder, fleet_members(config), member)
    seeds = [episode_seed(player.seed, "eval-command", n) for n in range(episodes)]
    rendered = _rendered_env(player.task, config, env)
    with gl_backend(), EpisodeRecorder(player.task, rendered, config.action_repeat) as recorder:
        loaded = load_policies(folder, config, spec_of(rendered), [player], options.weights)
        act = _greedy(loaded.agent, loaded.policies)
        most = recorder.max_steps and (recorder.max_steps + 1) * episodes
        frames = _counted(recorder.frames(act, seeds), most, options.on_progress)
        count = write_mp4(path, frames, recorder.fps)
        return Video(path, player, tuple(recorder.returns), count, recorder.fps, loaded)


def _rendered_env(task: str, config: RunConfig, env: EnvBuilder | Env | None) -> Env:
    """Return an environment that can be rendered."""
    try:
        if isinstance(env, gymnasium.Env):
            made: Any = BorrowedEnv(env)
        else:
            made = make_raw_env(task, True, config.env_args.to_dict(), env)
        limits = config.max_episode_steps, MAX_EVAL_STEPS * config.action_repeat
        return adapt_env(task, made, config.action_repeat, *limits)
    except (UserError, TypeError) as error:
        if isinstance(error, UserError) and "render_mode" not in str(error):
            raise
        text = error if isinstance(error, UserError) else f"{task}: {error}"
        raise UserError(
            f"{text}; a video needs an environment with the render mode 'rgb_array'"
        ) from None


def _greedy(agent: Agent, policies: EvalPolicies) -> Act:
    """Return the first policy as a function of one observation."""
    cpu = jax.devices("cpu")[0]  # where `r2r2 eval` acts
    policy = jax.device_put(jax.tree.map(lambda leaf: leaf[0], policies.policies), cpu)
    greedy = jax.jit(agent.greedy)

    def act(obs: NDArray[np.float64]) -> NDArray[np.floating]:
        obs = normalize_obs(policies.scales, 0, np.asarray(obs, np.float64))
        return np.asarray(greedy(policy, jax.device_put(obs[None], cpu))[0])

    return act


def _counted(frames: Iterator[Frame], most: int | None, on_progress: OnFrame) -> Iterator[Frame]:
    for count, frame in enumerate(frames, start=1):
        yield frame
        on_progress(count, most)
