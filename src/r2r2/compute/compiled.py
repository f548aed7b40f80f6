"""The compiled programs of a fleet, and how many FLOPs a program has."""

import contextlib
import itertools
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from r2r2.agents.base import Agent, Array, use_replacements
from r2r2.compute.fast_optimizer import FAST
from r2r2.compute.precision import ComputeOptions, matmul_precision
from r2r2.compute.update import (
    Data,
    LearnerState,
    Purpose,
    UpdateGroup,
    select,
    step_key,
    update_plainly,
)
from r2r2.compute.update_loop import group_sizes, update_many
from r2r2.replay import buffer
from r2r2.replay.buffer import Priorities, Replay, Rows, Transition

# A GPU runs the whole loop as one graph, in which independent kernels overlap: 25 to
# 40 % less time than launching them one by one.
GRAPH: dict[str, str | bool] = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,"
    "WHILE,CONDITIONAL,DYNAMIC_SLICE_FUSION",
    "xla_gpu_graph_min_graph_size": "1",
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
}
# XLA's own product kernels are the fastest for small products, but tuning them takes
# most of the compile time. Above this many operations library kernels are faster: they
# leave the activations to separate, better kernels.
LARGE_PRODUCT = 15e9
LIBRARY: dict[str, str | bool] = {"xla_gpu_enable_triton_gemm": False}
PRODUCT = "dot_general"
Stores = tuple[Rows, Array, Priorities]  # a replay, in the order of its changes


class ProgramKey(NamedTuple):
    """Which program: groups of `size` members, padding included."""

    size: int
    is_fleet: bool  # the whole fleet, in its order
    stride: int  # see `update_many`


@contextlib.contextmanager
def tracing(options: ComputeOptions) -> Iterator[None]:
    """Trace programs as the options ask for."""
    replacements = FAST if options.fast else None
    with use_replacements(replacements), matmul_precision(options.precision):
        yield


class CompiledUpdates:
    """Updates of groups of a fleet, compiled once for every size of a group.

    Compiling takes seconds on a CPU and twenty on a GPU, so programs can be requested while the
    fleet still warms up. Of `example` (data, learners and keys of the fleet) only shapes are kept.
    """

    def __init__(self, agent: Agent, example: tuple[Any, ...], options: ComputeOptions):
        self._options = options
        update: Any = partial(update_plainly, agent)
        if options.fast:
            update = partial(update_many, agent, fp16=options.fp16)
        settings: Any = {"donate_argnums": 1, "static_argnames": "stride"}
        self._fleet = jax.jit(partial(_update_fleet, update), **settings)
        self._part = jax.jit(partial(_update_part, update), **settings)
        self._data, self._learners, self._keys = jax.tree.map(_shape, example)
        self._compiler = ThreadPoolExecutor(2)
        self._compiled: dict[ProgramKey, Future[Any]] = {}

    def program(self, key: ProgramKey) -> Future[Any]:
        """Return a program, compiled in another thread."""
        if key not in self._compiled:
            traced = self.traced(key)  # in this thread: JAX settings may be local to it
            options = graph_options(traced.jaxpr.jaxpr) if self._options.fast else {}
            program = self._compiler.submit(compile_lowered, traced.lower(), options)
            self._compiled[key] = program
        return self._compiled[key]

    def traced(self, key: ProgramKey) -> Any:
        """Return a program as JAX traced it."""
        size = key.size
        member, count = (_shape(jnp.zeros(n, dtype=int)) for n in ((size,), ()))
        keys = jax.eval_shape(lambda keys: keys[jnp.zeros(size, int)], self._keys)
        group = UpdateGroup(member, keys, member, count)
        program = self._fleet if key.is_fleet else self._part
        with tracing(self._options):
            args = self._data, self._learners, (group, member)
            return program.trace(*args, key.stride)

    def wait(self) -> None:
        """Wait until all requested programs are compiled."""
        for program in list(self._compiled.values()):
            program.result()

    def close(self) -> None:
        """Cancel programs that are not compiled yet; the threads end after those that are."""
        self._compiler.shutdown(wait=False, cancel_futures=True)

    def request(self, fleet: int, growth: int, stride: int) -> Self:
        """Request all programs that a fleet may need, the most urgent first."""
        strides = sorted({stride, 1}, reverse=True)
        sizes = group_sizes(fleet, growth) if fleet > 1 else []
        for steps in strides:
            self.program(ProgramKey(fleet, True, steps))
        for size, steps in itertools.product(sizes, strides):
            self.program(ProgramKey(size, False, steps))
        return self


def _shape(leaf: Array) -> Any:
    return jax.eval_shape(lambda same: same, leaf)


def graph_options(jaxpr: Jaxpr) -> dict[str, str | bool]:
    """Return XLA's options for a program on a GPU."""
    return GRAPH | (LIBRARY if largest_product(jaxpr) > LARGE_PRODUCT else {})


def compile_lowered(lowered: Any, options: dict[str, str | bool]) -> Any:
    """Compile a program; if XLA does not know an option, without them and with a warning."""
    # Options that XLA_FLAGS name are left to it.
    if jax.default_backend() != "gpu" or not options:
        return lowered.compile()
    flags = os.environ.get("XLA_FLAGS", "")
    try:
        return lowered.compile({x: y for x, y in options.items() if x not in flags})
    except jax.errors.JaxRuntimeError as error:
        warnings.warn(f"updates do not run as one GPU graph and are slower: {error}", stacklevel=2)
        return lowered.compile()


