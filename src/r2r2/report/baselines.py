"""Whose score a normalised 1.00 is: scores that have another base do not compare."""

from collections.abc import Iterable, Sequence

from r2r2.report.study import Study
from r2r2.stats.scores import Method

NOBODY = "-"  # where a base is missing
UNLIKE = "Normalised scores that are relative to different bases do not compare"


def base_of(study: Study, method: Method) -> Method | None:
    """The base that a method's scores are relative to; None where it is missing."""
    own = (one.base for one in study.normalised if one.cell.method == method)
    return next((base.method for base in own if base), None)


def base_label(study: Study, method: Method) -> str:
    """The name of a method's base, as tables and figures have it."""
    base = base_of(study, method)
    return NOBODY if base is None else study.label(base)


def bases_differ(study: Study, methods: Iterable[Method]) -> bool:
    """Whether some methods' scores are relative to different ones."""
    found = {base_of(study, method) for method in methods}
    return len(found - {None}) > 1


def bases_note(study: Study, methods: Sequence[Method]) -> tuple[str, ...]:
    """Who is relative to whom; nothing where all are to the same."""
    if not bases_differ(study, methods):
        return ()
    groups: dict[str, list[str]] = {}
    for method in methods:
        groups.setdefault(base_label(study, method), []).append(study.label(method))
    groups.pop(NOBODY, None)
    said = [f"1.00 is that of {k} for [{'; '.join(own)}]" for k, own in groups.items()]
    return (f"{UNLIKE}: {', '.join(said)}.",)
