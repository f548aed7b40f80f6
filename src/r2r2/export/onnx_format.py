"""Export to ONNX: `policy.onnx`, built with the helpers of the package `onnx`."""

import importlib
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from r2r2.config.errors import UserError
from r2r2.export.layout import action_shape, observation_layout
from r2r2.export.numpy_format import policy_title
from r2r2.export.simplify import simplify
from r2r2.policy.batching import batch_program, program_values
from r2r2.policy.policy import PolicyParts
from r2r2.policy.program import Operation, Program, Value

# Old enough for onnxruntime 1.14 and other runtimes on robots.
OPSET, IR_VERSION = 18, 8
LAST = np.iinfo(np.int64).max  # the end of an axis

# Operations that ONNX has with the same operands and without settings.
SAME = {
    **{"abs": "Abs", "add": "Add", "add_any": "Add", "and": "And", "cos": "Cos", "div": "Div"},
    **{"eq": "Equal", "exp": "Exp", "floor": "Floor", "ge": "GreaterOrEqual", "gt": "Greater"},
    **{"le": "LessOrEqual", "log": "Log", "logistic": "Sigmoid", "lt": "Less", "max": "Max"},
    **{"min": "Min", "mul": "Mul", "neg": "Neg", "not": "Not", "or": "Or", "pow": "Pow"},
    **{"sign": "Sign", "sin": "Sin", "sqrt": "Sqrt", "sub": "Sub", "tanh": "Tanh"},
}
REDUCTIONS = {"reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_sum": "ReduceSum"}


def onnx_files(parts: PolicyParts) -> dict[str, bytes]:
    """Return the content of `policy.onnx`."""
    require_onnx()
    size = parts.spaces.obs_dim
    program = batch_program(simplify(parts), (), np.zeros(size, parts.dtype))
    graph = _Graph()
    x = _add_observation(graph, parts)
    output = _Translator(graph, program, np.zeros((2, size), parts.dtype)).translate(x)
    _add_action(graph, parts, x, output)
    model = graph.model(parts)
    _check(graph.onnx, model)
    return {"policy.onnx": model.SerializeToString(deterministic=True)}


def _check(onnx: Any, model: Any) -> None:
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"format 'onnx': the policy is not a valid model: {reason}") from error


def require_onnx() -> None:
    """Check that the package onnx is installed."""
    if importlib.util.find_spec("onnx") is None:
        raise UserError(
            "format 'onnx': onnx is not installed; install it with pip install 'r2r2[onnx]'"
        )


class _Graph:
    """Nodes and constants of a model under construction; values are named."""

    def __init__(self) -> None:
        self.onnx: Any = importlib.import_module("onnx")
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._nodes: list[Any] = []
        self._constants: dict[tuple[str, Any, bytes], Any] = {}

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = attributes.pop("output", f"v{len(self._nodes)}")
        node = self.onnx.helper.make_node(kind, inputs, [name], **attributes)
        self._nodes.append(node)
        return str(name)

    def constant(self, value: Any, dtype: Any = None) -> str:
        """Return the name of a constant; equal ones are stored once."""
        array = np.asarray(value, dtype, order="C")
        key = array.dtype.str, array.shape, array.tobytes()
        name = f"c{len(self._constants)}"
        tensor = self.onnx.numpy_helper.from_array(array, name)
        return str(self._constants.setdefault(key, tensor).name)

    def integers(self, *values: int) -> str:
        """Return the name of a vector of integers."""
        return self.constant(values, np.int64)

    def type(self, dtype: Any) -> int:
        """Return ONNX's number of a type."""
        return int(self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def variable(self, name: str, dtype: Any, shape: Sequence[int]) -> Any:
        """Return the description of an input or output with a batch axis of any size."""
        return self.onnx.helper.make_tensor_value_info(name, self.type(dtype), ["batch", *shape])

    def model(self, parts: PolicyParts) -> Any:
        """Return the model."""
        title, helper = policy_title(parts.info), self.onnx.helper
        constants = list(self._constants.values())
        graph = helper.make_graph(self._nodes, "policy", self.inputs, self.outputs, constants)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="r2r2",
            doc_string=title,
        )
        helper.set_model_props(model, {"r2r2": json.dumps(parts.info, sort_keys=True)})
        return model


