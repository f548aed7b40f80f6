"""Export to C: one header, `policy.h`, in C99 that is also C++11, without allocation."""

import hashlib
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from r2r2.export.layout import observation_layout
from r2r2.export.numpy_format import policy_title
from r2r2.export.simplify import simplify
from r2r2.policy.batching import ELEMENTWISE, program_values
from r2r2.policy.policy import PolicyParts
from r2r2.policy.program import Operation, Program, Value

HEADER = """\
/* {title}, as a trained policy.
 *
 *     double observation[R2R2_OBSERVATION_SIZE], action[R2R2_ACTION_SIZE];
 *     r2r2_policy(observation, action);
 *
 * The observation is flat:
{layout}
 * The action is in the environment's own range, within its bounds{action_shape}. If an entry of
 * the observation is not finite, every entry of the action is NaN: check it before you use it.
 *
 * C99 or C++11; link with the math library (-lm). Nothing is allocated, and several threads may
 * call the function. It uses about {stack} bytes of stack.
 */
#ifndef R2R2_POLICY_H
#define R2R2_POLICY_H {digest}

#include <float.h>
#include <math.h>

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "policy.h needs NaN and infinity; compile it without -ffast-math and -ffinite-math-only"
#endif

#define R2R2_OBSERVATION_SIZE {obs}
#define R2R2_ACTION_SIZE {action}

"""

# NaN in an operand gives NaN, as in NumPy; fmin and fmax would hide it.
IS_NAN = " || a != a"
HELPERS = {
    "r2r2_max{f}": f"({{type}} a, {{type}} b) {{{{ return a > b{IS_NAN} ? a : b; }}}}",
    "r2r2_min{f}": f"({{type}} a, {{type}} b) {{{{ return a < b{IS_NAN} ? a : b; }}}}",
    "r2r2_sign{f}": "({type} a) {{ return a > 0 ? 1 : a < 0 ? -1 : a; }}",
    "r2r2_power{f}": """({type} a, int n)
{{
    {type} y = 1;
    for (int i = 0; i < (n < 0 ? -n : n); i++) y *= a;
    return n < 0 ? 1 / y : y;
}}""",
}

FUNCTION = """\
/* Maps an observation to an action in the environment's own range. */
static inline void r2r2_policy(
    const double observation[R2R2_OBSERVATION_SIZE], double action[R2R2_ACTION_SIZE])
{{
    {type} x[R2R2_OBSERVATION_SIZE];
{buffers}\
    int finite = 1;
    for (int i = 0; i < R2R2_OBSERVATION_SIZE; i++) {{
        x[i] = ({type}){normalized};
        finite = finite && {abs}(x[i]) <= {largest};
    }}
    if (!finite) {{
        for (int i = 0; i < R2R2_ACTION_SIZE; i++) action[i] = NAN;
        return;
    }}
{body}\
    for (int i = 0; i < R2R2_ACTION_SIZE; i++) {{
        const double low = r2r2_low[i], high = r2r2_high[i];
        const double a = (low + high) / 2 + (high - low) / 2 * (double){output};
        action[i] = a < low ? low : a > high ? high : a;
    }}
}}

#elif R2R2_POLICY_H != {digest}
#error "a C file can include one policy only; include each policy.h in a C file of its own"
#endif
"""
DIGEST = "@digest@"  # its place in the text that it is the digest of

INFIX = {
    **{"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/"},
    **{"eq": "==", "ge": ">=", "gt": ">", "le": "<=", "lt": "<", "ne": "!="},
    **{"and": "&&", "or": "||"},
}
CALLS = {  # functions of math.h, with an f for float
    **{"abs": "fabs", "cos": "cos", "exp": "exp", "expm1": "expm1", "floor": "floor"},
    **{"log": "log", "log1p": "log1p", "pow": "pow", "rem": "fmod", "sin": "sin"},
    **{"sqrt": "sqrt", "tanh": "tanh"},
}
TEMPLATES = {  # of the operands {0}, {1}, ...
    "clamp": "r2r2_min{f}(r2r2_max{f}({1}, {0}), {2})",
    "integer_pow": "r2r2_power{f}({0}, {y})",
    "logistic": "(1 / (1 + exp{f}(-{0})))",
    "max": "r2r2_max{f}({0}, {1})",
    "min": "r2r2_min{f}({0}, {1})",
    "neg": "(-{0})",
    "not": "(!{0})",
    "rsqrt": "(1 / sqrt{f}({0}))",
    "sign": "r2r2_sign{f}({0})",
    "square": "r2r2_power{f}({0}, 2)",
}
INTEGER_TEMPLATES = {"abs": "({0} < 0 ? -{0} : {0})", "floor": "{0}", "rem": "({0} % {1})"}
REDUCTIONS = {"reduce_sum": "s + {0}", "reduce_max": "r2r2_max{f}(s, {0})"}
REDUCTIONS["reduce_min"] = "r2r2_min{f}(s, {0})"
SUFFIXES = {"float": "f", "double": "", "long long": "i"}
BYTES = {"float": 4, "double": 8, "int": 4, "long long": 8}


