"""`r2r2 eval`: the returns of a run's final policies."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.config.refusal import Refusal, did_you_mean
from r2r2.config.resolve import resolve
from r2r2.config.run import RunConfig
from r2r2.config.text import parse_toml
from r2r2.core import Agent
from r2r2.envs.make import make_env, spec_of
from r2r2.envs.members import Member
from r2r2.learn.agents.make import make_agent, state_shapes
from r2r2.measure.evaluate import Evaluator
from r2r2.record.folder import RunFolder, open_run
from r2r2.record.weights import load_weights
from r2r2.run.train import members_of


class Evaluation(NamedTuple):
    """The returns of some members of a run."""

    members: tuple[Member, ...]
    returns: NDArray[np.float64]  # [K, episodes]


def evaluate_run(
    path: Path, episodes: int = 10, member: str | None = None
) -> Evaluation:
    """Plays episodes with the final policies of a run, without exploration.

    The episodes are none of those that training evaluated on.

    Args:
        path: the run's folder.
        episodes: episodes per member.
        member: `task:seed` for one member alone.

    Raises:
        Refusal: the folder is no finished run, or has no such member.

    Example:
        >>> import tempfile
        >>> from r2r2 import train
        >>> config = resolve({"env": "Pendulum-v1", "steps": 10})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = train(config, Path(folder) / "run").folder.path
        ...     found = evaluate_run(run, episodes=2)
        >>> found.returns.shape
        (1, 2)
    """
    if episodes < 1:
        raise Refusal(
            f"episodes is {episodes}; allowed is a whole number from 1 to 2147483647"
        )
    folder = open_run(path)
    config = _config_of(folder)
    members = _chosen(members_of(config), member)
    env = make_env(members[0].task, config.action_repeat)
    spec = spec_of(env)
    env.close()
    agent = make_agent(config.agent, spec, config.utd)
    policies = _policies(folder, agent, members)
    evaluator = Evaluator(agent, members, config.action_repeat, episodes)
    try:
        who = range(len(members))
        returns = evaluator.returns(policies, who, first=0, purpose="eval-command")
    finally:
        evaluator.close()
    return Evaluation(members, returns)


def _config_of(folder: RunFolder) -> RunConfig:
    run, text = f"run is '{folder.path}', whose config.toml", folder.config_text()
    try:
        config = resolve(parse_toml(text))
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{run} cannot be used: {error}") from None
    if tuple(member.name for member in members_of(config)) != folder.members:
        raise Refusal(f"{run} is of other members than its manifest.json")
    return config


def _chosen(members: tuple[Member, ...], wanted: str | None) -> tuple[Member, ...]:
    if wanted is None:
        return members
    found = tuple(m for m in members if wanted in (f"{m.task}:{m.seed}", m.name))
    if not found:
        names = [f"{m.task}:{m.seed}" for m in members]
        near = did_you_mean(wanted, names, most=1)
        raise Refusal(f"member is {wanted!r}; allowed are {', '.join(names)}{near}")
    return found


def _policies(folder: RunFolder, agent: Agent, members: Sequence[Member]) -> Any:
    like = state_shapes(agent)
    loaded: list[Any] = []
    for member in members:
        path = folder.weights(member.name)
        if not path.exists():
            raise Refusal(
                f"run is '{folder.path}', which has no final weights of {member.name}: "
                "it did not finish"
            )
        loaded.append(agent.evaluated(load_weights(path, like)))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *loaded)
