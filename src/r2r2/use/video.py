"""`r2r2 eval --video`: a run's final policy, as a film."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import gymnasium
import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.config.options import EPISODES
from r2r2.config.refusal import Refusal
from r2r2.config.run import RunConfig
from r2r2.core import Agent
from r2r2.envs.make import Env, Source, adapted, episode_seed, make_env, spec_of
from r2r2.envs.members import Member
from r2r2.envs.own import Lent
from r2r2.envs.render import Frame, drawing
from r2r2.learn.agents.make import make_agent
from r2r2.measure.evaluate import Evaluated, sight_of
from r2r2.measure.video import Act, Film
from r2r2.record.folder import open_run
from r2r2.record.mp4 import check_target, write_mp4
from r2r2.run.train import members_of
from r2r2.use.trained import chosen, config_of, evaluated_of

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
    env: Source | Env | None = None,
    watch: FilmWatcher = unwatched,
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
        watch: called after every picture.

    Raises:
        Refusal: the folder is no finished run or has no such member, the task cannot
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
    if not EPISODES.holds(episodes):
        raise Refusal(f"episodes is {episodes}; allowed is {EPISODES.words}")
    check_target(path)
    folder = open_run(run)
    config = config_of(folder)
    who = chosen(members_of(config), member)[:1]
    seeds = [episode_seed(who[0].seed, "eval-command", n) for n in range(episodes)]
    stage = _stage(who[0].task, config, env)
    with drawing(), Film(who[0].task, stage, config.action_repeat) as film:
        agent = make_agent(config.agent, spec_of(stage), config.utd)
        act = _greedy(agent, evaluated_of(folder, agent, spec_of(stage), who))
        most = film.longest and (film.longest + 1) * episodes
        shown = _watched(film.frames(act, seeds), most, watch)
        count = write_mp4(path, shown, film.fps)
        return Video(path, who[0], tuple(film.returns), count, film.fps)


def _stage(task: str, config: RunConfig, env: Source | Env | None) -> Env:
    """The environment, built to be filmed."""
    try:
        if env is None:
            return make_env(task, config.action_repeat, render=True)
        if isinstance(env, gymnasium.Env):
            return adapted(task, Lent(env), config.action_repeat)
        return adapted(task, env(render_mode="rgb_array"), config.action_repeat)
    except (Refusal, TypeError) as error:
        if "render_mode" not in str(error):
            raise
        needs = "a video needs an environment with the render mode 'rgb_array'"
        said = error if isinstance(error, Refusal) else f"env is {task!r}: {error}"
        raise Refusal(f"{said}; {needs}") from None


def _greedy(agent: Agent, evaluated: Evaluated) -> Act:
    """The first policy as a function of one observation."""
    policy = jax.tree.map(lambda leaf: leaf[0], evaluated.policies)
    greedy, sight = jax.jit(agent.greedy), sight_of(evaluated.scales, member=0)

    def act(obs: NDArray[np.float64]) -> NDArray[np.floating]:
        return np.asarray(greedy(policy, sight(np.asarray(obs, np.float64))[None])[0])

    return act


def _watched(
    frames: Iterator[Frame], most: int | None, watch: FilmWatcher
) -> Iterator[Frame]:
    for count, frame in enumerate(frames, start=1):
        yield frame
        watch(count, most)
