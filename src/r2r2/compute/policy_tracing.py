"""Trace a policy into a NumPy program, which runs without JAX."""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from r2r2.agents.base import Agent
from r2r2.policy.program import FUNCTIONS, Operation, Program, Value

# Operations that return their first operand.
IDENTITIES = {"copy", "copy_p", "stop_gradient", "optimization_barrier", "sharding_constraint"}
# Settings of operations that NumPy needs, with its names.
SETTINGS = {
    "broadcast_in_dim": {"shape": "shape", "broadcast_dimensions": "dims"},
    "concatenate": {"dimension": "axis"},
    "convert_element_type": {"new_dtype": "dtype"},
    "dot_general": {"dimension_numbers": "dims"},
    "integer_pow": {"y": "y"},
    "reduce_max": {"axes": "axes"},
    "reduce_min": {"axes": "axes"},
    "reduce_sum": {"axes": "axes"},
    "reshape": {"new_sizes": "shape"},
    "slice": {"start_indices": "start", "limit_indices": "limit", "strides": "strides"},
    "transpose": {"permutation": "axes"},
}
# Operations whose operands NumPy broadcasts by itself.
ELEMENTWISE = {
    *("add", "add_any", "div", "max", "min", "mul", "pow", "sub", "select_n"),
    *("eq", "ge", "gt", "le", "lt", "ne", "and", "or"),
}

LOGICAL = {"and", "not", "or"}  # of booleans; JAX's are bitwise on integers


def trace_exploration(agent: Agent, policy: Any, obs_dim: int, noise: Any) -> Program:
    """Return `agent.explore` for one observation; `policy` and `noise` give shapes."""
    return trace(agent.explore, policy, _vector(obs_dim), noise)


def trace_greedy(agent: Agent, policy: Any, obs_dim: int) -> Program:
    """Return `agent.greedy` for one observation; `policy` gives shapes."""
    return trace(agent.greedy, policy, _vector(obs_dim))


def _vector(size: int) -> Any:
    return jax.eval_shape(lambda: jnp.zeros(size))


def trace(function: Callable[..., Any], parameters: Any, *inputs: Any) -> Program:
    """Return a function of parameters and inputs as a NumPy program.

    The leaves of `parameters` and of each input are values of the program, in their order.
    """
    closed = jax.make_jaxpr(function)(parameters, *inputs)
    leaves = len(jax.tree.leaves(parameters))
    tracer = _Tracer(closed.jaxpr, closed.consts)
    return tracer.program(leaves, len(closed.jaxpr.invars) - leaves)


class _Tracer:
    """Collects the operations of a jaxpr, those of inner functions included."""

    def __init__(self, jaxpr: Any, constants: Any):
        self._operations: list[Operation] = []
        self._constants: dict[int, Value] = {}
        self._shapes: list[tuple[int, ...]] = []  # by value, as JAX has them
        inputs = [self._new(var.aval.shape) for var in jaxpr.invars]
        (self._output,) = self._add(jaxpr, constants, inputs)

    def _new(self, shape: tuple[int, ...]) -> int:
        self._shapes.append(shape)
        return len(self._shapes) - 1

    def _constant(self, value: Any, dtype: Any) -> int:
        array = np.asarray(value, dtype)
        index = self._new(array.shape)
        self._constants[index] = array
        return index

    def _add(self, jaxpr: Any, constants: Any, inputs: list[int]) -> list[int]:
        """Add the operations of a jaxpr and return its outputs."""
        values: dict[Any, int] = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, constant in zip(jaxpr.constvars, constants, strict=True):
            values[var] = self._constant(constant, var.aval.dtype)

        def read(atom: Any) -> int:
            if isinstance(atom, Literal):
                return self._constant(atom.val, cast(Any, atom.aval).dtype)
            return values[atom]

        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            outputs = self._add_equation(equation, operands)
            values |= zip(equation.outvars, outputs, strict=True)
        return [read(atom) for atom in jaxpr.outvars]

    def _add_equation(self, equation: Any, operands: list[int]) -> list[int]:
        name, params = equation.primitive.name, equation.params
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        if inner is not None:
            return self._add(inner.jaxpr, inner.consts, operands)
        if name in IDENTITIES:
            return operands[: len(equation.outvars)]
        if name not in FUNCTIONS:
            raise NotImplementedError(f"policy: the operation {name!r} has no NumPy program")
        if name in LOGICAL and any(atom.aval.dtype != bool for atom in equation.invars):
            raise NotImplementedError(
                f"policy: the operation {name!r} of integers is not supported"
            )
        (out,) = equation.outvars
        settings = {new: params[old] for old, new in SETTINGS.get(name, {}).items()}
        if name == "squeeze":
            settings["shape"] = out.aval.shape
        output = self._new(out.aval.shape)
        self._operations.append(Operation(name, tuple(operands), output, settings))
        return [output]

    def program(self, parameters: int, inputs: int) -> Program:
        """Return the operations that the output needs, as a program."""
        needed, kept = {self._output}, list[Operation]()
        for operation in reversed(self._operations):
            if operation.output in needed:
                needed |= set(operation.inputs)
                kept.insert(0, operation)
        kept = _without_broadcasts(kept, self._shapes, self._output)
        used = {index for operation in kept for index in operation.inputs} | {self._output}
        constants = [index for index in self._constants if index in used]
        order = [*range(parameters + inputs), *constants, *(x.output for x in kept)]
        number = {index: new for new, index in enumerate(order)}
        operations = tuple(
            operation._replace(
                inputs=tuple(number[x] for x in operation.inputs), output=number[operation.output]
            )
            for operation in kept
        )
        values = tuple(self._constants[index] for index in constants)
        return Program(parameters, inputs, values, operations, number[self._output])


def _without_broadcasts(
    operations: list[Operation], shapes: list[tuple[int, ...]], output: int
) -> list[Operation]:
    """Remove broadcasts that NumPy makes by itself: beside an operand of the full shape."""
    broadcasts = {x.output for x in operations if x.name == "broadcast_in_dim"}

    def full(operation: Operation, without: int) -> bool:
        others = (x for x in operation.inputs if x != without and x not in broadcasts)
        return any(shapes[x] == shapes[operation.output] for x in others)

    def removable(broadcast: Operation) -> bool:
        missing = len(broadcast.settings["shape"]) - len(shapes[broadcast.inputs[0]])
        aligned = broadcast.settings["dims"] == tuple(
            range(missing, len(broadcast.settings["shape"]))
        )
        users = [x for x in operations if broadcast.output in x.inputs]
        return (
            aligned
            and broadcast.output != output
            and all(x.name in ELEMENTWISE and full(x, broadcast.output) for x in users)
        )

    replaced: dict[int, int] = {}
    kept: list[Operation] = []
    for operation in operations:
        inputs = tuple(replaced.get(x, x) for x in operation.inputs)
        if operation.name == "broadcast_in_dim" and removable(operation):
            replaced[operation.output] = inputs[0]
        else:
            kept.append(operation._replace(inputs=inputs))
    return kept


def host_parameters(policy: Any) -> list[Value]:
    """Return the leaves of a policy as NumPy arrays, in the order of a program's parameters."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(policy)]
