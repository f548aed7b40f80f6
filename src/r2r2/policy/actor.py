"""Actions in NumPy: of a policy, and uniformly random ones."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.policy.program import BoundProgram, Program, Value

NO_NOISE = np.zeros(0, np.float32)
BLOCK = 64  # steps whose numbers are drawn at once


class UniformActions:
    """Random actions of one member: functions of (seed, decision step)."""

    def __init__(self, seed: int, size: int):
        self._seed, self._size = seed, size
        self._number, self._block = -1, np.zeros((0, size), np.float32)  # the newest

    def __call__(self, step: int) -> NDArray[np.float32]:
        """Return numbers in [-1, 1), [size]."""
        number, row = divmod(step, BLOCK)
        if number != self._number:
            bits = np.random.Philox(key=self._seed, counter=[0, number, 0, 0])
            block = np.random.Generator(bits).uniform(-1, 1, (BLOCK, self._size))
            self._number, self._block = number, block.astype(np.float32)
        action: NDArray[np.float32] = self._block[row]
        return action


class PolicySpec(NamedTuple):
    """A policy's program, and the shapes and types of its parameters.

    With `normalizes` the last two are float64 [obs], mean and deviation of the
    observations, which are normalized before the program sees them.
    """

    program: Program
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    dtype: str  # of the program's inputs
    normalizes: bool = False
    noise: tuple[tuple[int, ...], ...] = ()  # shapes of the noise that the program takes

    @property
    def nbytes(self) -> int:
        """Size of all parameters."""
        return sum(_aligned(*pair) for pair in zip(self.shapes, self.dtypes, strict=True))

    def views(self, memory: NDArray[np.uint8]) -> list[Value]:
        """Return the parameters that lie in `memory`, [nbytes], without a copy."""
        views, begin = list[Value](), 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            views.append(np.ndarray(shape, dtype, memory[begin:].data))
            begin += _aligned(shape, dtype)
        return views

    def write(self, memory: NDArray[np.uint8], parameters: Sequence[Value]) -> None:
        """Copy parameters into `memory`, [nbytes]."""
        for view, parameter in zip(self.views(memory), parameters, strict=True):
            view[...] = parameter


def _aligned(shape: tuple[int, ...], dtype: str) -> int:
    """Return the bytes of an array, rounded up to a cache line."""
    return -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 64) * 64


class Actor:
    """A policy with its parameters: returns actions for observations."""

    def __init__(self, spec: PolicySpec, parameters: Sequence[Value]):
        self._scales: list[Value] = []  # mean and deviation of observations
        if spec.normalizes:
            parameters, self._scales = parameters[:-2], list(parameters[-2:])
        self._program = BoundProgram(spec.program, parameters)
        self._dtype, self._noise = np.dtype(spec.dtype), spec.noise

    def __call__(
        self, obs: NDArray[np.float64], noise: NDArray[np.floating] = NO_NOISE
    ) -> NDArray[np.floating]:
        """Return the action for one observation; `noise` is flat, for policies that explore."""
        if self._scales:
            mean, deviation = self._scales
            obs = (obs - mean) / deviation
        inputs, begin = [obs.astype(self._dtype)], 0
        for shape in self._noise:
            end = begin + math.prod(shape)
            inputs.append(noise[begin:end].reshape(shape).astype(self._dtype))
            begin = end
        with np.errstate(all="ignore"):
            return self._program(*inputs)
