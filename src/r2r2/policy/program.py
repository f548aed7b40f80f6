"""A function of arrays as a list of NumPy operations.

`compute.policy_tracing` traces an agent's policy once. Worker processes then run it on
observations without JAX, whose import and calls take longer than the policy itself.
"""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
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


VECTOR_TIMES_MATRIX = ((0,), (0,)), ((), ())  # the settings of such a product


def used_parameters(program: Program) -> tuple[bool, ...]:
    """Return which parameters some operation, or the output, reads."""
    used = {index for operation in program.operations for index in operation.inputs}
    return tuple(index in used | {program.output} for index in range(program.parameters))


def _matmul(left: Value, right: Value, *, dims: Any) -> Value:
    if left.ndim == 1 and right.ndim == 2 and dims == VECTOR_TIMES_MATRIX:
        return left @ right
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
    if left.dtype.kind == "f":
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
    "reduce_sum": lambda x, *, axes, keepdims=False: np.add.reduce(x, axes, keepdims=keepdims),
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

    Operations on parameters alone run once, when the program is bound. Equal operations
    run once, and those that change nothing never. None of this changes a result.
    """

    def __init__(self, program: Program, parameters: Sequence[Value]):
        self._inputs = slice(program.parameters, program.parameters + program.inputs)
        first = self._inputs.stop
        operations, self._output = _simplified(program)
        size = max([program.output, first, *(x.output for x in program.operations)]) + 1
        self._values: list[Any] = [None] * size
        self._values[first : first + len(program.constants)] = program.constants
        depends = set(range(program.parameters, first))
        self._steps: list[_Step] = []
        self._first_steps: list[_Step] = []  # which depend on parameters alone
        for operation in operations:
            step = _function(operation), _reader(operation.inputs), operation.output
            if depends.isdisjoint(operation.inputs):
                self._first_steps.append(step)
            else:
                depends.add(operation.output)
                self._steps.append(step)
        self._bind(parameters)

    def with_parameters(self, parameters: Sequence[Value]) -> "BoundProgram":
        """Return the same program with other parameters; much faster than binding it anew."""
        other = copy.copy(self)
        other._values = self._values.copy()
        other._bind(parameters)
        return other

    def _bind(self, parameters: Sequence[Value]) -> None:
        self._values[: len(parameters)] = parameters
        for function, read, output in self._first_steps:
            self._values[output] = function(*read(self._values))

    def __call__(self, *inputs: Value) -> Value:
        """Return the output for the inputs, which must have the traced shapes and types."""
        values = self._values.copy()  # a call of its own in every thread
        values[self._inputs] = inputs
        for function, read, output in self._steps:
            values[output] = function(*read(values))
        result: Value = values[self._output]
        return result


_Step = tuple[Callable[..., Value], Callable[[list[Any]], tuple[Any, ...]], int]


def _reader(indices: tuple[int, ...]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Return a function that returns the values at some places of a list."""
    if len(indices) == 1:
        (index,) = indices
        return itemgetter(slice(index, index + 1))
    return itemgetter(*indices)


def _function(operation: Operation) -> Callable[..., Value]:
    function = FUNCTIONS[operation.name]
    return partial(function, **operation.settings) if operation.settings else function


def _simplified(program: Program) -> tuple[list[Operation], int]:
    """Return the operations that have to run, and the number of the output."""
    first = program.parameters + program.inputs
    constants = dict(enumerate(program.constants, first))
    same: dict[int, int] = {}  # values that equal an earlier one
    known: dict[Any, int] = {}
    for index, value in constants.items():
        same[index] = known.setdefault((value.dtype, value.shape, value.tobytes()), index)
    made: dict[int, Operation] = {}
    for operation in program.operations:
        inputs = tuple(same.get(index, index) for index in operation.inputs)
        operation = _without_broadcast(operation._replace(inputs=inputs), made)
        unchanged = _unchanged_operand(operation, constants)
        key = operation.name, operation.inputs, repr(operation.settings)
        same[operation.output] = known.setdefault(key, operation.output)
        if unchanged is not None:
            same[operation.output] = unchanged
        made[operation.output] = operation
    output = same.get(program.output, program.output)
    needed, kept = {output}, list[Operation]()
    for operation in reversed(made.values()):
        if operation.output in needed:
            needed |= set(operation.inputs)
            kept.insert(0, operation)
    return kept, output


def _unchanged_operand(operation: Operation, constants: Mapping[int, Value]) -> int | None:
    """Return the operand that a product with the number 1 returns."""
    if operation.name != "mul":
        return None
    for one, other in itertools.permutations(operation.inputs):
        value = constants.get(one)
        if value is not None and value.ndim == 0 and value.dtype.kind == "f" and value == 1:
            return other
    return None


def _without_broadcast(operation: Operation, made: Mapping[int, Operation]) -> Operation:
    """Return the sum of a vector as [1] in one operation, instead of its broadcast."""
    if operation.name != "broadcast_in_dim" or operation.settings["shape"] != (1,):
        return operation
    before = made.get(operation.inputs[0])
    if before is None or before.name != "reduce_sum" or operation.settings["dims"] != ():
        return operation
    return before._replace(output=operation.output, settings={**before.settings, "keepdims": True})
