"""Prepare a policy's program for export: operations on parameters are computed once."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from r2r2.policy.batching import program_values
from r2r2.policy.policy import PolicyParts
from r2r2.policy.program import Operation, Program, Value


def simplify(parts: PolicyParts) -> Program:
    """Return a program without parameters that computes the same, bit for bit.

    Its only input is value 0, a normalized observation [obs]. What does not depend on it is a
    constant. Equal constants and equal operations occur once, and those that change nothing or
    that the output does not need are left out.

    Example:
        >>> from r2r2.policy.policy import ObservationPart, TaskSpaces
        >>> spaces = TaskSpaces((ObservationPart((), (2,)),), -np.ones(2), np.ones(2))
        >>> twice = Operation("add", (0, 0), 2), Operation("mul", (1, 2), 3)
        >>> program = Program(1, 1, (), twice, 3)
        >>> simple = simplify(PolicyParts(program, (np.ones(2),), "float64", spaces))
        >>> simple.constants, simple.operations
        ((array([2., 2.]),), (Operation(name='mul', inputs=(0, 1), output=2, settings={}),))
    """
    example = np.zeros(parts.spaces.obs_dim, parts.dtype)
    values = program_values(parts.program, parts.parameters, [example])
    return _Simplifier(parts.program, values).program()


class _Simplifier:
    """Collects the operations that depend on the input."""

    def __init__(self, program: Program, values: Sequence[Value]):
        self._old, self._values = program, values
        self._same: dict[Any, int] = {}  # first old number of equal values, by their definition
        # Of every old value, the equal old value that is kept.
        self._kept: dict[int, int] = {program.parameters: program.parameters}
        self._operations: dict[int, Operation] = {}

    def program(self) -> Program:
        """Return the simplified program."""
        for operation in self._old.operations:
            if any(index in self._kept for index in operation.inputs):
                self._kept[operation.output] = self._add(operation)
        output = self._kept.get(self._old.output)
        needed = [self._old.output if output is None else output]
        for index in needed:  # which grows
            if index in self._operations:
                needed += [x for x in self._operations[index].inputs if x not in needed]
        return self._renumber(set(needed), needed[0])

    def _add(self, operation: Operation) -> int:
        """Return the old value that holds the result of an operation."""
        inputs = tuple(self._find(index) for index in operation.inputs)
        name, settings = operation.name, operation.settings
        if (operand := self._unchanged_operand(operation._replace(inputs=inputs))) is not None:
            return operand
        first = self._same.setdefault((name, inputs, repr(settings)), operation.output)
        if first == operation.output:
            self._operations[first] = operation._replace(inputs=inputs)
        return first

    def _find(self, index: int) -> int:
        """Return the first value that equals a value."""
        if index in self._kept:
            return self._kept[index]
        value = np.asarray(self._values[index])
        return self._same.setdefault((value.dtype.str, value.shape, value.tobytes()), index)

    def _unchanged_operand(self, operation: Operation) -> int | None:
        """Return the operand that an operation returns as it is, if any."""
        name, output = operation.name, self._values[operation.output]
        if name == "mul":
            for one, other in (operation.inputs, operation.inputs[::-1]):
                if one not in self._kept and np.all(np.asarray(self._values[one]) == 1):
                    return other if self._is_like(other, output) else None
        elif name in ("convert_element_type", "reshape", "squeeze"):
            return operation.inputs[0] if self._is_like(operation.inputs[0], output) else None
        return None

    def _is_like(self, index: int, output: Value) -> bool:
        value = np.asarray(self._values[index])
        return value.dtype == output.dtype and value.shape == output.shape

    def _renumber(self, needed: set[int], output: int) -> Program:
        dependent = {self._old.parameters, *self._operations}
        constants = sorted(needed - dependent)
        operations = [self._operations[x] for x in sorted(needed & self._operations.keys())]
        order = [self._old.parameters, *constants, *(x.output for x in operations)]
        number = {index: new for new, index in enumerate(order)}
        return Program(
            parameters=0,
            inputs=1,
            constants=tuple(np.asarray(self._values[index]) for index in constants),
            operations=tuple(
                x._replace(
                    inputs=tuple(number[index] for index in x.inputs), output=number[x.output]
                )
                for x in operations
            ),
            output=number[output],
        )
