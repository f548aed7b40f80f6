"""The cost of a compiled program, read from its text: kernels of one update."""

import re
from collections.abc import Iterator

# Operations in the text of a program for which nothing is executed.
FREE_OPERATIONS = frozenset(
    "parameter get-tuple-element tuple bitcast constant after-all opt-barrier "
    "partition-id replica-id".split()
)
COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"(?:ROOT )?%?([\w.\-]+) = .*? ([a-z][\w\-]*)\(")
LOOP_BODY = re.compile(r"body=%?([\w.\-]+)")
CALLED = re.compile(r"to_apply=%?([\w.\-]+)")
TRIP_COUNT = re.compile(r'known_trip_count":\{"n":"(\d+)"')
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
TWO_BRANCHES = re.compile(r"(?:true|false)_computation=%?([\w.\-]+)")

Computations = dict[str, list[str]]  # instructions by name
Kernels = list[tuple[str, float]]  # names, and how often each is launched


def kernels_per_update(text: str, stride: int, policy_period: int) -> float | None:
    """Return the number of kernels that one update of the whole fleet launches.

    A CPU launches no kernels: the computations that XLA has fused are counted instead.
    The loop over updates is the one with the longest body. Its branches, which exist
    with a stride of 1, are taken once per policy period. None means there is no loop.
    """
    kernels = _update_kernels(text, policy_period)
    return _launches(kernels) / stride if kernels else None


def kernel_names(text: str) -> set[str]:
    """Return the names, in a profile, of the kernels in the loop over updates."""
    return {name.replace(".", "_") for name, _ in _update_kernels(text, 1)}


def _update_kernels(text: str, policy_period: int) -> Kernels:
    """Return the kernels of the longest loop body; none if there is no loop."""
    computations = _parse(text)
    bodies = sorted(set(LOOP_BODY.findall(text)))
    lengths = {x: _launches(_kernels(computations, x, 1, loops=False)) for x in bodies}
    longest = max(bodies, key=lengths.__getitem__, default=None)
    return _kernels(computations, longest, policy_period) if longest else []


def _launches(kernels: Kernels) -> float:
    return sum(times for _, times in kernels)


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


def _kernels(
    computations: Computations, computation: str, policy_period: int, loops: bool = True
) -> Kernels:
    """Return the kernels of a computation, with the loops inside it or without."""

    def inner(name: str, times: float = 1.0) -> Kernels:
        kernels = _kernels(computations, name, policy_period, loops)
        return [(kernel, times * each) for kernel, each in kernels]

    result: Kernels = []
    for name, operation, line in _executed(computations[computation]):
        if operation == "while":
            trips = int((TRIP_COUNT.findall(line) or [1])[0])
            result += inner(LOOP_BODY.findall(line)[0], trips) if loops else []
        elif operation == "conditional":
            branches = sorted(map(inner, _branches(line)), key=_launches)
            result += [(kernel, 0.0) for branch in branches for kernel, _ in branch]
            result += [(kernel, each / policy_period) for kernel, each in branches[-1]]
        elif operation == "call":
            result += inner(CALLED.findall(line)[0])
        else:
            result.append((name, 1.0))
    return result


def _executed(instructions: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the operation and the text of executed instructions."""
    for line in instructions:
        if match := INSTRUCTION.match(line):
            name, operation = match.groups()
            if operation not in FREE_OPERATIONS and not operation.endswith("-done"):
                yield name, operation, line


def _branches(line: str) -> list[str]:
    if listed := BRANCHES.search(line):
        return [name.strip().lstrip("%") for name in listed.group(1).split(",")]
    return TWO_BRANCHES.findall(line)
