"""The compiled programs of a fleet, each called with the members it is for."""

import itertools
import os
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr

from r2r2.agents.base import Agent, Array
from r2r2.agents.tree_ops import select
from r2r2.compute.flops import largest_product
from r2r2.compute.random_keys import Purpose, step_key
from r2r2.compute.update import Data, LearnerState
from r2r2.compute.update_grouping import group_sizes
from r2r2.compute.update_loop import UpdateGroup, update_many
from r2r2.replay import buffer as ring
from r2r2.replay.buffer import Priorities, Replay, Rows, Transition

HOW: dict[str, Any] = {"donate_argnums": 1, "static_argnames": "stride"}
# A GPU runs the whole loop as one graph, in which kernels that do not need each other
# overlap: a quarter to two fifths less time than launched one by one.
GRAPH: dict[str, str | bool] = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,"
    "WHILE,CONDITIONAL,DYNAMIC_SLICE_FUSION",
    "xla_gpu_graph_min_graph_size": "1",
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
}
# The compiler's own kernels for products are the fastest for small ones, but trying
# them out takes most of the time to compile. Above so many operations the library's
# are faster: they leave the activations to kernels that are good at them.
LARGE = 15e9
LIBRARY: dict[str, str | bool] = {"xla_gpu_enable_triton_gemm": False}
Rest = tuple[UpdateGroup, Any, Any]  # who, where they are put back, how many updates
Stores = tuple[Rows, Array, Priorities]  # a replay, in the order of its changes


class CompiledUpdates:
    """Updates of groups of a fleet, compiled once for every size of a group.

    Compiling takes seconds on a CPU and twenty on a GPU: to ask for a program ahead of
    need begins it while the fleet still warms up.
    """

    def __init__(self, agent: Agent, example: tuple[Any, ...]):
        self._whole = jax.jit(partial(_update_whole, agent), **HOW)
        self._part = jax.jit(partial(_update_part, agent), **HOW)
        # Shapes alone, so that no array is held.
        self._data, self._learners, self._keys = jax.tree.map(_shape, example)
        self._compiler = ThreadPoolExecutor(2)
        self._compiled: dict[tuple[int, bool, int], Future[Any]] = {}

    def of(self, size: int, whole: bool, stride: int) -> Future[Any]:
        """The program for groups of `size`, compiled in a thread of its own.

        Traced in the caller's, whose JAX settings may be that thread's alone.

        Args:
            size: of the group, fillers included.
            whole: whether it is the fleet, in its order, and nobody is put back.
            stride: see `update_many`.
        """
        which = size, whole, stride
        if which not in self._compiled:
            traced = self.traced(*which)
            options = graph_options(traced.jaxpr.jaxpr)
            program = self._compiler.submit(compiled, traced.lower(), options)
            self._compiled[which] = program
        return self._compiled[which]

    def traced(self, size: int, whole: bool, stride: int) -> Any:
        """The program that `of` compiles, as JAX has traced it."""
        member = _shape(jnp.zeros(size, dtype=int))
        key = jax.eval_shape(lambda keys: keys[jnp.zeros(size, int)], self._keys)
        group, count = (
            UpdateGroup(member, key, member),
            _shape(jnp.zeros((), dtype=int)),
        )
        program = self._whole if whole else self._part
        rest = group, member, count
        return program.trace(self._data, self._learners, rest, stride)

    def wait(self) -> None:
        """Waits until all that was asked for is compiled."""
        for program in list(self._compiled.values()):
            program.result()

    def ahead(self, fleet: int, growth: int, stride: int) -> Self:
        """Asks for all that a fleet may need, what it needs first before the rest."""
        strides = sorted({stride, 1}, reverse=True)
        for steps in strides:
            self.of(fleet, True, steps)
        sizes = group_sizes(fleet, growth) if fleet > 1 else []
        for size, steps in itertools.product(sizes, strides):
            self.of(size, False, steps)
        return self


def _shape(leaf: Array) -> Any:
    return jax.eval_shape(lambda same: same, leaf)


def graph_options(jaxpr: Jaxpr) -> dict[str, str | bool]:
    """How XLA is to compile a program for a GPU."""
    return GRAPH | (LIBRARY if largest_product(jaxpr) > LARGE else {})


