"""A policy's program as JSON, which `r2r2.load` reads without JAX."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from r2r2.policy.program import FUNCTIONS, Operation, Program, Value
from r2r2.policy.spaces import TaskSpaces, spaces_from_json, spaces_to_json

FORMAT = 1
DTYPES = ("float32", "float64")  # of inputs


class Parameter(NamedTuple):
    """A parameter of a policy's program, and where the files of a run hold it."""

    weights: str | None  # its name in weights.npz; None: not an array of that file
    best: str  # its name in best_weights.npz
    shape: tuple[int, ...]
    dtype: str


class PolicyDocument(NamedTuple):
    """The content of a run's policy.json: all but the numbers of its policies."""

    program: Program
    parameters: tuple[Parameter | None, ...]  # None: no operation uses it
    dtype: str  # of the program's input
    normalizes: bool  # whether observations are normalized by scales in the files
    spaces: Mapping[str, TaskSpaces]  # by task

    def to_json(self) -> dict[str, Any]:
        """Return the document as JSON values."""
        return {
            "format": FORMAT,
            "dtype": self.dtype,
            "normalizes": self.normalizes,
            "spaces": {task: spaces_to_json(own) for task, own in self.spaces.items()},
            "parameters": [x and {**x._asdict(), "shape": list(x.shape)} for x in self.parameters],
            "program": program_to_json(self.program),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "PolicyDocument":
        """Return the document that `to_json` returned; raise ValueError for anything else."""
        if fields.get("format") != FORMAT:
            raise ValueError(f"format: expected {FORMAT}, got {fields.get('format')!r}")
        try:
            program = program_from_json(fields["program"])
            parameters = tuple(
                x and Parameter(x["weights"], x["best"], tuple(x["shape"]), x["dtype"])
                for x in fields["parameters"]
            )
            if len(parameters) != program.parameters:
                raise ValueError("parameters: not those of the program")
            dtype, normalizes = fields["dtype"], bool(fields["normalizes"])
            if dtype not in DTYPES:
                raise ValueError(f"dtype: expected {' or '.join(DTYPES)}, got {dtype!r}")
            spaces = {task: spaces_from_json(x) for task, x in fields["spaces"].items()}
            return cls(program, parameters, dtype, normalizes, spaces)
        except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            raise ValueError(f"not a policy: {type(error).__name__}: {error}") from None


def program_to_json(program: Program) -> dict[str, Any]:
    """Return a program as JSON values."""
    return {
        "parameters": program.parameters,
        "inputs": program.inputs,
        "constants": [
            {"dtype": str(x.dtype), "shape": list(x.shape), "values": _numbers(x)}
            for x in program.constants
        ],
        "operations": [
            [x.name, list(x.inputs), x.output, {k: _to_json(v) for k, v in x.settings.items()}]
            for x in program.operations
        ],
        "output": program.output,
    }


def program_from_json(fields: Mapping[str, Any]) -> Program:
    """Return the program that `program_to_json` returned; raise ValueError if it is not one."""
    constants = tuple(_constant(x) for x in fields["constants"])
    counts = fields["parameters"], fields["inputs"], fields["output"]
    if not all(isinstance(x, int) and x >= 0 for x in counts):
        raise ValueError("program: expected counts >= 0")
    known = counts[0] + counts[1] + len(constants)  # values so far
    operations: list[Operation] = []
    for name, inputs, output, settings in fields["operations"]:
        if name not in FUNCTIONS:
            raise ValueError(f"program: unknown operation {name!r}")
        valid = inputs and all(type(x) is int and 0 <= x < known for x in inputs)
        if not valid or output != known:
            raise ValueError(f"program: operation {len(operations)} has invalid operands")
        known += 1
        tuples = {str(key): _to_tuples(value) for key, value in settings.items()}
        operations.append(Operation(name, tuple(inputs), output, tuples))
    if counts[2] >= known:
        raise ValueError("program: its output is no value of it")
    return Program(counts[0], counts[1], constants, tuple(operations), counts[2])


def _numbers(array: Value) -> list[Any]:
    """Return the numbers of an array; as text where JSON has no such number."""
    return [x if np.isfinite(x) else str(x) for x in array.ravel().tolist()]


def _constant(fields: Mapping[str, Any]) -> Value:
    dtype = np.dtype(str(fields["dtype"]))
    if dtype.kind not in "biuf":
        raise ValueError(f"program: a constant of type {dtype}")
    return np.array(fields["values"], dtype).reshape(fields["shape"])


def _to_json(value: Any) -> Any:
    """Return a setting of an operation as a JSON value."""
    if isinstance(value, (str, bool, int, float)) or value is None:
        return value
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, Sequence):
        return [_to_json(item) for item in value]
    return str(np.dtype(value))


def _to_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_to_tuples(item) for item in value)
    return value