def _add_observation(graph: _Graph, parts: PolicyParts) -> str:
    """Add the inputs; return the observation, flat, normalized, in the program's type."""
    flat = list[str]()
    for name, part, start, stop in observation_layout(parts):
        graph.inputs.append(graph.variable(name, np.float64, part.shape))
        if len(part.shape) == 1:
            flat.append(name)
        else:
            flat.append(graph.add("Reshape", name, graph.integers(-1, stop - start)))
    x = flat[0] if len(flat) == 1 else graph.add("Concat", *flat, axis=1)
    if parts.mean is not None and parts.deviation is not None:
        x = graph.add("Sub", x, graph.constant(parts.mean, np.float64))
        x = graph.add("Div", x, graph.constant(parts.deviation, np.float64))
    return graph.add("Cast", x, to=graph.type(parts.dtype))


def _add_action(graph: _Graph, parts: PolicyParts, x: str, output: str) -> None:
    """Add the rescaling, the bounds, and NaN where the network's input `x` is not finite."""
    low, high = parts.spaces.action_low, parts.spaces.action_high
    action = graph.add("Cast", output, to=graph.type(np.float64))
    action = graph.add("Mul", action, graph.constant((high - low) / 2))
    action = graph.add("Add", action, graph.constant((low + high) / 2))
    action = graph.add("Max", action, graph.constant(low))
    action = graph.add("Min", action, graph.constant(high))
    largest = graph.constant(np.finfo(parts.dtype).max, parts.dtype)
    finite = graph.add("LessOrEqual", graph.add("Abs", x), largest)  # false for NaN
    finite = graph.add("Cast", finite, to=graph.type(np.float32))
    finite = graph.add("ReduceMin", finite, graph.integers(1), keepdims=1)
    finite = graph.add("Cast", finite, to=graph.type(np.bool_))
    action = graph.add("Where", finite, action, graph.constant(np.nan, np.float64))
    dtype, shape = parts.spaces.action_dtype, action_shape(parts)
    action = graph.add("Reshape", action, graph.integers(-1, *shape))
    graph.add("Cast", action, to=graph.type(dtype), output="action")
    graph.outputs.append(graph.variable("action", dtype, shape))