def x64_enabled() -> bool:
    """Return whether numbers have 64 bits, which may hold in this thread only."""
    settings: Any = jax.config
    return bool(settings.jax_enable_x64)


def run_compiled(program: Future[Any], x64: bool, *args: Any) -> LearnerState:
    """Run a program and wait; x64 is `x64_enabled()` where it was traced."""
    with jax.enable_x64(x64):
        learners: LearnerState = program.result()(*args)
    for leaf in jax.tree.leaves(learners.metrics):
        leaf.block_until_ready()
    return learners


def _update_fleet(
    update: Any, data: Data, learners: LearnerState, who: Any, stride: int
) -> LearnerState:
    return cast(LearnerState, update(data, learners, who[0], stride))


def _update_part(
    update: Any, data: Data, learners: LearnerState, who: Any, stride: int
) -> LearnerState:
    group, place = who
    part = jax.tree.map(lambda x: x[group.member], learners)
    part = update(data, part, group, stride)
    return cast(LearnerState, scatter(learners, place, part))


def scatter(fleet: Any, place: Array, part: Any) -> Any:
    """Return `fleet` with rows of `part` at `place` [K]; rows beyond its end are dropped."""
    return jax.tree.map(lambda x, new: x.at[place].set(new, mode="drop"), fleet, part)


def act(agent: Agent, policies: Any, keys: Array, obs: Array, steps: Array, warm: Array) -> Array:
    """Return actions of all members, uniform ones where `warm` does not hold yet."""

    def one(policy: Any, key: Array, obs: Array, step: Array, warm: Array) -> Array:
        k_noise, k_uniform = jax.random.split(step_key(key, Purpose.ACT, step))
        action = agent.explore(policy, obs, agent.action_noise(k_noise))
        uniform = jax.random.uniform(k_uniform, action.shape, minval=-1, maxval=1)
        return jnp.where(warm, action, uniform.astype(action.dtype))

    return jax.vmap(one)(policies, keys, obs, steps, warm)


def store(stores: Stores, member: Array, packed: Array, count: Array) -> Stores:
    """Store the first `count` of several steps, one after the other."""
    # Members are [T, K], and may occur twice; packed holds the fields of `Transition` side by side.
    if len(member) == 1:
        return _store_step(stores, member[0], packed[0])

    def one(step: Array, stores: Stores) -> Stores:
        return _store_step(stores, member[step], packed[step])

    return cast(Stores, jax.lax.fori_loop(0, count, one, stores))


def _store_step(stores: Stores, member: Array, packed: Array) -> Stores:
    rows, newest, priorities = stores
    actions, obs = rows.action.shape[-1], rows.obs.shape[-1]
    ends = np.cumsum([actions, 1, 1, 1, obs, obs])
    fields = jnp.split(packed, ends, axis=1)
    action, reward, terminated, ended, next_obs, first, lost = fields
    transition = Transition(
        action=action,
        reward=reward[:, 0],
        terminated=terminated[:, 0] > 0,
        ended=ended[:, 0] > 0,
        next_obs=next_obs,
        obs=first,
        lost=lost[:, 0] > 0,
    )
    replay = buffer.add(Replay(rows, priorities, newest), member, transition)
    return replay.rows, replay.newest, replay.priorities


def checkpoint_policies(agent: Agent, learners: LearnerState, chosen: Array) -> LearnerState:
    """Copy the behavior policies of the chosen [S] to their policy checkpoints."""
    new = jax.vmap(agent.checkpoint_policy)(learners.state)
    return learners._replace(state=select(chosen, new, learners.state))


def flops_of(jaxpr: Jaxpr) -> float:
    """Return the floating-point operations of a program's matrix products."""
    # They are counted as JAX traced them: on a GPU the compiler replaces products by library calls,
    # whose cost it does not know. Other operations are about 1 %. Unused results are not counted,
    # and a loop of unknown length counts once.
    total, used = 0.0, _variables(jaxpr.outvars)
    for equation in reversed(jaxpr.eqns):
        if not used.isdisjoint(equation.outvars):
            used |= _variables(equation.invars)
            total += _equation_flops(equation)
    return total


def _variables(atoms: Iterable[Any]) -> set[Any]:
    return {atom for atom in atoms if not isinstance(atom, Literal)}


def _equation_flops(equation: Any) -> float:
    if equation.primitive.name == PRODUCT:
        return _product_flops(equation)
    inner = [flops_of(x) for x in inner_jaxprs(equation)]
    if equation.primitive.name == "cond":
        return max(inner)
    return float(equation.params.get("length", 1)) * sum(inner)


def largest_product(jaxpr: Jaxpr) -> float:
    """Return the operations of the largest product of a program, 0 if it has none."""
    sizes = [0.0]
    for equation in jaxpr.eqns:
        if equation.primitive.name == PRODUCT:
            sizes.append(_product_flops(equation))
        sizes += [largest_product(x) for x in inner_jaxprs(equation)]
    return max(sizes)


def _product_flops(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    summed = math.prod(left[axis] for axis in contracted)
    return 2.0 * float(math.prod(equation.outvars[0].aval.shape) * summed)


def inner_jaxprs(equation: Any) -> list[Jaxpr]:
    """Return the programs inside an equation: bodies of loops, branches and calls."""
    return [x for value in equation.params.values() for x in _jaxprs(value)]


def _jaxprs(value: Any) -> list[Jaxpr]:
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, Jaxpr):
        return [value]
    parts = value if isinstance(value, list | tuple) else []
    return [x for part in parts for x in _jaxprs(part)]
