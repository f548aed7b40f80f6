"""Names of methods: as short as they can be and still unlike each other's."""

import functools
from collections.abc import Mapping, Sequence

from r2r2.report.scores import Method

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
