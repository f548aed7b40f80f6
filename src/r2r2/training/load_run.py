"""What a run left behind, read back: its config, its members, their policies."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from r2r2.agents.base import Agent
from r2r2.agents.registry import state_shapes
from r2r2.config.errors import UserError, did_you_mean
from r2r2.config.resolve import resolve_saved
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import parse_toml
from r2r2.envs.spec import Member, Spec
from r2r2.replay.normalizer import Scales
from r2r2.storage.arrays import load_weights
from r2r2.storage.run_folder import RunFolder
from r2r2.training.evaluation import EvalPolicies
from r2r2.training.loop import fleet_members
from r2r2.training.run_log import Learnt


def load_config(folder: RunFolder) -> RunConfig:
    """The config of a run, which must fit the rest of its folder."""
    run, text = f"run is '{folder.path}', whose config.toml", folder.config_text()
    try:
        config = resolve_saved(parse_toml(text))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{run} cannot be used: {error}") from None
    if tuple(member.name for member in fleet_members(config)) != folder.members:
        raise UserError(f"{run} is of other members than its manifest.json")
    return config


def select_members(
    members: tuple[Member, ...], wanted: str | None
) -> tuple[Member, ...]:
    """The one member that is wanted, as `task:seed` or by its folder, or all."""
    if wanted is None:
        return members
    found = tuple(m for m in members if wanted in (f"{m.task}:{m.seed}", m.name))
    if not found:
        names = [f"{m.task}:{m.seed}" for m in members]
        near = did_you_mean(wanted, names, most=1)
        raise UserError(f"member is {wanted!r}; allowed are {', '.join(names)}{near}")
    return found


def load_policies(
    folder: RunFolder, agent: Agent, spec: Spec, members: Sequence[Member]
) -> EvalPolicies:
    """What evaluation uses of all that the members have learnt, [S, ...]."""
    like = Learnt(state_shapes(agent), _scales_like(spec) if agent.normalizes else None)
    loaded: list[Any] = []
    for member in members:
        path = folder.weights(member.name)
        if not path.exists():
            raise UserError(
                f"run is '{folder.path}', which has no final weights of {member.name}: "
                "it did not finish"
            )
        learnt = load_weights(path, like)
        loaded.append((agent.eval_policy(learnt.state), learnt.scales))
    policies, scales = zip(*loaded, strict=True)
    return EvalPolicies(
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies),
        # float64, which JAX would round
        jax.tree.map(lambda *leaves: np.stack(leaves), *scales),
    )


def _scales_like(spec: Spec) -> Scales:
    return Scales(np.zeros(spec.obs_dim), np.zeros(spec.obs_dim), np.zeros(()))
