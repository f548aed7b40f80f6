"""The cost of a compiled program, read from its text: kernels of one update."""

import re
from collections.abc import Iterator

# Operations in the text of a program for which nothing is executed.
FREE_OPERATIONS = frozenset(
    "parameter get-tuple-element tuple bitcast constant after-all opt-barrier "
    "partition-id replica-id".split()
)
COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"(?:ROOT )?%?[\w.\-]+ = .*? ([a-z][\w\-]*)\(")
NAME = re.compile(r"^(?:ROOT )?%?([\w.\-]+) =")
LOOP_BODY = re.compile(r"body=%?([\w.\-]+)")
CALLED = re.compile(r"to_apply=%?([\w.\-]+)")
TRIP_COUNT = re.compile(r'known_trip_count":\{"n":"(\d+)"')
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
TWO_BRANCHES = re.compile(r"(?:true|false)_computation=%?([\w.\-]+)")

Computations = dict[str, list[str]]  # instructions by name


def kernels_per_update(text: str, stride: int, policy_period: int) -> float | None:
    """Return the number of kernels that one update of the whole fleet launches.

    A CPU launches no kernels: the computations that XLA has fused are counted instead.
    The loop over updates is the one with the longest body. Its branches, which exist
    with a stride of 1, are taken once per policy period. None means there is no loop.
    """
    computations = _parse(text)
    body = _longest_body(text, computations)
    if body is None:
        return None
    return _count(computations, body, policy_period) / stride


def kernel_names(text: str) -> set[str]:
    """Return the names, in a profile, of the kernels in the loop over updates."""
    computations = _parse(text)
    body = _longest_body(text, computations)
    return set(_names(computations, body)) if body else set()


def _names(computations: Computations, computation: str) -> Iterator[str]:
    for operation, line in _executed(computations[computation]):
        if operation in ("while", "call", "conditional"):
            inner = LOOP_BODY.findall(line) + CALLED.findall(line) + _branches(line)
            for called in inner:
                yield from _names(computations, called)
        else:
            yield NAME.findall(line)[0].replace(".", "_")


def _longest_body(text: str, computations: Computations) -> str | None:
    bodies = sorted(set(LOOP_BODY.findall(text)))
    lengths = {x: _count(computations, x, 1, loops=False) for x in bodies}
    return max(bodies, key=lengths.__getitem__, default=None)


def _parse(text: str) -> Computations:
    computations: Computations = {}
    name = ""
    for line in text.splitlines():
        if header := COMPUTATION.match(line):
            name = header.group(1)
            computations[name] = []
        elif name and line.startswith("  "):
            computations[name].append(line.strip())
    return computations


def _executed(instructions: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the instructions that are executed, each after its operation."""
    for line in instructions:
        match = INSTRUCTION.match(line)
        operation = match.group(1) if match else ""
        free = operation in FREE_OPERATIONS or operation.endswith("-done")
        if match and not free:
            yield operation, line


def _count(
    computations: Computations, name: str, policy_period: int, loops: bool = True
) -> float:
    """Count what a computation executes, with the loops inside it or without."""
    total = 0.0
    for operation, line in _executed(computations[name]):
        if operation == "while":
            trips = TRIP_COUNT.search(line)
            times = loops * (int(trips.group(1)) if trips else 1)
            (body,) = LOOP_BODY.findall(line)
            total += times and times * _count(computations, body, policy_period)
        elif operation == "conditional":
            counts = [
                _count(computations, x, policy_period, loops) for x in _branches(line)
            ]
            total += max(counts) / policy_period
        elif operation == "call":
            (called,) = CALLED.findall(line)
            total += _count(computations, called, policy_period, loops)
        else:
            total += 1
    return total


def _branches(line: str) -> list[str]:
    if listed := BRANCHES.search(line):
        return [name.strip().lstrip("%") for name in listed.group(1).split(",")]
    return TWO_BRANCHES.findall(line)