def c_files(parts: PolicyParts) -> dict[str, bytes]:
    """Return the content of `policy.h`."""
    size, dtype = parts.spaces.obs_dim, np.dtype(parts.dtype)
    writer = _Writer(simplify(parts), np.zeros(size, dtype))
    body, output = writer.body(), writer.output()
    spaces = parts.spaces
    is_nested = spaces.action_shape is not None and len(spaces.action_shape) != 1
    low, high = spaces.action_low, spaces.action_high
    tables: dict[str, Value] = {"low": low, "high": high}
    normalized = "observation[i]"
    if parts.mean is not None and parts.deviation is not None:
        tables |= {"mean": parts.mean, "deviation": parts.deviation}
        normalized = "((observation[i] - r2r2_mean[i]) / r2r2_deviation[i])"
    layout = (f" *   [{x.start}, {x.stop})  {_comment(x.name)}" for x in observation_layout(parts))
    text = HEADER.format(
        title=_comment(policy_title(parts.info)),
        layout="\n".join(layout),
        action_shape=f", of shape {spaces.action_shape} in C order" if is_nested else "",
        stack=size * dtype.itemsize + sum(n * BYTES[kind] for kind, n in writer.buffers),
        obs=size,
        action=len(low),
        digest=DIGEST,
    )
    text += "".join(_table(name, value) for name, value in (tables | writer.tables).items())
    text += _helpers(body + output)
    is_float = dtype == np.float32
    text += FUNCTION.format(
        type=_c_type(dtype),
        buffers="".join(f"    {x[0]} t{n}[{x[1]}];\n" for n, x in enumerate(writer.buffers)),
        normalized=normalized,
        abs="fabsf" if is_float else "fabs",
        largest="FLT_MAX" if is_float else "DBL_MAX",
        body=body,
        output=output,
        digest=DIGEST,
    )
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return {"policy.h": text.replace(DIGEST, f"0x{digest}ULL").encode()}


def _helpers(body: str) -> str:
    """Return the functions that the body calls."""
    text = ""
    for kind, f in SUFFIXES.items():
        for name, definition in HELPERS.items():
            if (call := name.format(f=f)) + "(" in body:
                code = definition.format(type=kind)
                code = code if kind in ("float", "double") else code.replace(IS_NAN, "")
                text += f"static inline {kind} {call}{code}\n\n"
    return text


