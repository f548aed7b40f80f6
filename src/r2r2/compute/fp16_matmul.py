"""Products of 16-bit operands, for weights and features on the unit sphere.

A product of a few hundred rows is bound by what it reads. TF32, in which a GPU
multiplies 32 bits, keeps ten binary digits of an operand, and so does float16, in half
the bytes; what it lacks is range. What is on the sphere needs little of it, and fixed
factors put features and gradients where there is most; what is larger still is taken
for the largest there is. Sums and results have the type of the kernel.
"""

from typing import Any

import jax
import jax.numpy as jnp

from r2r2.agents.base import Array

HALF = jnp.float16
MOST = 65504.0  # its largest number
FEATURES = 2.0**6  # all digits from 1e-6 to 1,023; hidden ones are 6e-4 in the mean
SLOPES = 2.0**14  # all digits from 4e-9 to 4; those seen are 1e-6 to 7e-5 in the mean


@jax.custom_vjp
def fp16_matmul(x: Array, kernel: Array, half: Array) -> Array:
    """Maps features [..., in] by a kernel [in, out], given in 16 bits too.

    It is the 16 bits that are read; the kernel is there for its gradient.

    Example:
        >>> x, kernel = jnp.array([0.6, 0.8]), jnp.array([[0.8], [0.6]])
        >>> round(float(fp16_matmul(x, kernel, kernel.astype(HALF))[0]), 3)
        0.96
    """
    return _half_product(x, kernel, half)[0]


def _half_product(x: Array, kernel: Array, half: Array) -> tuple[Array, Any]:
    features = in_half(x, FEATURES)
    y = _multiplied("...i,io->...o", features, half, kernel.dtype)
    return y / FEATURES, (features, half)


def _derivatives(kept: tuple[Array, Array], dy: Array) -> tuple[Any, ...]:
    features, half = kept
    slopes = in_half(dy, SLOPES)
    dx = _multiplied("...o,io->...i", slopes, half, dy.dtype)
    dk = _multiplied("...i,...o->io", features, slopes, dy.dtype)
    return dx / SLOPES, dk / (FEATURES * SLOPES), None


fp16_matmul.defvjp(_half_product, _derivatives)


def in_half(x: Array, factor: float) -> Array:
    """In 16 bits, times a factor; what is beyond their range is put at its end.

    Example:
        >>> in_half(jnp.array([0.5, 2e6]), 2.0).tolist()
        [1.0, 65504.0]
    """
    return jnp.clip(x * factor, -MOST, MOST).astype(HALF)


def _multiplied(axes: str, x: Array, y: Array, dtype: Any) -> Array:
    return jnp.einsum(axes, x, y, preferred_element_type=dtype)
