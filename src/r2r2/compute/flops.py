"""The arithmetic of a program that JAX has traced."""

import math
from collections.abc import Iterable
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

PRODUCT = "dot_general"


def flops_of(jaxpr: Jaxpr) -> float:
    """Floating-point operations of a program's matrix products.

    Counted as JAX traced them: on a GPU the compiler turns products into calls of
    libraries and no longer knows what they cost. Other operations are a hundredth of
    them. What nobody uses is left out, as the compiler does, and a loop whose turns
    are not known counts once.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> x = jnp.ones((2, 3, 4))
        >>> flops_of(jax.make_jaxpr(lambda x: x @ x.mT)(x).jaxpr)
        144.0
    """
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
    inner = [flops_of(x) for x in _within(equation)]
    if equation.primitive.name == "cond":
        return max(inner)
    return float(equation.params.get("length", 1)) * sum(inner)


def largest_product(jaxpr: Jaxpr) -> float:
    """Floating-point operations of the largest product of a program, 0 if it has none.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> x = jnp.ones((2, 3, 4))
        >>> largest_product(jax.make_jaxpr(lambda x: (x @ x.mT) @ x)(x).jaxpr)
        144.0
    """
    found = [0.0]
    for equation in jaxpr.eqns:
        if equation.primitive.name == PRODUCT:
            found.append(_product_flops(equation))
        found += [largest_product(x) for x in _within(equation)]
    return max(found)


def _product_flops(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    summed = math.prod(left[axis] for axis in contracted)
    return 2.0 * float(math.prod(equation.outvars[0].aval.shape) * summed)


def _within(equation: Any) -> list[Jaxpr]:
    return [x for value in equation.params.values() for x in _jaxprs(value)]


def _jaxprs(value: Any) -> list[Jaxpr]:
    """The programs in a parameter of an equation."""
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, Jaxpr):
        return [value]
    parts = value if isinstance(value, list | tuple) else []
    return [x for part in parts for x in _jaxprs(part)]
