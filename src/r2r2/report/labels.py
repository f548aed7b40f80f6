"""Runs of one method that contradict each other, kept apart by their names.

Before and after a change of the program, two runs have the same settings and seeds and
other returns. To put their seeds together would be wrong, and to refuse them no help.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence

from r2r2.stats.scores import METRIC, Method, Results, agree

UNKNOWN = ", whose settings are not known"  # ends what is said of a file
# Ends what is said of a run that is kept apart from others of its method.
APART = ", since another run of the same settings has other returns of the same seed"
USUAL = ", not "  # before the value that a setting has by default

# A method at any UTD: its agent, and how its settings differ from the agent's.
Variant = tuple[str, tuple[str, ...]]


@functools.cache
def labels_of(
    methods: tuple[Method, ...], shared: tuple[str, ...]
) -> Mapping[Variant, tuple[str, ...]]:
    """For each variant the words that follow its agent's name.

    Args:
        methods: all that are to be told apart.
        shared: departures that all have, and that are said elsewhere.

    Example:
        >>> files = [f"from {name}{UNKNOWN}" for name in ("a, b.csv", "a, c.csv")]
        >>> methods = tuple(Method("td7", 1, (name,)) for name in files)
        >>> list(labels_of(methods, ()).values())
        [('from a, b.csv',), ('from a, c.csv',)]
        >>> methods = tuple(Method("td7", 1, (f"x is 5, not {n}",)) for n in (1, 2))
        >>> list(labels_of(methods, ()).values())
        [('x is 5, not 1',), ('x is 5, not 2',)]
    """
    variants = list(dict.fromkeys((m.agent, m.departures) for m in methods))
    own = {v: tuple(d for d in v[1] if d not in shared) for v in variants}
    brief = {v: tuple(map(_brief, found)) for v, found in own.items()}
    texts = [_text(v, found) for v, found in brief.items()]
    return {
        v: own[v] if texts.count(_text(v, found)) > 1 else found
        for v, found in brief.items()
    }


def _text(variant: Variant, words: Sequence[str]) -> str:
    return ", ".join([variant[0], *words])


def _brief(departure: str) -> str:
    """What a method has, without what it would have by default."""
    for reason in (UNKNOWN, APART):
        if departure.endswith(reason):
            return departure.removesuffix(reason)
    return departure.partition(USUAL)[0]


NAMED = "run "  # how a departure begins that is no setting but the name of a run

Points = Mapping[tuple[str, int, int], float]  # returns by task, seed and step


def told_apart(named: Sequence[tuple[str, Results]]) -> list[Results]:
    """Results in which every method that runs disagree on is one method for each run.

    Args:
        named: runs' names, and what they have found.

    Example:
        >>> from r2r2.storage.evaluations import Row
        >>> def found(value):
        ...     rows = [Row("x", "Hopper-v5", 0, "return", 1000, value)]
        ...     return Results(Method("td7", 1), rows)
        >>> before, after = told_apart([("before", found(1.0)), ("after", found(2.0))])
        >>> [one.method.departures[0].removesuffix(APART) for one in (before, after)]
        ['run before', 'run after']
        >>> told_apart([("a", found(1.0)), ("b", found(1.0))])[1].method
        Method(agent='td7', utd=1, departures=())
    """
    points: dict[Method, list[Points]] = {}
    for _, one in named:
        points.setdefault(one.method, []).append(_points(one))
    split = {
        method
        for method, whole in points.items()
        if any(_contradict(*two) for two in itertools.combinations(whole, 2))
    }
    return [
        one._replace(method=_named(one.method, name)) if one.method in split else one
        for name, one in named
    ]


def nameless(method: Method) -> Method:
    """A method without the name of its run, if it was told apart by that.

    Example:
        >>> nameless(Method("td7", 1, ("steps is 9", "run a, since b differs")))
        Method(agent='td7', utd=1, departures=('steps is 9',))
    """
    kept = [d for d in method.departures if not d.startswith(NAMED)]
    return method._replace(departures=tuple(kept))


def _named(method: Method, name: str) -> Method:
    return method._replace(departures=(*method.departures, f"{NAMED}{name}{APART}"))


def _points(one: Results) -> Points:
    own = [row for row in one.rows if row.metric == METRIC]
    return {(row.env_name, row.seed, row.env_step): row.value for row in own}


def _contradict(one: Points, other: Points) -> bool:
    return any(not agree(one[key], other[key]) for key in one.keys() & other.keys())
