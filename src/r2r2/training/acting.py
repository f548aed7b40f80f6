"""The policies that workers play: their NumPy programs, and the noise of their actions."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Agent
from r2r2.agents.registry import build_agent, state_shapes
from r2r2.compute.devices import host_device
from r2r2.compute.policy_tracing import trace_exploration, trace_greedy
from r2r2.compute.update import Purpose, member_key, step_key
from r2r2.config.common import AgentConfig
from r2r2.config.errors import UserError
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Member, Spec
from r2r2.envs.vector.streams import Actors
from r2r2.policy.actor import PolicySpec
from r2r2.policy.program import Program
from r2r2.replay.normalizer import Scales

BLOCK = 256  # steps whose noise is drawn at once


def explores_ahead(config: AgentConfig) -> bool:
    """Return whether an agent's behavior policy is fixed for whole episodes."""
    return config.policy_checkpoints and config.normalization is None


def make_actors(config: RunConfig, members: Sequence[Member], spec: Spec) -> Actors:
    """Return the policies that workers play for these members."""
    try:
        return _trace_actors(config, members, spec)
    except NotImplementedError as error:
        raise UserError(f"agent {config.agent.name!r}: {error}") from None


def _trace_actors(config: RunConfig, members: Sequence[Member], spec: Spec) -> Actors:
    agent, noise = build_agent(config.agent, spec, config.utd), list[Any]()
    states = state_shapes(agent)
    explore = None
    if explores_ahead(config.agent):
        policy = jax.eval_shape(agent.behavior_policy, states)
        drawn = jax.eval_shape(agent.action_noise, jax.random.key(0))
        noise = jax.tree.leaves(drawn)
        explore = _policy_spec(trace_exploration(agent, policy, spec.obs_dim, drawn), policy)
        explore = explore._replace(noise=tuple(x.shape for x in noise))
    policy = jax.eval_shape(agent.eval_policy, states)
    greedy = _policy_spec(trace_greedy(agent, policy, spec.obs_dim), policy)
    if agent.normalizes:
        scales, types = ((spec.obs_dim,),) * 2, ("float64",) * 2
        greedy = greedy._replace(
            shapes=greedy.shapes + scales, dtypes=greedy.dtypes + types, normalizes=True
        )
    seeds = tuple(member.seed for member in members)
    return Actors(explore, greedy, seeds, sum(math.prod(x.shape) for x in noise))


def _policy_spec(program: Program, policy: Any) -> PolicySpec:
    leaves, floats = jax.tree.leaves(policy), jax.eval_shape(lambda: jnp.zeros(())).dtype
    dtypes = tuple(str(leaf.dtype) for leaf in leaves)
    return PolicySpec(program, tuple(leaf.shape for leaf in leaves), dtypes, str(floats))


def parameters(policy: Any, scales: Scales | None, member: int) -> list[NDArray[Any]]:
    """Return the parameters of a member's policy, in the order of its `PolicySpec`."""
    leaves = [np.asarray(leaf)[member] for leaf in jax.tree.leaves(policy)]
    return leaves if scales is None else leaves + [np.asarray(x[member]) for x in scales[:2]]


class ExplorationNoise:
    """Noise of actions: a function of (seed, decision step), drawn in blocks on the CPU."""

    def __init__(self, agent: Agent, seeds: Sequence[int]):
        cpu = host_device()
        self._keys = [jax.device_put(member_key(seed), cpu) for seed in seeds]
        # The two newest blocks of each member, by member and the parity of their number.
        self._blocks: dict[tuple[int, int], tuple[int, NDArray[np.floating]]] = {}

        def draw(key: Any, first: Any) -> Any:
            def one(step: Any) -> Any:
                k_noise, _ = jax.random.split(step_key(key, Purpose.ACT, step))
                leaves = jax.tree.leaves(agent.action_noise(k_noise))
                return jnp.concatenate([leaf.reshape(-1) for leaf in leaves])

            return jax.vmap(one)(first + jnp.arange(BLOCK))

        self._draw = jax.jit(draw)

    def __call__(self, member: int, first: int, count: int) -> NDArray[np.floating]:
        """Return the noise of a member's steps from `first` on, [count, numbers]."""
        numbers = range(first // BLOCK, (first + count - 1) // BLOCK + 1)
        rows = np.concatenate([self._block(member, number) for number in numbers])
        begin = first - numbers[0] * BLOCK
        return rows[begin : begin + count]

    def _block(self, member: int, number: int) -> NDArray[np.floating]:
        known = self._blocks.get((member, number % 2))
        if known is None or known[0] != number:
            block = np.asarray(self._draw(self._keys[member], number * BLOCK))
            known = self._blocks[member, number % 2] = number, block
        return known[1]
