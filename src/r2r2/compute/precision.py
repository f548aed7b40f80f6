"""The precision of matrix products, and 16-bit operands for hypersphere layers.

A product of a few hundred rows is bound by memory. TF32, in which a GPU multiplies 32-bit operands,
keeps ten binary digits of each; float16 keeps as many in half the bytes, but has less range.
Weights and features on the unit sphere need little range, and fixed factors move features and
gradients to where float16 has most of it. Finite operands beyond its range are clipped and counted;
infinities and NaN stay as they are. Sums and results have the type of the kernel.

With `mixed`, the update loop carries a 16-bit copy beside every large weight: products
read the copy, and the optimizer writes it together with the weight.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeGuard, TypeVar, cast

import jax
import jax.numpy as jnp

from r2r2.agents.base import Agent, Array
from r2r2.agents.networks.hypersphere import UnitLinear, is_unit
from r2r2.agents.networks.layers import with_kernel
from r2r2.agents.optimizer import OptState, is_opt_state
from r2r2.compute.adam_kernel import available
from r2r2.compute.fast_ops import concat_and_pad

Tree = TypeVar("Tree")

# Names of JAX's matmul precisions; on a CPU all of them compute in float32.
MATMUL_PRECISION = {"float32": "highest", "tf32": "tensorfloat32", "mixed": "default"}
FP16 = jnp.float16
MAX = 65504.0  # its largest finite number
FEATURE_SCALE = 2.0**6  # full digits from 1e-6 to 1,023; hidden ones average 6e-4
GRADIENT_SCALE = 2.0**14  # full digits from 4e-9 to 4; those seen average 1e-6 to 7e-5
MIN_ENTRIES = 2**17  # of a kernel whose products gain by 16 bits


def matmul_precision(precision: str) -> AbstractContextManager[None]:
    """Trace products in a precision, regardless of JAX's own setting."""
    context: Any = jax.default_matmul_precision(MATMUL_PRECISION[precision])
    return cast("AbstractContextManager[None]", context)


def apply_precision(agent: Agent, precision: str) -> Agent:
    """Return an agent that acts and evaluates in a precision."""

    def wrap(function: Any) -> Any:
        def traced(*args: Any) -> Any:
            with matmul_precision(precision):
                return function(*args)

        return function and traced

    names = "explore", "greedy", "value", "encode"
    return agent._replace(**{name: wrap(getattr(agent, name)) for name in names})


class ComputeOptions(NamedTuple):
    """How programs are compiled."""

    fast: bool = True  # apply what exists only for speed
    precision: str = "tf32"

    @property
    def fp16(self) -> bool:
        """Whether suitable layers get 16-bit operands."""
        return self.fast and self.precision == "mixed"


DEFAULT_OPTIONS = ComputeOptions()


def suits(layer: UnitLinear) -> bool:
    """Return whether a layer gets 16-bit operands: large, bounded and on a GPU."""
    *_, rows, columns = layer.kernel.shape
    single = layer.kernel.dtype.itemsize == 4
    return rows * columns >= MIN_ENTRIES and layer.bounded and single and available()


@jax.custom_vjp
def fp16_matmul(x: Array, kernel: Array, kernel16: Array, counter: Array) -> Array:
    """Map features [..., in] by the 16-bit copy of a kernel [in, out]."""
    # The kernel is an argument for its gradient only. The "gradient" of the counter, a number of
    # any value, is how many features and output gradients were clipped.
    return _forward(x, kernel, kernel16, counter)[0]


def _forward(
    x: Array, kernel: Array, kernel16: Array, _: Array
) -> tuple[Array, tuple[Array, Array]]:
    features = to_fp16(x, FEATURE_SCALE)
    y = _product("...i,io->...o", features, kernel16, kernel.dtype)
    return y / FEATURE_SCALE, (features, kernel16)


def _backward(saved: tuple[Array, Array], dy: Array) -> tuple[Any, ...]:
    features, kernel16 = saved
    grads = to_fp16(dy, GRADIENT_SCALE)
    dx = _product("...o,io->...i", grads, kernel16, dy.dtype)
    dk = _product("...i,...o->io", features, grads, dy.dtype)
    clipped = sum(jnp.sum(jnp.abs(x) == MAX, dtype=dy.dtype) for x in (features, grads))
    return dx / GRADIENT_SCALE, dk / (FEATURE_SCALE * GRADIENT_SCALE), None, clipped


