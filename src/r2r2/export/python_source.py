"""A program as the source of a Python function, one line per step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from r2r2.policy.batching import ELEMENTWISE, program_values
from r2r2.policy.program import Operation, Program, Value

INFIX = {
    **{"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/"},
    **{"eq": "==", "ge": ">=", "gt": ">", "le": "<=", "lt": "<", "ne": "!="},
}
CALLS = {
    **{"abs": "abs", "cos": "cos", "exp": "exp", "expm1": "expm1", "floor": "floor", "log": "log"},
    **{"log1p": "log1p", "neg": "negative", "sign": "sign", "sin": "sin", "sqrt": "sqrt"},
    **{"square": "square", "tanh": "tanh", "not": "logical_not", "and": "logical_and"},
    **{"or": "logical_or", "max": "maximum", "min": "minimum", "pow": "power", "rem": "fmod"},
}
REDUCTIONS = {"reduce_max": "max", "reduce_min": "min", "reduce_sum": "sum"}
TEMPLATES = {  # of the operands {0}, {1}, ... and settings
    "clamp": "np.minimum(np.maximum({1}, {0}), {2})",
    "concatenate": "np.concatenate(({operands}), axis={axis})",
    "convert_element_type": "{atom}.astype(np.{result})",
    "div": "np.trunc(np.divide({operands})).astype(np.{result})",  # of integers
    "einsum": "np.einsum({equation!r}, {operands})",
    "logistic": "np.reciprocal(1.0 + np.exp(-{atom}))",
    "rsqrt": "np.reciprocal(np.sqrt({0}))",
    "transpose": "np.transpose({0}, {axes})",
}
# How strongly operators bind, as in Python; calls and names bind most.
PRECEDENCE = {"==": 1, ">=": 1, ">": 1, "<=": 1, "<": 1, "!=": 1, "+": 2, "-": 2}
PRECEDENCE |= {"*": 3, "/": 3, "@": 3, "**": 4}
ATOM = 5
LONGEST_PART = 60  # characters of an expression that is written inside another


def function_source(program: Program, obs: Value) -> str:
    r"""Return the body of `def network(x, w)`, indented, for a batched program.

    The names in it are those of NumPy's module `np`, which may also be JAX's. `w` is the list of
    the program's constants; constants that are single numbers are written out where possible.

    Args:
        program: a program without parameters, with one input.
        obs: an example of its input, a batch.

    Example:
        >>> program = Program(0, 1, (np.float32(2),), (Operation("mul", (0, 1), 2),), 2)
        >>> function_source(program, np.zeros((1, 3), np.float32))
        '    return x * 2.0\n'
    """
    return _Writer(program, program_values(program, (), [obs])).source()


class _Writer:
    """Writes each operation as an expression, inside another one if it is used only there."""

    def __init__(self, program: Program, values: Sequence[Value]):
        self._program = program
        self._values = [np.asarray(value) for value in values]
        self._text = {0: "x"} | {n + 1: f"w[{n}]" for n in range(len(program.constants))}
        self._strength: dict[int, int] = {}  # of the operator in a value's text, if any
        uses = [index for operation in program.operations for index in operation.inputs]
        self._single = {index for index in uses if uses.count(index) == 1}
        # Their text occurs in the shape of a result, too.
        self._single -= {x.inputs[-1] for x in program.operations if self._repeats(x)}
        self._lines: list[str] = []

    def _repeats(self, operation: Operation) -> bool:
        """Return whether an operation repeats elements."""
        result, value = (self._values[x] for x in (operation.output, operation.inputs[0]))
        return operation.name in ("broadcast_rows", "rows_like") and result.size != value.size

    def source(self) -> str:
        """Return the lines of the function."""
        for operation in self._program.operations:
            index, text = operation.output, self._expression(operation)
            inside = index in self._single and len(text) <= LONGEST_PART
            if not inside and index != self._program.output:
                name = f"h{len(self._lines) + 1}"
                self._lines.append(f"{name} = {text}")
                self._strength.pop(index, None)
                text = name
            self._text[index] = text
        self._lines.append(f"return {self._text[self._program.output]}")
        return "".join(f"    {line}\n" for line in self._lines)

    def _expression(self, operation: Operation) -> str:
        name, inputs = operation.name, operation.inputs
        texts = [self._operand(operation, place) for place in range(len(inputs))]
        is_float = self._values[inputs[0]].dtype.kind == "f"
        if name in INFIX and (name != "div" or is_float):
            return self._operator(INFIX[name], operation, texts)
        if name in CALLS:
            return f"np.{CALLS[name]}({', '.join(texts)})"
        if name in REDUCTIONS:
            axes = operation.settings["axes"]
            return f"np.{REDUCTIONS[name]}({texts[0]}, axis={axes if len(axes) > 1 else axes[0]})"
        return self._special(operation, texts)

    def _operator(self, sign: str, operation: Operation, texts: list[str]) -> str:
        self._strength[operation.output] = strength = PRECEDENCE[sign]
        # Comparisons do not associate: a < b != c would compare b twice.
        at_left = strength + (strength == PRECEDENCE["<"])
        left = self._bracketed(operation.inputs[0], texts[0], at_left)
        right = self._bracketed(operation.inputs[1], texts[1], strength + 1)
        return f"{left} {sign} {right}"

    def _bracketed(self, index: int, text: str, strength: int = ATOM) -> str:
        """Return the text of a value in brackets if its operator binds less than `strength`."""
        return f"({text})" if self._strength.get(index, ATOM) < strength else text

    def _special(self, operation: Operation, texts: list[str]) -> str:
        name, given = operation.name, operation.settings
        if name in TEMPLATES:
            return TEMPLATES[name].format(
                *texts,
                atom=self._bracketed(operation.inputs[0], texts[0]),
                operands=", ".join(texts),
                result=self._values[operation.output].dtype.name,
                **{key: value for key, value in given.items() if key != "dtype"},
            )
        if name == "integer_pow":
            return self._power(operation, texts[0])
        if name == "select_n":
            which, *cases = texts
            choice = f"np.choose({which}, ({', '.join(cases)}))"
            return choice if len(cases) > 2 else f"np.where({which}, {cases[1]}, {cases[0]})"
        if name == "dot_general":
            return self._product(operation, texts)
        if name == "slice":
            return f"{self._bracketed(operation.inputs[0], texts[0])}[{_slices(given)}]"
        return self._reshaped(operation, texts)

    def _power(self, operation: Operation, text: str) -> str:
        if (y := operation.settings["y"]) == 2:
            return f"np.square({text})"
        self._strength[operation.output] = PRECEDENCE["**"]
        return f"{self._bracketed(operation.inputs[0], text)} ** {y}"

    def _reshaped(self, operation: Operation, texts: list[str]) -> str:
        name, (first, *_) = operation.name, operation.inputs
        value, shape = self._values[first], self._values[operation.output].shape[1:]
        text = self._bracketed(first, texts[0])
        if name == "rows_like":
            rows = ", ".join([f"{texts[1]}.shape[0]", *map(str, shape)])
            return f"np.broadcast_to({texts[0]}, ({rows}{'' if shape else ','}))"
        if name == "broadcast_rows" and self._repeats(operation):
            dims = operation.settings["dims"]
            expanded = ["1"] * len(shape)
            for axis, dim in enumerate(dims):
                expanded[dim] = str(value.shape[axis + 1])
            rows = ", ".join([f"{texts[0]}.shape[0]", *map(str, shape)])
            return f"np.broadcast_to({text}.reshape({', '.join(['-1', *expanded])}), ({rows}))"
        if name in ("broadcast_rows", "expand_rows", "reshape", "squeeze"):
            return f"{text}.reshape({', '.join(map(str, (-1, *shape)))})"
        raise NotImplementedError(f"policy: the operation {name!r} cannot be exported")

    def _product(self, operation: Operation, texts: list[str]) -> str:
        left, right = (self._values[x] for x in operation.inputs)
        left_axes, right_axes = operation.settings["dims"][0]
        if left_axes == (left.ndim - 1,) and right_axes == (0,) and right.ndim == 2:
            return self._operator("@", operation, texts)
        return f"np.tensordot({texts[0]}, {texts[1]}, ({left_axes}, {right_axes}))"

    def _operand(self, operation: Operation, place: int) -> str:
        """Return the text of an operand; a number where that does not change the result's type."""
        index = operation.inputs[place]
        value, others = self._values[index], [x for x in operation.inputs if x != index]
        if operation.name == "select_n":
            others = [x for x in others if x != operation.inputs[0]]
        is_constant = 0 < index <= len(self._program.constants)
        typed = any(
            (self._values[x].dtype == value.dtype and x > len(self._program.constants)) or x == 0
            for x in others
        )
        if is_constant and value.ndim == 0 and typed and operation.name in ELEMENTWISE:
            return _number(value)
        return self._text[index]


def _number(value: Value) -> str:
    """Return a number with as many digits as its type needs."""
    return str(value) if np.isfinite(value) else f"float('{value}')"


def _slices(given: Any) -> str:
    steps = given["strides"] or (1,) * len(given["start"])
    parts = []
    for start, limit, step in zip(given["start"], given["limit"], steps, strict=True):
        stop = "" if limit is None else limit
        parts.append(f"{start or ''}:{stop}" + (f":{step}" if step != 1 else ""))
    return ", ".join(parts)
