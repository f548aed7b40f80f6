"""A run at one moment, as arrays with names, and the way back."""

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Agent
from r2r2.config.errors import UserError
from r2r2.replay import sum_tree as sumtree
from r2r2.replay.normalizer import Scales, Statistics
from r2r2.storage.arrays import flatten_tree
from r2r2.training.evaluation import EvalPolicies
from r2r2.training.fleet import FleetSnapshot

Tree = TypeVar("Tree")

# What has another length at every moment.
FREE = ("fleet/waiting/", "obs")
# What counts something.
COUNTS = (
    *("fleet/newest", "fleet/waiting/members", "fleet/waiting/opened", "fleet/opened"),
    *("rollout/steps", "rollout/episode", "rollout/length"),
    *("schedule/made", "schedule/owed", "schedule/forgiven"),
)
LEVELS = "fleet/learners/priorities/tree/levels/"


class Snapshot(NamedTuple):
    """All arrays of a run but the replay's rows and the environments' own."""

    fleet: FleetSnapshot
    rollout: dict[str, NDArray[Any]]
    schedule: dict[str, NDArray[Any]]
    statistics: Statistics | None
    evaluated: list[EvalPolicies]
    obs: NDArray[np.float64]  # of the evaluations under way


def named(snapshot: Snapshot) -> dict[str, NDArray[Any]]:
    """Its arrays by their names."""
    names, leaves = flatten_tree(snapshot)
    return {name: np.asarray(leaf) for name, leaf in zip(names, leaves, strict=True)}


def rebuilt(saved: Mapping[str, NDArray[Any]], like: Snapshot) -> Snapshot:
    """The snapshot whose arrays were saved, in the form of a fresh run's.

    Raises:
        UserError: They are of another run, or of another version of r2r2.
    """
    names, leaves = flatten_tree(like)
    if odd := sorted(set(names) ^ set(saved)):
        there = "no " if odd[0] in names else ""
        raise UserError(f"the checkpoint holds {there}'{odd[0]}': it is of another run")
    for name, leaf in zip(names, leaves, strict=True):
        skip = 1 if name.startswith(FREE) else 0
        found, wanted = saved[name], np.asarray(leaf)
        if (found.dtype, found.ndim) != (wanted.dtype, wanted.ndim) or (
            found.shape[skip:] != wanted.shape[skip:]
        ):
            raise UserError(
                f"the checkpoint holds '{name}' as {found.dtype}{list(found.shape)}; "
                f"needed is {wanted.dtype}{list(wanted.shape)}"
            )
        if name.startswith(COUNTS) and (found.astype(float) < 0).any():
            raise UserError(f"the checkpoint holds '{name}' with a number below 0")
    if len({len(saved[name]) for name in names if name.startswith(FREE[0])}) > 1:
        raise UserError(f"the checkpoint holds steps of several counts in '{FREE[0]}'")
    structure = jax.tree.structure(like)
    tree: Snapshot = jax.tree.unflatten(structure, [saved[name] for name in names])
    return tree


def grown(
    saved: Mapping[str, NDArray[Any]], rows: int, wanted: int
) -> dict[str, NDArray[Any]]:
    """The same arrays for rings of more rows, none of which has come to its end yet.

    Raises:
        UserError: They do not hold as many rows.
    """
    levels = sorted(name for name in saved if name.startswith(LEVELS))
    if not levels or (first := saved[levels[0]]).ndim != 3 or not first.size:
        raise UserError(f"the checkpoint holds no weights of rows, '{LEVELS}0'")
    weights = first.reshape(len(first), -1)[:, :rows]
    if weights.shape[1] < rows:
        raise UserError(
            f"the checkpoint holds weights of {weights.shape[1]} of its rows"
        )
    more = np.zeros((len(weights), wanted), weights.dtype)
    more[:, :rows] = weights
    tree = sumtree.over(more)
    rest = {name: array for name, array in saved.items() if name not in levels}
    return rest | {f"{LEVELS}{n}": level for n, level in enumerate(tree)}


def evaluated_like(
    agent: Agent, fleet: FleetSnapshot, scales: Scales | None
) -> EvalPolicies:
    """The form of what an evaluation evaluates, as arrays of zeros."""
    shapes = jax.eval_shape(agent.eval_policy, fleet.learners.state)
    policies = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    return EvalPolicies(policies, scales)


def member_of(tree: Tree, member: int) -> Tree:
    """One member's part of a tree whose arrays begin with the members' axis."""
    part: Tree = jax.tree.map(operator.itemgetter(member), tree)
    return part
