"""Actions in NumPy: of a policy, and uniformly random ones."""

import copy
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.policy.program import BoundProgram, Program, Value, used_parameters

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

    Parameters that the program does not use take no memory. With `normalizes` the last two
    are float64 [obs], mean and deviation of the observations, which are normalized before the
    program sees them.
    """

    program: Program
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    dtype: str  # of the program's inputs
    normalizes: bool = False
    noise: tuple[tuple[int, ...], ...] = ()  # shapes of the noise that the program takes

    @property
    def used(self) -> tuple[bool, ...]:
        """Which parameters the program or the normalization uses."""
        used = used_parameters(self.program)
        return used + (True,) * (len(self.shapes) - len(used))

    @property
    def nbytes(self) -> int:
        """Size of all parameters that are used."""
        return sum(_aligned(shape, dtype) for shape, dtype in self._in_memory())

    def _in_memory(self) -> list[tuple[tuple[int, ...], str]]:
        """Return the shape and type of each parameter in memory; unused ones have no numbers."""
        parts = zip(self.shapes, self.dtypes, self.used, strict=True)
        return [(shape if used else (0,), dtype) for shape, dtype, used in parts]

    def views(self, memory: NDArray[np.uint8]) -> list[Value]:
        """Return the parameters that lie in `memory`, [nbytes], without a copy."""
        views, begin = list[Value](), 0
        for shape, dtype in self._in_memory():
            size = _aligned(shape, dtype)
            views.append(np.ndarray(shape, dtype, memory[begin : begin + size].data))
            begin += size
        return views

    def write(self, memory: NDArray[np.uint8], parameters: Sequence[Value]) -> None:
        """Copy the parameters that are used into `memory`, [nbytes]."""
        parts = zip(self.views(memory), parameters, self.used, strict=True)
        for view, parameter, used in parts:
            if used:
                view[...] = parameter


def _aligned(shape: tuple[int, ...], dtype: str) -> int:
    """Return the bytes of an array, rounded up to a cache line."""
    return -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 64) * 64


class Actor:
    """A policy with its parameters: returns actions for observations."""

    def __init__(self, spec: PolicySpec, parameters: Sequence[Value]):
        self._normalizes = spec.normalizes
        parameters, self._scales = self._split(parameters)
        self._program = BoundProgram(spec.program, parameters)
        self._dtype = np.dtype(spec.dtype)
        ends = list(itertools.accumulate(map(math.prod, spec.noise), initial=0))
        self._noise = [
            (slice(*bounds), shape)
            for bounds, shape in zip(itertools.pairwise(ends), spec.noise, strict=True)
        ]

    def with_parameters(self, parameters: Sequence[Value]) -> "Actor":
        """Return the same policy with other parameters."""
        other = copy.copy(self)
        parameters, other._scales = self._split(parameters)
        other._program = self._program.with_parameters(parameters)
        return other

    def _split(self, parameters: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Value]]:
        """Return the parameters of the program, and mean and deviation of the observations."""
        end = len(parameters) - 2 * self._normalizes
        return parameters[:end], parameters[end:]

    def __call__(
        self, obs: NDArray[np.float64], noise: NDArray[np.floating] = NO_NOISE
    ) -> NDArray[np.floating]:
        """Return the action for one observation; `noise` is flat, for policies that explore."""
        if self._normalizes:
            mean, deviation = self._scales
            obs = (obs - mean) / deviation
        inputs = [obs.astype(self._dtype)]
        for part, shape in self._noise:
            inputs.append(noise[part].reshape(shape).astype(self._dtype, copy=False))
        with np.errstate(all="ignore"):
            return self._program(*inputs)