class _Translator:
    """Adds the operations of a batched program to a graph."""

    def __init__(self, graph: _Graph, program: Program, obs: Value):
        self._graph, self._program = graph, program
        self._values = [np.asarray(value) for value in program_values(program, (), [obs])]
        self._names: list[str] = []

    def translate(self, x: str) -> str:
        """Add all operations and return the name of the output."""
        self._names = [x, *map(self._graph.constant, self._program.constants)]
        for operation in self._program.operations:
            self._names.append(self._add(operation))
        return self._names[self._program.output]

    def _add(self, operation: Operation) -> str:
        name, settings = operation.name, operation.settings
        inputs = [self._names[index] for index in operation.inputs]
        if name in SAME:
            return self._graph.add(SAME[name], *inputs)
        if name in REDUCTIONS:
            axes = self._graph.integers(*settings["axes"])
            return self._graph.add(REDUCTIONS[name], inputs[0], axes, keepdims=0)
        if name not in SPECIAL:
            raise NotImplementedError(f"policy: the operation {name!r} cannot be exported to ONNX")
        return SPECIAL[name](self, operation, inputs)

    def number(self, value: float, operation: Operation) -> str:
        """Return a constant of the type of an operation's first operand."""
        return self._graph.constant(value, self._values[operation.inputs[0]].dtype)

    def expm1(self, operation: Operation, inputs: list[str]) -> str:
        """Add exp(x) - 1; near 0 as 2 t / (1 - t) with t = tanh(x / 2), without cancellation."""
        (x,), add = inputs, self._graph.add
        one, two = self.number(1, operation), self.number(2, operation)
        t = add("Tanh", add("Div", x, two))
        near = add("Div", add("Mul", two, t), add("Sub", one, t))
        far = add("Sub", add("Exp", x), one)
        return add("Where", add("Less", add("Abs", x), one), near, far)

    def log1p(self, operation: Operation, inputs: list[str]) -> str:
        """Add log(1 + x); near 0 as 2 atanh(x / (x + 2)), without cancellation."""
        (x,), add = inputs, self._graph.add
        one, two = self.number(1, operation), self.number(2, operation)
        near = add("Mul", two, add("Atanh", add("Div", x, add("Add", x, two))))
        far = add("Log", add("Add", x, one))
        half = self.number(0.5, operation)
        return add("Where", add("Less", add("Abs", x), half), near, far)

    def power(self, operation: Operation, inputs: list[str]) -> str:
        """Add an integer power."""
        if operation.settings["y"] == 2:
            return self._graph.add("Mul", inputs[0], inputs[0])
        return self._graph.add("Pow", inputs[0], self.number(operation.settings["y"], operation))

    def select(self, operation: Operation, inputs: list[str]) -> str:
        """Add a choice between cases."""
        which, first, *others = inputs
        if self._values[operation.inputs[0]].dtype == bool:
            return self._graph.add("Where", which, others[0], first)
        for number, case in enumerate(others, start=1):
            is_case = self._graph.add("Equal", which, self.number(number, operation))
            first = self._graph.add("Where", is_case, case, first)
        return first

    def product(self, operation: Operation, inputs: list[str]) -> str:
        """Add a product of matrices or, in general, a sum over axes."""
        left, right = (self._values[index] for index in operation.inputs)
        (left_axes, right_axes), _ = operation.settings["dims"]
        if left_axes == (left.ndim - 1,) and right_axes == (0,) and right.ndim <= 2:
            return self._graph.add("MatMul", *inputs)
        letters = [chr(ord("a") + n) for n in range(left.ndim + right.ndim)]
        first, second = letters[: left.ndim], letters[left.ndim :]
        for a, b in zip(left_axes, right_axes, strict=True):
            second[b] = first[a]
        free = [x for n, x in enumerate(first) if n not in left_axes]
        free += [x for n, x in enumerate(second) if n not in right_axes]
        equation = f"{''.join(first)},{''.join(second)}->{''.join(free)}"
        return self._graph.add("Einsum", *inputs, equation=equation)

    def slice(self, operation: Operation, inputs: list[str]) -> str:
        """Add a part of each axis."""
        settings, integers = operation.settings, self._graph.integers
        limits = [LAST if x is None else x for x in settings["limit"]]
        steps = settings["strides"] or [1] * len(limits)
        bounds = integers(*settings["start"]), integers(*limits), integers(*range(len(limits)))
        return self._graph.add("Slice", inputs[0], *bounds, integers(*steps))

    def reshape(self, operation: Operation, inputs: list[str]) -> str:
        """Add a change of shape and, of broadcasts, the repetition."""
        value, output = (self._values[x] for x in (operation.inputs[0], operation.output))
        shape = list(output.shape[1:])
        if operation.name == "broadcast_rows":
            dims = operation.settings["dims"]
            shape = [value.shape[1 + dims.index(n)] if n in dims else 1 for n in range(len(shape))]
        x = self._graph.add("Reshape", inputs[0], self._graph.integers(-1, *shape))
        if value.size == output.size:
            return x
        return self._graph.add("Expand", x, self._graph.integers(1, *output.shape[1:]))

    def rows(self, operation: Operation, inputs: list[str]) -> str:
        """Add the repetition of a constant for every row."""
        rows = self._graph.add("Shape", inputs[1], start=0, end=1)
        rest = self._graph.integers(*self._values[operation.inputs[0]].shape)
        shape = self._graph.add("Concat", rows, rest, axis=0)
        return self._graph.add("Expand", inputs[0], shape)

    def simple(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add one node."""
        return self._graph.add(kind, *inputs, **attributes)

    def cast(self, operation: Operation, inputs: list[str]) -> str:
        """Add a conversion of types."""
        return self._graph.add("Cast", *inputs, to=self._graph.type(operation.settings["dtype"]))


# Operations with settings, or without an equal one in ONNX.
SPECIAL: Mapping[str, Callable[[_Translator, Operation, list[str]], str]] = {
    "broadcast_rows": _Translator.reshape,
    "clamp": lambda t, _, x: t.simple("Min", [t.simple("Max", [x[1], x[0]]), x[2]]),
    "concatenate": lambda t, o, x: t.simple("Concat", x, axis=o.settings["axis"]),
    "convert_element_type": _Translator.cast,
    "dot_general": _Translator.product,
    "einsum": lambda t, o, x: t.simple("Einsum", x, equation=o.settings["equation"]),
    "expand_rows": _Translator.reshape,
    "expm1": _Translator.expm1,
    "integer_pow": _Translator.power,
    "log1p": _Translator.log1p,
    "ne": lambda t, _, x: t.simple("Not", [t.simple("Equal", x)]),
    "rem": lambda t, _, x: t.simple("Mod", x, fmod=1),
    "reshape": _Translator.reshape,
    "rows_like": _Translator.rows,
    "rsqrt": lambda t, _, x: t.simple("Reciprocal", [t.simple("Sqrt", x)]),
    "select_n": _Translator.select,
    "slice": _Translator.slice,
    "square": lambda t, _, x: t.simple("Mul", [x[0], x[0]]),
    "transpose": lambda t, o, x: t.simple("Transpose", x, perm=o.settings["axes"]),
}