fp16_matmul.defvjp(_forward, _backward)


def to_fp16(x: Array, factor: float) -> Array:
    """Return x times a factor in 16 bits; only finite numbers are clipped."""
    limit = MAX / factor
    clipped = jnp.where(jnp.isinf(x), x, jnp.clip(x, -limit, limit))
    return (clipped * factor).astype(FP16)


def _product(axes: str, x: Array, y: Array, dtype: Any) -> Array:
    return jnp.einsum(axes, x, y, preferred_element_type=dtype)


_counter: ContextVar[Array | None] = ContextVar("counter", default=None)


@contextlib.contextmanager
def counting(counter: Array) -> Iterator[None]:
    """Have products count clipped operands as the gradient of `counter`."""
    token = _counter.set(counter)
    try:
        yield
    finally:
        _counter.reset(token)


class Fp16UnitLinear(UnitLinear):
    """A `UnitLinear` with a 16-bit copy of its kernel, which needs no factor: entries are <= 1."""

    kernel16: Array

    def __init__(self, layer: UnitLinear, kernel16: Array | None = None):
        self.kernel, self.bounded = layer.kernel, layer.bounded
        self.kernel16 = layer.kernel.astype(FP16) if kernel16 is None else kernel16

    def __call__(self, *parts: Array) -> Array:
        """Map [..., in], which may be given in parts, to [..., out]."""
        x, counter = concat_and_pad(parts, self.kernel), _counter.get()
        zero = jnp.zeros((), self.kernel.dtype) if counter is None else counter
        return fp16_matmul(x, self.kernel, self.kernel16, zero)


def remove_copies(tree: Tree) -> Tree:
    """Return networks without 16-bit copies."""
    return _map_units(_bare, tree)


def lend_copies(tree: Tree, owner: Tree) -> Tree:
    """Return networks that read the 16-bit copies of another tree."""
    return _map_units(
        lambda x, y: Fp16UnitLinear(x, y.kernel16) if _has_copy(y) else x, tree, owner
    )


def renew_copies(tree: Tree, like: Tree) -> Tree:
    """Return networks with new 16-bit copies where those of another tree have some."""
    return _map_units(lambda x, y: Fp16UnitLinear(x) if _has_copy(y) else x, tree, like)


class CountingState(NamedTuple):
    """An optimizer's state, and operands clipped in the steps it has taken."""

    opt_state: OptState
    clipped: Array


def uses_fp16(state: Any) -> bool:
    """Return whether `add_copies` would add a copy to an agent's state."""
    nodes = jax.tree.leaves(state, is_leaf=_is_part)
    return any(is_unit(node) and suits(node) for node in nodes)


def add_copies(state: Any) -> Any:
    """Return an agent's state with 16-bit copies of weights, and counters of clipped operands."""
    if not uses_fp16(state):
        return state

    def add(node: Any) -> Any:
        if is_opt_state(node):
            return CountingState(node, jnp.zeros_like(node[0].count, dtype=float))
        return Fp16UnitLinear(node) if is_unit(node) and suits(node) else node

    return jax.tree.map(add, state, is_leaf=_is_part)


def drop_copies(state: Any) -> tuple[Any, Array | None]:
    """Undo `add_copies`; also return the operands clipped meanwhile, if counted."""
    counts: list[Array] = []

    def drop(node: Any) -> Any:
        if isinstance(node, CountingState):
            counts.append(node.clipped)
            return node.opt_state
        return _bare(node) if is_unit(node) else node

    bare = jax.tree.map(drop, state, is_leaf=_is_part)
    return bare, sum(counts[1:], counts[0]) if counts else None


def _is_part(node: object) -> bool:
    return is_unit(node) or is_opt_state(node) or isinstance(node, CountingState)


def _has_copy(layer: object) -> TypeGuard[Fp16UnitLinear]:
    return isinstance(layer, Fp16UnitLinear)


def _bare(layer: UnitLinear) -> UnitLinear:
    if not _has_copy(layer):
        return layer
    return cast(UnitLinear, with_kernel(UnitLinear(1, 1, layer.bounded), layer.kernel))


def _map_units(function: Callable[..., UnitLinear], *trees: Tree) -> Tree:
    """Map a function over the `UnitLinear` layers of trees of the same networks."""

    def visit(node: Any, *others: Any) -> Any:
        return function(node, *others) if is_unit(node) else node

    return cast(Tree, jax.tree.map(visit, *trees, is_leaf=is_unit))