def _comment(text: str) -> str:
    """Return text that cannot end a comment."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return plain.replace("*/", "* /").replace("/*", "/ *")


def _c_type(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "f":
        return "float" if dtype.itemsize <= 4 else "double"
    return "int" if dtype.kind == "b" else "long long"


def _literal(value: Value) -> str:
    number, kind = np.asarray(value).reshape(()), _c_type(np.asarray(value).dtype)
    if kind == "int":
        return str(int(number))
    if kind == "long long":
        return f"{int(number)}LL"
    if not np.isfinite(number):
        return "NAN" if np.isnan(number) else "INFINITY" if number > 0 else "(-INFINITY)"
    text = str(number.astype(np.float32) if kind == "float" else number.astype(np.float64))
    text += SUFFIXES[kind]
    return f"({text})" if text.startswith("-") else text


def _table(name: str, value: Value) -> str:
    array = np.asarray(value)
    numbers = ", ".join(map(_literal, array.reshape(-1)))
    lines = textwrap.wrap(numbers.replace("(", "").replace(")", ""), 96)
    rows = "".join(f"\n    {line}" for line in lines)
    return f"static const {_c_type(array.dtype)} r2r2_{name}[{array.size}] = {{{rows}\n}};\n\n"


class _Axis(NamedTuple):
    """One axis of a loop over a flat index, and how an operand moves along it."""

    length: int
    stride: int  # of the operand; 0: it is repeated


def _index(variable: str, axes: Sequence[_Axis], offset: int = 0) -> str:
    """Return the position of an operand for a flat index over all axes."""
    terms, inner = [str(offset)] if offset else [], 1
    kept = [axis for axis in axes if axis.length > 1]
    contiguous = 1
    for axis in reversed(kept):
        if axis.stride != contiguous:
            break
        contiguous *= axis.length
    else:
        return " + ".join([variable, *terms]) if kept else str(offset)
    for place, axis in reversed(list(enumerate(kept))):
        text = variable if inner == 1 else f"{variable} / {inner}"
        text = f"({text}) % {axis.length}" if place else text
        if axis.stride:
            terms.append(f"({text}) * {axis.stride}" if axis.stride > 1 else f"({text})")
        inner *= axis.length
    return " + ".join(terms) or "0"


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[n + 1 :]) for n in range(len(shape))]


class _Writer:
    """Writes one loop per operation; elementwise ones are written into the loop that uses them."""

    def __init__(self, program: Program, obs: Value):
        self._program = program
        self._values = [np.asarray(x) for x in program_values(program, (), [obs])]
        self._made = {operation.output: operation for operation in program.operations}
        self.tables: dict[str, Value] = {}  # constants, by name
        self.buffers: list[tuple[str, int]] = []  # type and length of scratch arrays
        self._buffer: dict[int, int] = {}  # of values, by number
        self._inlined = self._find_inlined()
        self._last_use = self._find_last_uses()

    def _find_inlined(self) -> set[int]:
        """Return elementwise values that are used once, by a loop over the same elements."""
        users: dict[int, list[Operation | None]] = {self._program.output: [None]}
        for operation in self._program.operations:
            for index in operation.inputs:
                users.setdefault(index, []).append(operation)
        return {
            index
            for index, operation in self._made.items()
            if operation.name in ELEMENTWISE
            and len(users.get(index, [])) == 1
            and self._takes_elements(users[index][0], index)
        }

    def _takes_elements(self, user: Operation | None, index: int) -> bool:
        if user is None:
            return True
        shape = self._values[index].shape
        if user.name in REDUCTIONS:
            return len(shape) == 1
        return user.name in ELEMENTWISE and self._values[user.output].shape == shape

    def _sources(self, index: int) -> set[int]:
        """Return the values with storage that a value is computed from; itself, if it has some."""
        operation = self._made.get(index)
        if operation is None or not (index in self._inlined or self._renames(operation)):
            return {index}
        return set[int]().union(*map(self._sources, operation.inputs))

    def _renames(self, operation: Operation) -> bool:
        """Return whether an operation leaves all elements in their order."""
        value, output = (self._values[x] for x in (operation.inputs[0], operation.output))
        names = ("reshape", "squeeze", "broadcast_in_dim")
        return operation.name in names and value.size == output.size

    def _find_last_uses(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for operation in self._program.operations:
            for index in operation.inputs:
                last |= dict.fromkeys(self._sources(index), operation.output)
        return last | dict.fromkeys(self._sources(self._program.output), len(self._values))

    def body(self) -> str:
        """Return the loops of all operations."""
        lines: list[str] = []
        for operation in self._program.operations:
            if operation.output in self._inlined or self._renames(operation):
                continue
            target = self._allocate(operation.output)
            if operation.name in ELEMENTWISE:
                size = self._values[operation.output].size
                value = self._apply(operation, "i")
                lines.append(f"for (int i = 0; i < {size}; i++) {target}[i] = {value};")
            elif operation.name in LOOPS:
                lines += LOOPS[operation.name](self, operation, target)
            else:
                problem = f"the operation {operation.name!r} cannot be exported to C"
                raise NotImplementedError(f"policy: {problem}")
        return "".join(f"    {line}\n" for line in lines)

    def output(self) -> str:
        """Return element i of the program's output."""
        return self._element(self._program.output, "i")

    def _allocate(self, index: int) -> str:
        """Return the scratch array of a value: one that holds nothing needed any more, or new."""
        value = self._values[index]
        kind = _c_type(value.dtype)
        busy = {n for x, n in self._buffer.items() if self._last_use.get(x, -1) >= index}
        free = [n for n, x in enumerate(self.buffers) if x[0] == kind and n not in busy]
        if not free:
            self.buffers.append((kind, value.size))
        place = free[0] if free else len(self.buffers) - 1
        self.buffers[place] = kind, max(value.size, self.buffers[place][1])
        self._buffer[index] = place
        return f"t{place}"

    def _element(self, index: int, position: str) -> str:
        """Return the element of a value at a flat position."""
        if index == 0:
            return f"x[{position}]"
        operation = self._made.get(index)
        if operation is None:
            value = self._values[index]
            if value.size == 1:
                return _literal(value)
            self.tables[f"w{index}"] = value
            return f"r2r2_w{index}[{position}]"
        if self._renames(operation):
            return self._element(operation.inputs[0], position)
        if index in self._inlined:
            return self._apply(operation, position)
        return f"t{self._buffer[index]}[{position}]"

    def _apply(self, operation: Operation, position: str) -> str:
        """Return the result of an elementwise operation at a flat position."""
        name, shape = operation.name, self._values[operation.output].shape
        operands = [self._broadcast(index, shape, position) for index in operation.inputs]
        kind = _c_type(self._values[operation.inputs[-1]].dtype)
        f = SUFFIXES.get(kind, "i")
        if name in INFIX:
            return f"({operands[0]} {INFIX[name]} {operands[1]})"
        if f == "i" and name in INTEGER_TEMPLATES:
            return INTEGER_TEMPLATES[name].format(*operands)
        if name in CALLS:
            return f"{CALLS[name]}{f}({', '.join(operands)})"
        if name == "select_n":
            return self._select(operands, self._values[operation.inputs[0]].dtype)
        if name == "convert_element_type":
            to = np.dtype(operation.settings["dtype"])
            return f"({operands[0]} != 0)" if to.kind == "b" else f"({_c_type(to)}){operands[0]}"
        return TEMPLATES[name].format(*operands, f=f, **operation.settings)

    def _select(self, operands: list[str], dtype: np.dtype[Any]) -> str:
        which, *cases = operands
        if dtype.kind == "b":
            return f"({which} ? {cases[1]} : {cases[0]})"
        tests = [f"{which} == {n} ? {case} : " for n, case in enumerate(cases[:-1])]
        return f"({''.join(tests)}{cases[-1]})"

    def _broadcast(self, index: int, shape: tuple[int, ...], position: str) -> str:
        """Return the element of an operand that NumPy puts beside an element of a result."""
        own = self._values[index].shape
        if own == shape:
            return self._element(index, position)
        padded = (1,) * (len(shape) - len(own)) + own
        pairs = zip(shape, padded, _strides(padded), strict=True)
        axes = [_Axis(n, stride if size > 1 else 0) for n, size, stride in pairs]
        return self._element(index, _index(position, axes))

    def product(self, operation: Operation, target: str) -> list[str]:
        """Return the loops of a product, with the contiguous axis of the weights inside."""
        left, right = (self._values[index] for index in operation.inputs)
        (left_axes, right_axes), (batch, _) = operation.settings["dims"]
        if batch:
            raise NotImplementedError("batched products")
        a, b = operation.inputs
        output = self._values[operation.output]
        if left.ndim == 1 and right.ndim == 2 and right_axes == (0,):
            size = output.size
            weight = self._element(b, f"k * {size} + i")
            return [
                f"for (int i = 0; i < {size}; i++) {target}[i] = 0;",
                f"for (int k = 0; k < {left.size}; k++) {{",
                f"    const {_c_type(left.dtype)} a = {self._element(a, 'k')};",
                f"    for (int i = 0; i < {size}; i++) {target}[i] += a * {weight};",
                "}",
            ]
        free = [n for n in range(left.ndim) if n not in left_axes]
        others = [n for n in range(right.ndim) if n not in right_axes]
        rows, columns = _strides(left.shape), _strides(right.shape)
        first = [_Axis(left.shape[n], rows[n]) for n in free]
        first += [_Axis(right.shape[n], 0) for n in others]
        second = [_Axis(left.shape[n], 0) for n in free]
        second += [_Axis(right.shape[n], columns[n]) for n in others]
        sum_a = [_Axis(left.shape[n], rows[n]) for n in left_axes]
        sum_b = [_Axis(right.shape[n], columns[n]) for n in right_axes]
        terms = (
            self._element(a, f"{_index('i', first)} + {_index('k', sum_a)}"),
            self._element(b, f"{_index('i', second)} + {_index('k', sum_b)}"),
        )
        count = math.prod(axis.length for axis in sum_a)
        return [
            f"for (int i = 0; i < {output.size}; i++) {{",
            f"    {_c_type(output.dtype)} s = 0;",
            f"    for (int k = 0; k < {count}; k++) s += {terms[0]} * {terms[1]};",
            f"    {target}[i] = s;",
            "}",
        ]

    def reduce(self, operation: Operation, target: str) -> list[str]:
        """Return the loops of a sum, a maximum or a minimum over axes."""
        (index,), axes = operation.inputs, operation.settings["axes"]
        value, output = self._values[index], self._values[operation.output]
        strides = _strides(value.shape)
        kept = [_Axis(value.shape[n], strides[n]) for n in range(value.ndim) if n not in axes]
        over = [_Axis(value.shape[n], strides[n]) for n in axes]
        kind, count = _c_type(value.dtype), math.prod(axis.length for axis in over)
        base = f"{_index('i', kept)} + " if kept else ""
        item = self._element(index, f"{base}{_index('k', over)}")
        start, first = ("0", 0) if operation.name == "reduce_sum" else ("", 1)
        start = start or self._element(index, f"{base}{_index('0', over)}")
        step = REDUCTIONS[operation.name].format(item, f=SUFFIXES.get(kind, "i"))
        return [
            f"for (int i = 0; i < {output.size}; i++) {{",
            f"    {kind} s = {start};",
            f"    for (int k = {first}; k < {count}; k++) s = {step};",
            f"    {target}[i] = s;",
            "}",
        ]

    def concatenate(self, operation: Operation, target: str) -> list[str]:
        """Return one loop per part."""
        lines, start, axis = list[str](), 0, operation.settings["axis"]
        whole = self._values[operation.output].shape
        for index in operation.inputs:
            shape = self._values[index].shape
            inner, width = math.prod(shape[axis:]), math.prod(whole[axis:])
            axes = [_Axis(math.prod(shape[:axis]), width), _Axis(inner, 1)]
            place = _index("i", axes, start * math.prod(whole[axis + 1 :]))
            size, item = math.prod(shape), self._element(index, "i")
            lines.append(f"for (int i = 0; i < {size}; i++) {target}[{place}] = {item};")
            start += shape[axis]
        return lines

    def move(self, operation: Operation, target: str) -> list[str]:
        """Return the loop of an operation that moves or repeats elements."""
        index, settings = operation.inputs[0], operation.settings
        value, output = self._values[index], self._values[operation.output]
        strides, offset = _strides(value.shape), 0
        if operation.name == "transpose":
            moves = [strides[axis] for axis in settings["axes"]]
        elif operation.name == "slice":
            steps = settings["strides"] or [1] * value.ndim
            moves = [a * b for a, b in zip(strides, steps, strict=True)]
            offset = sum(a * b for a, b in zip(strides, settings["start"], strict=True))
        else:
            moves = [0] * output.ndim
            for axis, dim in enumerate(settings["dims"]):
                moves[dim] = strides[axis] if value.shape[axis] > 1 else 0
        axes = [_Axis(n, stride) for n, stride in zip(output.shape, moves, strict=True)]
        item = self._element(index, _index("i", axes, offset))
        return [f"for (int i = 0; i < {output.size}; i++) {target}[i] = {item};"]


LOOPS: Mapping[str, Any] = {
    "broadcast_in_dim": _Writer.move,
    "concatenate": _Writer.concatenate,
    "dot_general": _Writer.product,
    **dict.fromkeys(REDUCTIONS, _Writer.reduce),
    "slice": _Writer.move,
    "transpose": _Writer.move,
}
