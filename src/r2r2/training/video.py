"""`r2r2 eval --video`: a run's final policy, as a film."""

import contextlib
import math
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import gymnasium
import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Agent
from r2r2.agents.registry import make_agent
from r2r2.config.errors import UserError
from r2r2.config.fields import EPISODES
from r2r2.config.run import RunConfig
from r2r2.envs.errors import EnvFailure
from r2r2.envs.make import (
    BorrowedEnv,
    Env,
    EnvBuilder,
    adapt_env,
    episode_seed,
    make_env,
    spec_of,
    time_limit_of,
)
from r2r2.envs.rendering import Frame, gl_backend, rendering_hint
from r2r2.envs.spec import Member
from r2r2.storage.run_folder import open_run
from r2r2.storage.video_file import check_video_path, write_mp4
from r2r2.training.evaluation import EvalPolicies, obs_normalizer
from r2r2.training.load_run import load_config, load_policies, select_members
from r2r2.training.loop import fleet_members

Act = Callable[[NDArray[np.float64]], NDArray[np.floating]]  # observation -> action

# Environment steps per second where a task does not say.
RATE = 30.0


class EpisodeRecorder:
    """An environment that is played in front of a camera, in real time at `fps`.

    `returns` holds the undiscounted returns of the episodes that were played.

    Args:
        task: its name.
        env: built for the render mode 'rgb_array'; it is closed with the film.
        action_repeat: its environment steps per decision.
    """

    def __init__(self, task: str, env: Env, action_repeat: int):
        self._task, self._env = task, env
        self.fps = _rate(env) / action_repeat
        limit = time_limit_of(env)
        # Decision steps of the longest episode, if it is known.
        self.longest = None if limit is None else math.ceil(limit / action_repeat)
        self.returns: list[float] = []
        self._steps = 0

    def frames(self, act: Act, seeds: Sequence[int]) -> Generator[Frame]:
        """Plays episodes: a picture of each start, then one after every decision.

        Raises:
            UserError: The environment cannot be rendered; nothing was played.
            EnvFailure: It raised.
        """
        for seed in seeds:
            with self._blamed():
                obs, _ = self._env.reset(seed=seed)
            yield self._first() if seed == seeds[0] else self._frame()
            total, over = 0.0, False
            while not over:
                action = act(obs)
                with self._blamed():
                    obs, reward, ended, cut, _ = self._env.step(action)
                self._steps += 1
                total, over = total + float(reward), ended or cut
                yield self._frame()
            self.returns.append(total)

    def _first(self) -> Frame:
        """The first picture, which shows whether there can be any."""
        try:
            with warnings.catch_warnings():
                # It warns that there is no display, and then fails.
                warnings.filterwarnings("ignore", module="glfw")
                return self._checked(self._env.render())
        except UserError:
            raise
        except Exception as error:
            words = " ".join(f"{type(error).__name__}: {error}".split())
            raise self._unfit(
                f"cannot be rendered here ({words}){rendering_hint()}"
            ) from error

    def _frame(self) -> Frame:
        with self._blamed():
            return self._checked(self._env.render())

    def _checked(self, frame: object) -> Frame:
        if not isinstance(frame, np.ndarray):
            raise self._unfit(f"renders {type(frame).__name__}, not an array of pixels")
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            found = f"of shape {frame.shape} and type {frame.dtype}"
            raise self._unfit(
                f"renders arrays {found}, not [rows, columns, 3] of uint8"
            )
        return frame

    @contextlib.contextmanager
    def _blamed(self) -> Generator[None]:
        """What is raised within it is told as the environment's."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            story = "".join(traceback.format_exception(error)).strip()
            said = f"{self._task} failed at step {self._steps} of its film: {story}"
            raise EnvFailure(said) from error

    def _unfit(self, why: str) -> UserError:
        return UserError(f"env is {self._task!r}, which {why}")

    def close(self) -> None:
        """Frees the task and its camera."""
        self._env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _rate(env: Env) -> float:
    """Environment steps per second of real time."""
    said = env.metadata.get("render_fps")
    return float(said) if said else RATE


# Pictures so far, and how many there will be at most, if that is known.
FilmWatcher = Callable[[int, int | None], None]


class Video(NamedTuple):
    """What was filmed."""

    path: Path
    member: Member
    returns: tuple[float, ...]  # of the episodes shown
    frames: int
    fps: float


def unwatched(_: int, __: int | None) -> None:
    """The watcher of a film that nobody waits for."""


def record_video(
    run: Path,
    path: Path,
    member: str | None = None,
    episodes: int = 1,
    *,
    env: EnvBuilder | Env | None = None,
    on_progress: FilmWatcher = unwatched,
) -> Video:
    """Films episodes of a run's final policy, in real time; no display is needed.

    They start as the first episodes of `evaluate_run` do.

    Args:
        run: the run's folder.
        path: the mp4 file; written whole or not at all.
        member: `task:seed`, by default the run's first.
        episodes: how many, one after the other.
        env: as in `train`, for a run on an environment of one's own; one that is built
            already has to be of render mode 'rgb_array'.
        on_progress: called after every picture.

    Raises:
        UserError: the folder is no finished run or has no such member, the task cannot
            be rendered, or the file cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import r2r2
        >>> config = r2r2.resolve({"env": "InvertedPendulum-v5", "steps": 10})
        >>> with TemporaryDirectory() as here:
        ...     folder = r2r2.train(config, Path(here, "run")).folder
        ...     video = record_video(folder.path, Path(here, "out.mp4"))
        >>> video.fps
        25.0
    """
    if not EPISODES.is_valid(episodes):
        raise UserError(f"episodes is {episodes}; allowed is {EPISODES.description}")
    check_video_path(path)
    folder = open_run(run)
    config = load_config(folder)
    who = select_members(fleet_members(config), member)[:1]
    seeds = [episode_seed(who[0].seed, "eval-command", n) for n in range(episodes)]
    stage = _stage(who[0].task, config, env)
    with (
        gl_backend(),
        EpisodeRecorder(who[0].task, stage, config.action_repeat) as film,
    ):
        agent = make_agent(config.agent, spec_of(stage), config.utd)
        act = _greedy(agent, load_policies(folder, agent, spec_of(stage), who))
        most = film.longest and (film.longest + 1) * episodes
        shown = _watched(film.frames(act, seeds), most, on_progress)
        count = write_mp4(path, shown, film.fps)
        return Video(path, who[0], tuple(film.returns), count, film.fps)


def _stage(task: str, config: RunConfig, env: EnvBuilder | Env | None) -> Env:
    """The environment, built to be filmed."""
    try:
        if env is None:
            return make_env(task, config.action_repeat, render=True)
        if isinstance(env, gymnasium.Env):
            return adapt_env(task, BorrowedEnv(env), config.action_repeat)
        return adapt_env(task, env(render_mode="rgb_array"), config.action_repeat)
    except (UserError, TypeError) as error:
        if "render_mode" not in str(error):
            raise
        needs = "a video needs an environment with the render mode 'rgb_array'"
        said = error if isinstance(error, UserError) else f"env is {task!r}: {error}"
        raise UserError(f"{said}; {needs}") from None


def _greedy(agent: Agent, evaluated: EvalPolicies) -> Act:
    """The first policy as a function of one observation."""
    policy = jax.tree.map(lambda leaf: leaf[0], evaluated.policies)
    greedy, sight = jax.jit(agent.greedy), obs_normalizer(evaluated.scales, member=0)

    def act(obs: NDArray[np.float64]) -> NDArray[np.floating]:
        return np.asarray(greedy(policy, sight(np.asarray(obs, np.float64))[None])[0])

    return act


def _watched(
    frames: Iterator[Frame], most: int | None, on_progress: FilmWatcher
) -> Iterator[Frame]:
    for count, frame in enumerate(frames, start=1):
        yield frame
        on_progress(count, most)
