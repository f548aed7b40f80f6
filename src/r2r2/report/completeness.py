"""What cells and suites lack, in as few words as say all of it."""

import re
from collections.abc import Iterable, Sequence

from r2r2.stats.suites import SuiteResult

BASE = "its base: "


def brief(lacks: Iterable[str]) -> str:
    """Shortfalls as one text, those of several seeds together, and those of the base.

    Example:
        >>> brief(["2 of 5 seeds", "seed 0 has 5 points", "seed 3 has 5 points"])
        '2 of 5 seeds; seeds 0, 3 have 5 points'
        >>> brief(["2 of 5 seeds", "its base: 2 of 5 seeds"])
        '2 of 5 seeds; the same of its base'
    """
    found = [_shortened(lack) for lack in dict.fromkeys(lacks)]
    base = [lack.removeprefix(BASE) for lack in found if lack.startswith(BASE)]
    own = [lack for lack in found if not lack.startswith(BASE)]
    clauses = _clauses(own)
    if base and set(base) == set(own):
        clauses.append("the same of its base")
    elif base:
        clauses.append(f"{BASE}{', '.join(_clauses(base))}")
    return "; ".join(clauses)


def brief_suite(one: SuiteResult, said: Sequence[str] = ()) -> str:
    """What a method lacks on a suite as one text, tasks that lack the same together.

    Where it has no statistic it is told why; the rest stands with the single tasks.

    Args:
        one: the method on the suite.
        said: what need not be said again, because it holds for all.
    """
    found: dict[str, list[str]] = {}
    for task in one.tasks:
        if one.estimates:
            lack = brief(unsaid(_own(one, task), said))
        elif f"{task} is missing" in one.shortfalls:
            lack = "missing"
        else:
            lack = brief(x for x in _own(one, task) if _prevents(x))
        if lack:
            found.setdefault(lack, []).append(task)
    which = {
        lack: "all tasks" if len(tasks) == len(one.tasks) > 1 else ", ".join(tasks)
        for lack, tasks in found.items()
    }
    return "; ".join(f"{tasks}: {lack}" for lack, tasks in which.items())


def unsaid(lacks: Iterable[str], said: Sequence[str]) -> list[str]:
    """Shortfalls without those that hold for all and are said once.

    Example:
        >>> unsaid(["utd is 5", "its base: utd is 5", "1 of 5 seeds"], ["utd is 5"])
        ['1 of 5 seeds']
    """
    return [lack for lack in lacks if lack.removeprefix(BASE) not in said]


def seed_list(seeds: Sequence[str]) -> str:
    """Seeds as people say them.

    Example:
        >>> seed_list(["0", "1", "2", "3"]), seed_list(["3", "7"])
        ('0 to 3', '3, 7')
    """
    first, last = int(seeds[0]), int(seeds[-1])
    row = len(seeds) > 2 and list(map(int, seeds)) == [*range(first, last + 1)]
    return f"{first} to {last}" if row else ", ".join(seeds)


def _own(one: SuiteResult, task: str) -> list[str]:
    start = f"{task}: "
    return [x.removeprefix(start) for x in one.shortfalls if x.startswith(start)]


def _prevents(lack: str) -> bool:
    """Whether there are no scores because of it, or none to calculate with."""
    base = lack.startswith("its base") and not lack.startswith(BASE)
    return base or "no evaluation" in lack or "a score of" in lack


def _shortened(lack: str) -> str:
    pattern = r"its base, ([^,]+), UTD 1, .+, is missing"
    words = r"its base, \1 at UTD 1 with the same settings, is missing"
    return re.sub(pattern, words, lack, flags=re.DOTALL)


def _clauses(lacks: Sequence[str]) -> list[str]:
    """Shortfalls, those of seeds last and those of seeds that lack the same in one."""
    plain: list[str] = []
    by_seed: dict[str, list[str]] = {}
    for lack in lacks:
        seed = re.match(r"seed ([0-9]+) has (.*)", lack, flags=re.DOTALL)
        if seed:
            by_seed.setdefault(seed[1], []).append(seed[2])
        else:
            plain.append(lack)
    alike: dict[str, list[str]] = {}
    for number, whole in by_seed.items():
        alike.setdefault(", and ".join(whole), []).append(number)
    return plain + [_clause(seeds, what) for what, seeds in alike.items()]


def _clause(seeds: Sequence[str], what: str) -> str:
    several = len(seeds) > 1
    verb = "s {} have" if several else " {} has"
    return f"seed{verb.format(seed_list(seeds))} {what}"
