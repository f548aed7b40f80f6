"""Copies of trained policies on the host, for members that act there."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal
from numpy.typing import NDArray

from r2r2.agents.base import Agent, Array


def used_inputs(jaxpr: Jaxpr) -> tuple[bool, ...]:
    """Return which inputs of a program its outputs depend on."""
    used: set[Any] = {atom for atom in jaxpr.outvars if not isinstance(atom, Literal)}
    for equation in reversed(jaxpr.eqns):
        if not used.isdisjoint(equation.outvars):
            used |= {atom for atom in equation.invars if not isinstance(atom, Literal)}
    return tuple(variable in used for variable in jaxpr.invars)


def acting_leaves(agent: Agent, policies: Any, obs_dim: int) -> tuple[bool, ...]:
    """Return which leaves of behavior policies [S, ...] the actions depend on."""
    policy = jax.eval_shape(partial(jax.tree.map, lambda leaf: leaf[0]), policies)
    noise = jax.eval_shape(agent.action_noise, jax.random.key(0))
    obs = jax.eval_shape(lambda: jnp.zeros(obs_dim))
    program = jax.make_jaxpr(agent.explore)(policy, obs, noise)
    return used_inputs(program.jaxpr)[: len(jax.tree.leaves(policy))]


def pack_leaves(leaves: Sequence[Array], who: Array) -> dict[str, Array]:
    """Return the members `who` of leaves [S, ...] as one flat array per type."""
    parts: dict[str, list[Array]] = {}
    for leaf in leaves:
        parts.setdefault(str(leaf.dtype), []).append(leaf[who].reshape(-1))
    return {dtype: jnp.concatenate(same) for dtype, same in parts.items()}


def unpack_leaves(
    packed: dict[str, NDArray[Any]], like: Sequence[NDArray[Any]], count: int
) -> list[NDArray[Any]]:
    """Return views of what `pack_leaves` returned of `count` members, in the form of `like`."""
    views, begins = list[NDArray[Any]](), dict.fromkeys(packed, 0)
    for leaf in like:
        dtype, shape = str(leaf.dtype), (count, *leaf.shape[1:])
        begin = begins[dtype]
        begins[dtype] = end = begin + int(np.prod(shape))
        views.append(packed[dtype][begin:end].reshape(shape))
    return views


class PolicyCopy:
    """Copies members of trained policies into arrays on the host.

    Only leaves that `used` selects are copied; the others keep their values, since no action
    depends on them. With `packed`, `policies` and the packing are one program on the device, and
    one transfer per type fetches its result: each transfer from an accelerator takes time, however
    short. A CPU has nothing to transfer, so packing would only copy twice (3 to 6 times as long,
    measured).

    Args:
        policies: returns the policies [S, ...] from what the fleet carries.
        used: which leaves of the policies actions depend on.
        packed: whether to pack them.
    """

    def __init__(self, policies: Callable[[Any], Any], used: Sequence[bool], packed: bool):
        self._policies, self._used, self._packed = policies, tuple(used), packed
        self._pack = jax.jit(lambda carried, who: pack_leaves(self._select(policies(carried)), who))

    def pack(self, carried: Any, who: NDArray[np.int_]) -> dict[str, Array]:
        """Return the members `who` in one flat array per type, on the device; with `packed`."""
        parts: dict[str, Array] = self._pack(carried, who)
        return parts

    def write(
        self,
        host: Any,
        parts: dict[str, NDArray[Any]],
        who: NDArray[np.int_],
        rows: Sequence[int] | slice,
    ) -> None:
        """Write some rows of the members `who` that were fetched to `host` [S, ...]."""
        targets = self._select(host)
        for target, part in zip(targets, unpack_leaves(parts, targets, len(who)), strict=True):
            target[who[rows]] = part[rows]

    def __call__(self, host: Any, carried: Any, who: NDArray[np.int_], count: int) -> None:
        """Write the first `count` of the members `who` to `host` [S, ...], in place."""
        if self._packed:
            self.write(host, jax.device_get(self.pack(carried, who)), who, slice(count))
            return
        sources = map(np.asarray, self._select(self._policies(carried)))
        for target, source in zip(self._select(host), sources, strict=True):
            for member in who[:count]:
                target[member] = source[member]

    def _select(self, tree: Any) -> list[Any]:
        pairs = zip(jax.tree.leaves(tree), self._used, strict=True)
        return [leaf for leaf, used in pairs if used]
