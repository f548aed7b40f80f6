"""How many kernels one update of a compiled program launches, and their names."""

import re
from collections.abc import Iterator

# What XLA keeps in the text of a program, and nothing is run for.
NOTHING = {
    "parameter",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "constant",
    "after-all",
    "opt-barrier",
    "partition-id",
    "replica-id",
}
COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"(?:ROOT )?%?[\w.\-]+ = .*? ([a-z][\w\-]*)\(")
NAME = re.compile(r"^(?:ROOT )?%?([\w.\-]+) =")
LOOP_BODY = re.compile(r"body=%?([\w.\-]+)")
CALLED = re.compile(r"to_apply=%?([\w.\-]+)")
TURNS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
TWO_BRANCHES = re.compile(r"(?:true|false)_computation=%?([\w.\-]+)")

Computations = dict[str, list[str]]  # instructions by name


def kernels_of(text: str, stride: int, phase: int) -> float | None:
    """Kernels that one update of the whole fleet launches.

    On a CPU, which launches nothing, the computations that XLA has fused. The loop of
    updates is the one with the longest body. What is a branch there, as it is in a
    stride of one, is taken once in a phase. None: the text shows no loop.

    Args:
        text: of the compiled program.
        stride: updates in a turn of its loop.
        phase: the agent's.
    """
    computations = _computations(text)
    body = _longest_body(text, computations)
    return None if body is None else _count(computations, body, phase) / stride


def kernel_names(text: str) -> set[str]:
    """What a profile calls the kernels that XLA wrote for the loop of updates."""
    computations = _computations(text)
    body = _longest_body(text, computations)
    return set(_names(computations, body)) if body else set()


def _names(computations: Computations, computation: str) -> Iterator[str]:
    for operation, line in _launches(computations[computation]):
        if operation in ("while", "call", "conditional"):
            inner = LOOP_BODY.findall(line) + CALLED.findall(line) + _branches(line)
            for called in inner:
                yield from _names(computations, called)
        else:
            yield NAME.findall(line)[0].replace(".", "_")


def _longest_body(text: str, computations: Computations) -> str | None:
    bodies = sorted(set(LOOP_BODY.findall(text)))
    own = {x: _count(computations, x, phase=1, loops=False) for x in bodies}
    return max(bodies, key=own.__getitem__, default=None)


def _computations(text: str) -> Computations:
    found: Computations = {}
    name = ""
    for line in text.splitlines():
        if begun := COMPUTATION.match(line):
            name = begun.group(1)
            found[name] = []
        elif name and line.startswith("  "):
            found[name].append(line.strip())
    return found


def _launches(instructions: list[str]) -> list[tuple[str, str]]:
    """The instructions for which something is run, each with its operation."""
    found = [(INSTRUCTION.match(line), line) for line in instructions]
    pairs = [(match.group(1), line) for match, line in found if match]
    return [x for x in pairs if x[0] not in NOTHING and not x[0].endswith("-done")]


def _count(
    computations: Computations, name: str, phase: int, loops: bool = True
) -> float:
    """What is run in a computation and in all it calls, loops inside it or not."""
    total = 0.0
    for operation, line in _launches(computations[name]):
        if operation == "while":
            turns = TURNS.search(line)
            times = loops * (int(turns.group(1)) if turns else 1)
            (body,) = LOOP_BODY.findall(line)
            total += times and times * _count(computations, body, phase)
        elif operation == "conditional":
            branches = [_count(computations, x, phase, loops) for x in _branches(line)]
            total += max(branches) / phase
        elif operation == "call":
            (called,) = CALLED.findall(line)
            total += _count(computations, called, phase, loops)
        else:
            total += 1
    return total


def _branches(line: str) -> list[str]:
    if listed := BRANCHES.search(line):
        return [name.strip().lstrip("%") for name in listed.group(1).split(",")]
    return TWO_BRANCHES.findall(line)