def compiled(lowered: Any, options: dict[str, str | bool]) -> Any:
    """A program, as a graph where there can be one.

    Options that XLA_FLAGS name are as they say. An XLA that does not know some of ours
    trains all the same, but slower, and says so.
    """
    if jax.default_backend() != "gpu":
        return lowered.compile()
    flags = os.environ.get("XLA_FLAGS", "")
    try:
        return lowered.compile({x: y for x, y in options.items() if x not in flags})
    except jax.errors.JaxRuntimeError as error:
        warnings.warn(f"updates are not one graph: {error}", stacklevel=2)
        return lowered.compile()


def x64_enabled() -> bool:
    """Whether numbers are of 64 bits here, which may be so in this thread alone."""
    settings: Any = jax.config
    return bool(settings.jax_enable_x64)


def run_compiled(program: Future[Any], wide: bool, *given: Any) -> LearnerState:
    """What a program makes of its arguments, when that is done.

    Args:
        program: waited for.
        wide: `doubles()` where it was traced: this is called in a thread of its own.
        *given: some may be on the host, and are sent all at once.
    """
    with jax.enable_x64(wide):
        learners: LearnerState = program.result()(*given)
    for leaf in jax.tree.leaves(learners.metrics):
        leaf.block_until_ready()
    return learners


def _update_whole(
    agent: Agent, data: Data, learners: LearnerState, rest: Rest, stride: int
) -> LearnerState:
    group, _, count = rest
    return update_many(agent, data, learners, group, count, stride)


def _update_part(
    agent: Agent, data: Data, learners: LearnerState, rest: Rest, stride: int
) -> LearnerState:
    group, place, count = rest
    part = jax.tree.map(lambda x: x[group.member], learners)
    part = update_many(agent, data, part, group, count, stride)
    return cast(LearnerState, placed(learners, place, part))


def placed(whole: Any, place: Array, part: Any) -> Any:
    """`whole` with the rows of `part` at `place` [K], or nowhere, beyond its end."""
    return jax.tree.map(lambda x, new: x.at[place].set(new, mode="drop"), whole, part)


def act(
    agent: Agent, policies: Any, keys: Array, obs: Array, steps: Array, warm: Array
) -> Array:
    """Actions of all members, uniform ones where warm-up goes on."""

    def one(policy: Any, key: Array, obs: Array, step: Array, warm: Array) -> Array:
        k_noise, k_uniform = jax.random.split(step_key(key, Purpose.ACT, step))
        action = agent.explore(policy, obs, agent.action_noise(k_noise))
        uniform = jax.random.uniform(k_uniform, action.shape, minval=-1, maxval=1)
        return jnp.where(warm, action, uniform.astype(action.dtype))

    return jax.vmap(one)(policies, keys, obs, steps, warm)


def store(stores: Stores, member: Array, packed: Array, count: Array) -> Stores:
    """The first `count` of several steps into a replay, one after the other.

    Args:
        stores: the replay.
        member: who made each step, [T, K]; somebody may stand there twice.
        packed: the fields of `Experience` side by side, [T, K, all of them].
        count: steps that are to be stored, [].
    """
    if len(member) == 1:
        return _store_step(stores, member[0], packed[0])

    def one(step: Array, stores: Stores) -> Stores:
        return _store_step(stores, member[step], packed[step])

    result: Stores = jax.lax.fori_loop(0, count, one, stores)
    return result


def _store_step(stores: Stores, member: Array, packed: Array) -> Stores:
    rows, newest, priorities = stores
    actions, obs = rows.action.shape[-1], rows.obs.shape[-1]
    ends = np.cumsum([actions, 1, 1, 1, obs, obs])
    fields = jnp.split(packed, ends, axis=1)
    action, reward, terminated, ended, next_obs, first, lost = fields
    seen = Transition(
        action=action,
        reward=reward[:, 0],
        terminated=terminated[:, 0] > 0,
        ended=ended[:, 0] > 0,
        next_obs=next_obs,
        obs=first,
        lost=lost[:, 0] > 0,
    )
    replay = ring.add(Replay(rows, priorities, newest), member, seen)
    return replay.rows, replay.newest, replay.priorities


def keep(agent: Agent, learners: LearnerState, chosen: Array) -> LearnerState:
    """The acting policies of the chosen [S] become their policy checkpoints."""
    state = select(
        chosen, jax.vmap(agent.checkpoint_policy)(learners.state), learners.state
    )
    return learners._replace(state=state)
