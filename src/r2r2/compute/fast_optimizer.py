"""Adam in few kernels, 16-bit weights included; the table of fast operations."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp

from r2r2.agents import base, optimizer
from r2r2.agents.base import Array, Replacements
from r2r2.agents.losses import representation
from r2r2.agents.networks import hypersphere, layers
from r2r2.agents.networks.hypersphere import is_unit
from r2r2.agents.networks.layers import with_kernel
from r2r2.agents.optimizer import AdamState, Loss, Optimizer, OptState, Step, advance
from r2r2.compute import adam_kernel, fast_ops
from r2r2.compute.fast_ops import barrier, column_sums, inverse_length
from r2r2.compute.loop_packing import SMALL
from r2r2.compute.precision import (
    CountingState,
    Fp16UnitLinear,
    counting,
    lend_copies,
    remove_copies,
    renew_copies,
)
from r2r2.config.common import Adam

Params = TypeVar("Params")


def minimize(
    optimizer: Optimizer,
    loss: Loss,
    params: Any,
    opt_state: OptState,
    target: Any = None,
    tau: float = 0.0,
) -> Step:
    """Take one optimizer step; gradients are those of 32-bit weights only."""

    def read_copies(bare: Any, counter: Array | None) -> tuple[Array, Any]:
        if counter is None:
            return loss(bare)
        with counting(counter):
            return loss(lend_copies(bare, params))

    bare, clipped = remove_copies(params), None
    if isinstance(opt_state, CountingState):
        zero = jnp.zeros((), opt_state.clipped.dtype)
        gradient = jax.value_and_grad(read_copies, argnums=(0, 1), has_aux=True)
        (value, aux), (grads, clipped) = gradient(bare, zero)
        total = opt_state.clipped + clipped
        opt_state = cast(Any, opt_state._replace(clipped=total))
    else:
        gradient = jax.value_and_grad(read_copies, has_aux=True)
        (value, aux), grads = gradient(bare, None)
    stepped = adam_step(optimizer, grads, opt_state, params, target, tau)
    return Step(value, aux, *stepped)


def adam_step(
    optimizer: Optimizer,
    grads: Params,
    opt_state: OptState,
    params: Params,
    target: Params | None = None,
    tau: float = 0.0,
) -> tuple[Params, OptState, Params | None]:
    """Take one step of Adam; 16-bit copies of params and target follow."""
    # Both bias corrections are folded into two numbers, which makes the step short enough for XLA
    # to fuse the steps of many small arrays into one kernel.
    if isinstance(opt_state, CountingState):
        inner = opt_state.opt_state
        params, inner, target = adam_step(optimizer, grads, inner, params, target, tau)
        return params, cast(Any, opt_state._replace(opt_state=inner)), target
    config, adam = optimizer.config, opt_state[0]
    count = adam.count + 1
    root = jnp.sqrt(1 - config.beta2**count)
    size = optimizer.rate(adam.count) * root / (1 - config.beta1**count)
    numbers = size, config.epsilon * root
    old, grads = _Parts(adam.mu, adam.nu, params, target), remove_copies(grads)
    bare = _Parts(*map(remove_copies, old))
    new = _Parts(*map(renew_copies, _by_xla(config, tau, numbers, grads, bare), old))
    if adam_kernel.available():
        # XLA drops the computations that this replaces.
        new = _by_kernels(config, tau, jnp.stack(numbers), grads, old, new)
    moments = AdamState(count, new.mu, new.nu)
    return new.params, advance(opt_state, moments), new.target


class _Parts(NamedTuple):
    """What a step changes: trees of one structure."""

    mu: Any
    nu: Any
    params: Any
    target: Any = None


def _by_xla(
    config: Adam, tau: float, numbers: tuple[Array, Array], grads: Any, old: _Parts
) -> _Parts:
    def move(new: Array, before: Array, share: float) -> Array:
        return before + share * (new - before)

    def step(leaf: Array, m: Array, v: Array) -> Array:
        size, floor = numbers
        if leaf.size > SMALL:
            # With its own numbers, or XLA fuses the steps of two kernels of one shape
            # and then has to copy the moments of one of them.
            size, floor, leaf = barrier((size, floor, leaf))
        return jnp.subtract(leaf, size * (m / (jnp.sqrt(v) + floor)))

    def project(node: Any) -> Any:
        if not is_unit(node):
            return node
        squares = column_sums(node.kernel**2)[..., None, :]
        scale = jnp.broadcast_to(inverse_length(squares), node.kernel.shape)
        return with_kernel(node, node.kernel * scale)

    mu = jax.tree.map(lambda g, m: move(g, m, 1 - config.beta1), grads, old.mu)
    nu = jax.tree.map(lambda g, v: move(g * g, v, 1 - config.beta2), grads, old.nu)
    params = jax.tree.map(step, old.params, mu, nu)
    params = jax.tree.map(project, params, is_leaf=is_unit)
    target = None if old.target is None else _average(tau, params, old.target)
    return _Parts(mu, nu, params, target)


def _by_kernels(
    config: Adam, tau: float, numbers: Array, grads: Any, old: _Parts, new: _Parts
) -> _Parts:
    """Return the new parts, large `UnitLinear` weights stepped by Pallas kernels."""

    def step(grads: Any, before: Sequence[Any], after: Sequence[Any]) -> Any:
        if not is_unit(grads) or grads.kernel.size <= SMALL:
            return after
        kernels = _transposed(node.kernel for node in (grads, *before))
        copies = _transposed(node.kernel16 for node in before if isinstance(node, Fp16UnitLinear))
        if len(copies) == 1 < len(before) - 2:
            raise ValueError("weights and their target must both have 16-bit copies, or neither")
        stepped = adam_kernel.unit_step(config, tau, numbers, kernels, copies)
        kernels, copies = map(_transposed, stepped)
        bare = [with_kernel(remove_copies(x), k) for x, k in zip(after, kernels, strict=True)]
        first = len(bare) - len(copies)
        pairs = zip(bare[first:], copies, strict=True)
        return bare[:first] + [Fp16UnitLinear(*pair) for pair in pairs]

    def nodes(tree: Any) -> list[Any]:
        return jax.tree.leaves(tree, is_leaf=is_unit)

    def by_node(parts: _Parts) -> list[tuple[Any, ...]]:
        present = (tree for tree in parts if tree is not None)
        return list(zip(*map(nodes, present), strict=True))

    steps = map(step, nodes(grads), by_node(old), by_node(new))
    structure = jax.tree.structure(grads, is_leaf=is_unit)
    fields = zip(*steps, strict=True)
    return _Parts(*(jax.tree.unflatten(structure, field) for field in fields))


def _transposed(kernels: Iterable[Array]) -> list[Array]:
    return [jnp.swapaxes(kernel, -1, -2) for kernel in kernels]


def polyak(tau: float, online: Params, target: Params) -> Params:
    """Move a target network towards the online network; 16-bit copies follow."""
    moved = _average(tau, remove_copies(online), remove_copies(target))
    return renew_copies(moved, target)


def _average(tau: float, online: Params, target: Params) -> Params:
    average: Any = jax.tree.map(lambda x, y: tau * x + (1 - tau) * y, online, target)
    return cast(Params, average)


FAST = Replacements(
    {
        base.cond: fast_ops.cond,
        base.frozen: fast_ops.frozen,
        layers.matmul: fast_ops.matmul,
        layers.expand: fast_ops.expand,
        layers.twin_values: fast_ops.twin_values,
        hypersphere.normalize: fast_ops.normalize,
        hypersphere.scale_and_normalize: fast_ops.scale_and_normalize,
        hypersphere.scaled_relu: fast_ops.scaled_relu,
        hypersphere.lerp: fast_ops.lerp,
        hypersphere.log_softmax: fast_ops.log_softmax,
        representation.correlation: fast_ops.correlation,
        optimizer.minimize: minimize,
        optimizer.adam_step: adam_step,
        optimizer.polyak: polyak,
        optimizer.global_norm: fast_ops.global_norm,
    }
)
