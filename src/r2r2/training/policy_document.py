"""Describe the policies of a run, so that they can be loaded without JAX."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from r2r2.agents.base import Agent
from r2r2.agents.registry import build_agent, state_shapes
from r2r2.compute.policy_tracing import trace_greedy
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Member, Spec
from r2r2.envs.vector.pool import try_task
from r2r2.policy.document import Parameter, PolicyDocument
from r2r2.policy.policy import PolicyParts
from r2r2.policy.spaces import TaskSpaces
from r2r2.storage.arrays import flatten_tree
from r2r2.storage.run_folder import RunFolder
from r2r2.training.evaluation import MemberWeights, SavedPolicy, load_policies, member_of
from r2r2.training.saved_config import check_env_given, read_document


def describe_policies(
    config: RunConfig, spec: Spec, spaces: Mapping[str, TaskSpaces]
) -> PolicyDocument:
    """Return the program of a run's policies, and where its files hold their parameters."""
    agent = build_agent(config.agent, spec, config.utd)
    policy = jax.eval_shape(agent.eval_policy, state_shapes(agent))
    program = trace_greedy(agent, policy, spec.obs_dim)
    used = {index for operation in program.operations for index in operation.inputs}
    used.add(program.output)
    leaves, sources = jax.tree.leaves(policy), _sources(agent)
    best = flatten_tree(SavedPolicy(policy, None))[0]
    parameters = tuple(
        Parameter(sources[n], best[n], leaf.shape, str(leaf.dtype)) if n in used else None
        for n, leaf in enumerate(leaves)
    )
    dtype = str(jax.eval_shape(lambda: jax.numpy.zeros(())).dtype)
    return PolicyDocument(program, parameters, dtype, agent.normalizes, spaces)


def load_parts(folder: RunFolder, config: RunConfig, member: Member, weights: str) -> PolicyParts:
    """Return the parts of a member's policy from weights or a checkpoint, with JAX."""
    spaces = _spaces(folder, config, member)
    spec = Spec(spaces.obs_dim, spaces.action_dim)
    loaded = load_policies(folder, config, spec, [member], weights)
    document = describe_policies(config, spec, {})
    policy, scales = member_of(loaded.policies, 0)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(policy)]
    return PolicyParts(
        program=document.program,
        parameters=tuple(leaves),
        dtype=document.dtype,
        spaces=spaces,
        mean=None if scales is None else np.asarray(scales.mean),
        deviation=None if scales is None else np.asarray(scales.deviation),
        info={"step": loaded.steps[0], "weights_description": loaded.description},
    )


def _spaces(folder: RunFolder, config: RunConfig, member: Member) -> TaskSpaces:
    """Return a task's spaces, as recorded or, in runs of earlier versions, from its environment."""
    document = folder.policy_document()
    if document is not None:
        return read_document(folder.path, document).spaces[member.task]
    check_env_given(folder.path, None)
    return try_task(member.task, None, config.env_timeout).spaces


def _sources(agent: Agent) -> list[str | None]:
    """Return for each leaf of the policy its name in a file of weights, if it is there as it is."""
    states = state_shapes(agent)
    names, _ = flatten_tree(MemberWeights(states, None))
    jaxpr = jax.make_jaxpr(agent.eval_policy)(states).jaxpr
    found = {var: name for var, name in zip(jaxpr.invars, names, strict=True)}
    return [found.get(var) if _is_variable(var) else None for var in jaxpr.outvars]


def _is_variable(atom: Any) -> bool:
    return not hasattr(atom, "val")  # else a literal, which cannot be hashed
