"""Programs of batches, made from programs of single observations."""

import string
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from r2r2.policy.program import FUNCTIONS, Operation, Program, Value

# Operations that work on each element; NumPy broadcasts their operands.
ELEMENTWISE = {
    *("abs", "add", "add_any", "and", "clamp", "convert_element_type", "cos", "div", "eq", "exp"),
    *("expm1", "floor", "ge", "gt", "integer_pow", "le", "log", "log1p", "logistic", "lt", "max"),
    *("min", "mul", "ne", "neg", "not", "or", "pow", "rem", "rsqrt", "select_n", "sign", "sin"),
    *("sqrt", "square", "sub", "tanh"),
}


def program_values(
    program: Program, parameters: Sequence[Value], inputs: Sequence[Value]
) -> list[Value]:
    """Return every value of a program for some inputs, by number."""
    values = [*parameters, *inputs, *program.constants]
    with np.errstate(all="ignore"):
        for operation in program.operations:
            operands = (values[index] for index in operation.inputs)
            values.append(np.asarray(FUNCTIONS[operation.name](*operands, **operation.settings)))
    return values


def batch_program(program: Program, parameters: Sequence[Value], *inputs: Value) -> Program:
    """Return a program that maps a batch of any size in one pass.

    Its inputs and its output have a leading batch axis; its parameters are those of `program`.
    Results differ from those of single rows by rounding only.

    Args:
        program: a program of single inputs.
        parameters: its parameters, which give their shapes.
        inputs: one example of each input, which gives its shape and type.

    Raises:
        NotImplementedError: An operation cannot be batched.

    Example:
        >>> double = Program(0, 1, (np.float32(2),), (Operation("mul", (0, 1), 2),), 2)
        >>> batched = batch_program(double, (), np.zeros(3, np.float32))
        >>> program_values(batched, (), [np.ones((4, 3), np.float32)])[-1].shape
        (4, 3)
    """
    return _Batcher(program, program_values(program, parameters, inputs)).program()


class _Batcher:
    """Rewrites operations one by one; values that depend on an input get a batch axis."""

    def __init__(self, program: Program, values: list[Value]):
        self._old = program
        self._ndim = [value.ndim for value in values]  # of single rows
        first = program.parameters + program.inputs
        self._operations: list[Operation] = []
        self._number = list(range(first + len(program.constants)))  # new numbers of old values
        self._batched = set(range(program.parameters, first))  # old numbers
        self._next = len(self._number)

    def program(self) -> Program:
        """Return the program of batches."""
        for operation in self._old.operations:
            if self._batched.isdisjoint(operation.inputs):
                new = self._add(operation.name, self._numbers(operation), **operation.settings)
            else:
                new = self._add_batched(operation)
                self._batched.add(operation.output)
            self._number.append(new)
        output = self._rows(self._old.output, self._old.parameters)
        return self._old._replace(operations=tuple(self._operations), output=output)

    def _add(self, name: str, inputs: Sequence[int], **settings: Any) -> int:
        self._operations.append(Operation(name, tuple(inputs), self._next, settings))
        self._next += 1
        return self._next - 1

    def _numbers(self, operation: Operation) -> list[int]:
        return [self._number[index] for index in operation.inputs]

    def _rows(self, value: int, like: int) -> int:
        """Return the new number of a value with a batch axis: repeated, if it has none."""
        if value in self._batched:
            return self._number[value]
        return self._add("rows_like", [self._number[value], self._number[like]])

    def _add_batched(self, operation: Operation) -> int:
        name, settings = operation.name, operation.settings
        if name in ELEMENTWISE:
            return self._add(name, self._aligned(operation), **settings)
        if name == "dot_general":
            return self._add_product(operation)
        if name == "concatenate":
            like = next(x for x in operation.inputs if x in self._batched)
            parts = [self._rows(value, like) for value in operation.inputs]
            return self._add(name, parts, axis=settings["axis"] + 1)
        if name not in SHIFTED:
            raise NotImplementedError(f"policy: the operation {name!r} cannot be batched")
        new, shift = SHIFTED[name]
        return self._add(new, self._numbers(operation), **shift(settings))

    def _aligned(self, operation: Operation) -> list[int]:
        """Return operands whose trailing axes NumPy aligns as those of single rows."""
        ndim = max(self._ndim[index] for index in operation.inputs)
        numbers = self._numbers(operation)
        for place, index in enumerate(operation.inputs):
            missing = ndim - self._ndim[index]
            if index in self._batched and missing:
                numbers[place] = self._add("expand_rows", [numbers[place]], axes=missing)
        return numbers

    def _add_product(self, operation: Operation) -> int:
        (left_axes, right_axes), (batch, _) = operation.settings["dims"]
        left, right = operation.inputs
        if batch:
            raise NotImplementedError("batched products")
        if right not in self._batched:
            dims = ((tuple(x + 1 for x in left_axes), tuple(right_axes)), ((), ()))
            return self._add("dot_general", self._numbers(operation), dims=dims)
        letters = iter(string.ascii_lowercase[:-1])
        left_term = [next(letters) for _ in range(self._ndim[left])]
        right_term = [next(letters) for _ in range(self._ndim[right])]
        for a, b in zip(left_axes, right_axes, strict=True):
            right_term[b] = left_term[a]
        free = [x for n, x in enumerate(left_term) if n not in left_axes]
        free += [x for n, x in enumerate(right_term) if n not in right_axes]
        first = "z" if left in self._batched else ""
        equation = f"{first}{''.join(left_term)},z{''.join(right_term)}->z{''.join(free)}"
        return self._add("einsum", self._numbers(operation), equation=equation)


def _shift_axes(settings: Any) -> dict[str, Any]:
    return {"axes": tuple(axis + 1 for axis in settings["axes"])}


def _row_shape(settings: Any) -> dict[str, Any]:
    return {"shape": (-1, *settings["shape"])}


def _shift_slice(settings: Any) -> dict[str, Any]:
    start, limit, strides = (settings[x] for x in ("start", "limit", "strides"))
    steps = strides or (1,) * len(start)
    return {"start": (0, *start), "limit": (None, *limit), "strides": (1, *steps)}


# Operations whose settings name axes or shapes: their batched operation and its settings.
SHIFTED: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "broadcast_in_dim": ("broadcast_rows", dict),
    "reduce_max": ("reduce_max", _shift_axes),
    "reduce_min": ("reduce_min", _shift_axes),
    "reduce_sum": ("reduce_sum", _shift_axes),
    "reshape": ("reshape", _row_shape),
    "slice": ("slice", _shift_slice),
    "squeeze": ("reshape", _row_shape),
    "transpose": ("transpose", lambda x: {"axes": (0, *(axis + 1 for axis in x["axes"]))}),
}
