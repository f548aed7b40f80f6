"""`r2r2 eval`: the returns of a run's final policies."""

from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from r2r2.config.options import EPISODES
from r2r2.config.refusal import Refusal
from r2r2.envs.make import Env, Source
from r2r2.envs.members import Member
from r2r2.envs.own import source_of
from r2r2.envs.pool import EnvPool, crew_size
from r2r2.envs.troupe import Recipe
from r2r2.learn.agents.make import make_agent
from r2r2.measure.episodes import Episodes
from r2r2.measure.evaluate import Evaluator, places_for, play_out
from r2r2.record.folder import open_run
from r2r2.run.train import members_of
from r2r2.use.trained import chosen, config_of, evaluated_of


class Evaluation(NamedTuple):
    """The returns of some members of a run."""

    members: tuple[Member, ...]
    returns: NDArray[np.float64]  # [K, episodes]


def evaluate_run(
    path: Path,
    episodes: int = 10,
    member: str | None = None,
    *,
    env: Source | Env | None = None,
    workers: int | None = None,
) -> Evaluation:
    """Plays episodes with the final policies of a run, without exploration.

    The episodes are none of those that training evaluated on.

    Args:
        path: the run's folder.
        episodes: episodes per member.
        member: `task:seed` for one member alone.
        env: as in `train`, for a run on an environment of one's own.
        workers: processes that step environments, by default one per core; 0 for none.

    Raises:
        Refusal: the folder is no finished run, or has no such member.
        EnvFailure: an environment raised, or its worker process died.

    Example:
        >>> import tempfile
        >>> from r2r2 import resolve, train
        >>> config = resolve({"env": "Pendulum-v1", "steps": 10})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = train(config, Path(folder) / "run").folder.path
        ...     found = evaluate_run(run, episodes=2)
        >>> found.returns.shape
        (1, 2)
    """
    if not EPISODES.holds(episodes):
        raise Refusal(f"episodes is {episodes}; allowed is {EPISODES.words}")
    folder = open_run(path)
    config = config_of(folder)
    members = chosen(members_of(config), member)
    source = source_of(env, config.env, len(members))
    recipes = [Recipe(m.task, config.action_repeat, source) for m in members]
    lent = isinstance(env, gymnasium.Env)
    places = places_for(members, recipes, 1 if lent else episodes)
    with EnvPool(places, 0 if lent else crew_size(workers)) as pool:
        agent = make_agent(config.agent, pool.spec, config.utd)
        evaluated = evaluated_of(folder, agent, pool.spec, members)
        slots, who = range(len(places)), range(len(members))
        plan = Episodes(members, slots, episodes, "eval-command")
        evaluator = Evaluator(agent, plan, len(members))
        for fault in evaluator.begin(pool, who, evaluated, first=[0] * len(members)):
            raise pool.failure(fault)
        found = play_out(evaluator, pool)
    return Evaluation(members, np.stack([found[member] for member in who]))
