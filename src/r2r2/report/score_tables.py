"""The paper's tables of scores, of our runs: aggregates, raw, normalised, ablations."""

import math
from collections.abc import Iterable, Sequence

from r2r2.report.baselines import UNLIKE, base_label, bases_differ, bases_note
from r2r2.report.completeness import brief_suite, unsaid
from r2r2.report.study import Study
from r2r2.report.summary import (
    INTERVALS,
    NONE,
    SPREADS,
    ends,
    interval_entry,
    score_entry,
)
from r2r2.report.tables import Cells, Entry, Table, table_of
from r2r2.stats import paper
from r2r2.stats.scores import LAST, Method
from r2r2.stats.suites import STATISTICS, SuiteResult

SUITE_TITLES = {
    "gym-mujoco": "Gymnasium MuJoCo",
    "dmc-hard": "DMC-Hard",
    paper.ALL: "all 11 tasks",
}
UNTRAINED = "of all of them, those before any training included"
NORMALISED = (
    "Scores are relative to the base agent at UTD 1 on the same task: "
    "1 + (S - mean of the base) / |mean of the base|. A base near zero makes any "
    "difference large: see the raw scores."
)


def main_table(study: Study) -> Table:
    """The mean normalised score of every method on every suite, with its interval."""
    suites = list(dict.fromkeys(one.suite for one in study.suites))
    found = {(one.suite, one.method): one for one in study.suites}
    rows: list[Cells] = [
        [
            study.label(method, utd=False),
            utd_text(method),
            *_base(study, method),
            *(suite_entry(study, found[suite, method], "mean") for suite in suites),
        ]
        for method in sorted(study.methods, key=lambda m: m.utd or math.inf)
    ]
    titles = [suite_title(study, suite) for suite in suites]
    header = ["method", "UTD", *_base_header(study), *titles]
    title = "Mean normalised score per suite, with 95 % intervals"
    return table_of("main", title, header, rows, _notes(study, score_note(study)))


def aggregates_table(study: Study) -> Table | None:
    """Every statistic of every method on every suite that one of them has whole.

    None where there is no such suite: without a base nothing is normalised.
    """
    whole = {one.suite for one in study.suites if one.estimates}
    rows: list[Cells] = [
        [
            suite_title(study, one.suite),
            study.label(one.method, utd=False),
            utd_text(one.method),
            *_base(study, one.method),
            *(suite_entry(study, one, statistic) for statistic in STATISTICS),
        ]
        for suite in dict.fromkeys(one.suite for one in study.suites)
        if suite in whole
        for method in study.methods
        for one in study.suites
        if (one.suite, one.method) == (suite, method)
    ]
    if not rows:
        return None
    header = ["suite", "method", "UTD", *_base_header(study), *STATISTICS]
    title = "Statistics of normalised scores per suite, with 95 % intervals"
    return table_of("aggregates", title, header, rows, _notes(study))


def score_tables(study: Study) -> list[Table]:
    """For each UTD the raw scores and the normalised ones, tasks in rows."""
    utds = sorted({m.utd for m in study.methods}, key=lambda utd: utd or math.inf)
    return [
        table for utd in utds for table in (_raw(study, utd), _normalised(study, utd))
    ]


def ablation_table(study: Study) -> Table | None:
    """Methods that differ in their settings alone; None where there are none."""
    own = {run.results.method for run in study.runs if run.status != "file"}
    groups: dict[tuple[str, int | None], list[Method]] = {}
    for method in study.methods:
        if method in own:
            groups.setdefault((method.agent, method.utd), []).append(method)
    kept = [methods for methods in groups.values() if len(methods) > 1]
    if not kept:
        return None
    rows: list[Cells] = [
        [
            method.agent,
            utd_text(method),
            _changes(study, method),
            *(_score(study, method, task) for task in study.tasks),
        ]
        for methods in kept
        for method in sorted(methods, key=lambda m: len(m.departures))
    ]
    header = ["agent", "UTD", "settings that differ", *study.tasks]
    title = "Ablations: raw scores of the same agent with other settings"
    return table_of("ablations", title, header, rows, notes_of(study, SPREADS))


