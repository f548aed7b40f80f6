"""Text of shortfalls. They are typed values everywhere else (`stats/scores.py`)."""

from collections.abc import Collection, Iterable, Sequence

from r2r2.stats.scores import Override, Shortfall
from r2r2.stats.scores import ShortfallKind as Kind
from r2r2.stats.suites import SuiteResult

TEXTS = {
    Kind.UNKNOWN_SETTINGS: "settings unknown (from {0.got})",
    Kind.NOT_IN_PAPER: "not in the paper: {0.got.agent} at UTD {0.got.utd} on "
    "{0.got.task}",
    Kind.OVERRIDE: "{0.got}",
    Kind.SEPARATE_RUN: "run {0.got} (another run with the same settings has different "
    "returns)",
    Kind.FEW_SEEDS: "{0.got} of {0.expected} seeds",
    Kind.MISSING: "missing",
    Kind.NO_BASE: "its base, {0.got.agent} at UTD {0.got.utd} with the same settings, "
    "is missing",
    Kind.UNUSABLE_BASE: "its base has no usable mean score ({0.got})",
    Kind.NO_EVALUATION: "no evaluation",
    Kind.ENV_STEPS: "{0.got:,} environment steps instead of {0.expected:,}",
    Kind.POINTS: "{0.got} points instead of {0.expected}",
    Kind.NOT_FINITE: "a score of {0.got}",
    Kind.TRUNCATED_LOG: "a log that ends at environment step {0.got:,} of "
    "{0.expected:,}",
}

# Shortfalls that leave a cell without scores to compute a statistic with.
PREVENTING = {Kind.NO_BASE, Kind.UNUSABLE_BASE, Kind.NO_EVALUATION, Kind.NOT_FINITE}


def describe(shortfalls: Iterable[Shortfall]) -> str:
    """Return shortfalls as one text, with equal ones of several seeds combined.

    Example:
        >>> few = Shortfall(Kind.FEW_SEEDS, 2, 5)
        >>> short = [Shortfall(Kind.POINTS, 5, 50, seed) for seed in (0, 3)]
        >>> describe([few, *short])
        '2 of 5 seeds; seeds 0, 3 have 5 points instead of 50'
        >>> describe([few, few._replace(of_base=True)])
        '2 of 5 seeds; the same for its base'
    """
    unique = list(dict.fromkeys(shortfalls))
    direct = [s for s in unique if not s.of_base]
    inherited = [s._replace(of_base=False) for s in unique if s.of_base]
    clauses = _clauses(direct)
    if inherited and set(inherited) == set(direct):
        clauses.append("the same for its base")
    elif inherited:
        clauses.append(f"its base: {', '.join(_clauses(inherited))}")
    return "; ".join(clauses)


def describe_suite(result: SuiteResult, shared: Collection[Override] = ()) -> str:
    """Return the shortfalls of a method on a suite as one text, grouped by task.

    Where there is no statistic, only the reasons for that are given.

    Args:
        result: the method on the suite.
        shared: overrides to omit, because they hold for all runs.
    """
    tasks_by_text: dict[str, list[str]] = {}
    for task in result.tasks:
        shortfalls: Iterable[Shortfall] = result.shortfalls.get(task, ())
        if result.estimates:
            shortfalls = without_shared(shortfalls, shared)
        else:
            relevant = PREVENTING | {Kind.MISSING}
            shortfalls = [s for s in shortfalls if s.kind in relevant]
        if text := describe(shortfalls):
            tasks_by_text.setdefault(text, []).append(task)
    return "; ".join(
        f"{'all tasks' if len(tasks) == len(result.tasks) > 1 else ', '.join(tasks)}: "
        f"{text}"
        for text, tasks in tasks_by_text.items()
    )


def without_shared(
    shortfalls: Iterable[Shortfall], shared: Collection[Override]
) -> list[Shortfall]:
    """Return shortfalls without the overrides that all runs share."""
    return [s for s in shortfalls if s.kind is not Kind.OVERRIDE or s.got not in shared]


def format_seeds(seeds: Sequence[int]) -> str:
    """Return sorted seeds as a range or a list.

    Example:
        >>> format_seeds([0, 1, 2, 3]), format_seeds([3, 7])
        ('0 to 3', '3, 7')
    """
    if len(seeds) > 2 and list(seeds) == [*range(seeds[0], seeds[-1] + 1)]:
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def shortfall_text(shortfall: Shortfall) -> str:
    """Return a shortfall in a few words, without its seed."""
    return TEXTS[shortfall.kind].format(shortfall)


def _clauses(shortfalls: Iterable[Shortfall]) -> list[str]:
    """Return the text of each shortfall, those of seeds last and grouped by text."""
    clauses: list[str] = []
    by_seed: dict[int, list[str]] = {}
    for shortfall in shortfalls:
        text = shortfall_text(shortfall)
        if shortfall.seed is None:
            clauses.append(text)
        else:
            by_seed.setdefault(shortfall.seed, []).append(text)
    seeds_by_text: dict[str, list[int]] = {}
    for seed, texts in by_seed.items():
        seeds_by_text.setdefault(" and ".join(texts), []).append(seed)
    for text, seeds in seeds_by_text.items():
        verb = "seeds {} have {}" if len(seeds) > 1 else "seed {} has {}"
        clauses.append(verb.format(format_seeds(seeds), text))
    return clauses
