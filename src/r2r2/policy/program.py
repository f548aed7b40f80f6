"""A function of arrays as a list of NumPy operations.

`compute.policy_tracing` traces an agent's policy once. Worker processes then run it on
observations without JAX, whose import and calls take longer than the policy itself.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Value = NDArray[Any]


class Operation(NamedTuple):
    """One operation; values are numbered."""

    name: str
    inputs: tuple[int, ...]
    output: int
    settings: Mapping[str, Any] = {}


class Program(NamedTuple):
    """A traced function of parameters and inputs with one output.

    Values 0 to `parameters` - 1 are the parameters, the next `inputs` are the inputs, and the
    constants follow. Every operation adds one value.
    """

    parameters: int
    inputs: int
    constants: tuple[Value, ...]
    operations: tuple[Operation, ...]
    output: int


def _matmul(left: Value, right: Value, *, dims: Any) -> Value:
    (left_axes, right_axes), (left_batch, _) = dims
    if not left_batch and left_axes == (left.ndim - 1,) and right_axes == (0,):
        return left @ right if right.ndim == 2 else np.tensordot(left, right, 1)
    if left_batch:
        raise NotImplementedError("batched products")
    return np.tensordot(left, right, (left_axes, right_axes))


def _select(which: Value, *cases: Value) -> Value:
    if len(cases) == 2:
        return np.where(which, cases[1], cases[0])
    return np.choose(which, cases)


def _broadcast(x: Value, *, shape: Any, dims: Any) -> Value:
    expanded = [1] * len(shape)
    for axis, dim in enumerate(dims):
        expanded[dim] = x.shape[axis]
    return np.broadcast_to(x.reshape(expanded), shape)


def _broadcast_rows(x: Value, *, shape: Any, dims: Any) -> Value:
    """Broadcast each row of a batch."""
    return _broadcast(x, shape=(len(x), *shape), dims=(0, *(dim + 1 for dim in dims)))


def _expand_rows(x: Value, *, axes: int) -> Value:
    """Insert axes of length 1 after the batch axis."""
    return x.reshape(len(x), *[1] * axes, *x.shape[1:])


def _rows_like(x: Value, like: Value) -> Value:
    """Repeat a value for each row of a batch."""
    return np.broadcast_to(x, (len(like), *np.shape(x)))


def _einsum(*operands: Value, equation: str) -> Value:
    result: Value = np.einsum(equation, *operands)
    return result


def _power(x: Value, *, y: int) -> Value:
    return x * x if y == 2 else x**y


def _concatenate(*parts: Value, axis: int) -> Value:
    return np.concatenate(parts, axis)


def _slice(x: Value, *, start: Any, limit: Any, strides: Any) -> Value:
    steps = strides or [1] * len(start)
    return x[tuple(slice(*bounds) for bounds in zip(start, limit, steps, strict=True))]


def _divide(left: Value, right: Value) -> Value:
    if np.issubdtype(left.dtype, np.floating):
        return np.divide(left, right)
    return np.trunc(np.divide(left, right)).astype(left.dtype)


# NumPy functions of JAX's operations, by their names in a jaxpr.
FUNCTIONS: dict[str, Callable[..., Value]] = {
    "abs": np.abs,
    "add": np.add,
    "add_any": np.add,
    "and": np.logical_and,
    "broadcast_in_dim": _broadcast,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "concatenate": _concatenate,
    "convert_element_type": lambda x, *, dtype: x.astype(dtype),
    "cos": np.cos,
    "div": _divide,
    "dot_general": _matmul,
    "eq": np.equal,
    "exp": np.exp,
    "expm1": np.expm1,
    "floor": np.floor,
    "ge": np.greater_equal,
    "gt": np.greater,
    "integer_pow": _power,
    "le": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.logical_not,
    "or": np.logical_or,
    "pow": np.power,
    "reduce_max": lambda x, *, axes: x.max(axes),
    "reduce_min": lambda x, *, axes: x.min(axes),
    "reduce_sum": lambda x, *, axes: x.sum(axes),
    "reshape": lambda x, *, shape: x.reshape(shape),
    "rem": np.fmod,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "select_n": _select,
    "sign": np.sign,
    "sin": np.sin,
    "slice": _slice,
    "sqrt": np.sqrt,
    "square": np.square,
    "squeeze": lambda x, *, shape: x.reshape(shape),
    "sub": np.subtract,
    "tanh": np.tanh,
    "transpose": lambda x, *, axes: x.transpose(axes),
    # Of batches only; `batching.batch_program` makes them.
    "broadcast_rows": _broadcast_rows,
    "einsum": _einsum,
    "expand_rows": _expand_rows,
    "rows_like": _rows_like,
}


class BoundProgram:
    """A program with its parameters; a call takes the inputs and returns the output.

    Operations on parameters alone run once, when the program is bound.
    """

    def __init__(self, program: Program, parameters: Sequence[Value]):
        self._first_input = program.parameters
        self._inputs, self._output = program.inputs, program.output
        size = program.output + 1
        for operation in program.operations:
            size = max(size, operation.output + 1)
        self._values: list[Any] = [None] * size
        first = program.parameters + program.inputs
        self._values[: program.parameters] = parameters
        self._values[first : first + len(program.constants)] = program.constants
        depends = set(range(program.parameters, first))
        self._steps: list[tuple[Callable[..., Value], tuple[int, ...], int]] = []
        for operation in program.operations:
            step = _function(operation), operation.inputs, operation.output
            if depends.isdisjoint(operation.inputs):
                self._run([step])
            else:
                depends.add(operation.output)
                self._steps.append(step)

    def __call__(self, *inputs: Value) -> Value:
        """Return the output for the inputs, which must have the traced shapes and types."""
        first = self._first_input
        self._values[first : first + self._inputs] = inputs
        self._run(self._steps)
        result: Value = self._values[self._output]
        return result

    def _run(self, steps: list[tuple[Callable[..., Value], tuple[int, ...], int]]) -> None:
        values = self._values
        for function, inputs, output in steps:
            values[output] = function(*[values[index] for index in inputs])


def _function(operation: Operation) -> Callable[..., Value]:
    function = FUNCTIONS[operation.name]
    return partial(function, **operation.settings) if operation.settings else function