def suite_title(study: Study, suite: str) -> str:
    """A suite as a header names it."""
    if suite in SUITE_TITLES:
        return SUITE_TITLES[suite]
    count = len(study.tasks)
    return f"{suite} ({count} task{'s' if count > 1 else ''})"


def suite_entry(study: Study, one: SuiteResult, statistic: str) -> Entry:
    """A statistic of a suite, or what is missing."""
    found, note = one.estimates.get(statistic), brief_suite(one, study.shared)
    if found is None:
        return Entry("-", note)
    return interval_entry(found.value, *ends(found.stratified), note, digits=2)


def utd_text(method: Method) -> str:
    """The UTD of a method as a table shows it.

    Example:
        >>> utd_text(Method("td7", 20)), utd_text(Method("other"))
        ('20', 'unknown')
    """
    return "unknown" if method.utd is None else str(method.utd)


def _base_header(study: Study) -> list[str]:
    """A column for whose score 1.00 is, where that is not the same in all rows."""
    return ["base"] if bases_differ(study, study.methods) else []


def _base(study: Study, method: Method) -> list[str]:
    return [base_label(study, method) for _ in _base_header(study)]


def _notes(study: Study, *first: str) -> list[str]:
    unlike = [f"{UNLIKE}: 1.00 is the score of the base." for _ in _base_header(study)]
    return notes_of(study, *first, *unlike, NORMALISED, INTERVALS)


def _raw(study: Study, utd: int | None) -> Table:
    methods = [method for method in study.methods if method.utd == utd]
    rows: list[Cells] = [
        [task, *(_score(study, method, task) for method in methods)]
        for task in _tasks(study, methods)
    ]
    header = ["task", *(study.label(method, utd=False) for method in methods)]
    title = f"Raw scores at {_at(utd)}"
    notes = notes_of(study, score_note(study), SPREADS)
    return table_of(f"raw_{_stem(utd)}", title, header, rows, notes)


def _normalised(study: Study, utd: int | None) -> Table:
    methods = [method for method in study.methods if method.utd == utd]
    found = {(one.cell.method, one.cell.task): one for one in study.normalised}

    def entry(method: Method, task: str) -> Entry:
        one = found.get((method, task))
        if one is None:
            return NONE
        lacks = unsaid(one.shortfalls, study.shared)
        return score_entry(one.scores, lacks, relative=True)

    rows: list[Cells] = [
        [t, *(entry(m, t) for m in methods)] for t in _tasks(study, methods)
    ]
    header = ["task", *(study.label(method, utd=False) for method in methods)]
    notes = notes_of(study, *bases_note(study, methods), NORMALISED, INTERVALS)
    title = f"Normalised scores at {_at(utd)}"
    return table_of(f"normalised_{_stem(utd)}", title, header, rows, notes)


def _score(study: Study, method: Method, task: str) -> Entry:
    cell = study.cell(method, task)
    if cell is None:
        return NONE
    return score_entry(cell.scores, unsaid(cell.shortfalls, study.shared))


def _tasks(study: Study, methods: Sequence[Method]) -> Iterable[str]:
    return [t for t in study.tasks if any(study.cell(m, t) for m in methods)]


def _changes(study: Study, method: Method) -> str:
    own = [d for d in method.departures if d not in study.shared]
    return "; ".join(own) or "none"


def _at(utd: int | None) -> str:
    return "a UTD that is not known" if utd is None else f"UTD {utd}"


def _stem(utd: int | None) -> str:
    return "utd_unknown" if utd is None else f"utd{utd}"


def score_note(study: Study) -> str:
    """What a score is, and of what it is where there are too few evaluations for it."""
    said = f"A score is the mean of a seed's last {LAST} evaluations"
    points = [seed.points for cell in study.cells for seed in cell.seeds]
    if any(0 < count < LAST for count in points):
        said += f"; where there are fewer, {UNTRAINED}"
    return f"{said}."


def notes_of(study: Study, *notes: str) -> list[str]:
    """Notes of a table, and first what holds for all that is in it."""
    if not study.shared:
        return list(notes)
    return [
        f"All runs: {'; '.join(study.shared)}. None of them reproduces the paper.",
        *notes,
    ]
