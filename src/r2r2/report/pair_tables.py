"""Methods set against each other, task by task, and over all tasks they share."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from r2r2.report.apart import nameless
from r2r2.report.bootstrap import comparison_interval
from r2r2.report.relative_to import base_label, bases_differ
from r2r2.report.samples import Floats, Given
from r2r2.report.score_tables import notes_of
from r2r2.report.scores import Method
from r2r2.report.shortfalls import unsaid
from r2r2.report.statistics import mean_score, probability_of_improvement
from r2r2.report.study import Study
from r2r2.report.suites import SAMPLES, SEED
from r2r2.report.summary import ends, interval_entry, score_entry
from r2r2.report.tables import Cells, Entry, Table, table_of

FEW = 3  # so many methods are compared each with each
Scores = dict[str, Floats]

PAIRS = (
    "Difference: of the means, first less second; over all tasks, that of normalised "
    "scores, if they have the same base. Probability: that a run of the first beats "
    "one of the second on the same task; 0.5 is no difference. Intervals are "
    f"95 % percentile bootstrap intervals of {SAMPLES:,} resamples, either's seeds "
    f"drawn within tasks, generator seeded with {SEED}; with one seed on either side "
    "there is none. They say nothing of settings that differ."
)


def pairs_of(study: Study) -> list[tuple[Method, Method]]:
    """Which methods to set against each other, the better known second.

    Of a few methods all pairs; of many each agent with R2R2 against itself without,
    runs that are kept apart, and results of a file against runs of the same agent and
    UTD.
    """
    methods = study.methods
    own = {run.results.method for run in study.runs if run.status != "file"}
    if len(methods) <= FEW:
        pairs = [(b, a) for n, a in enumerate(methods) for b in methods[n + 1 :]]
        return [(a, b) if a in own and b not in own else (b, a) for b, a in pairs]
    plain = [
        (one, other)
        for one in methods
        for other in methods
        if one.agent.endswith("+r2r2") and nameless(other) == _without_r2r2(one)
    ]
    apart = [
        (one, other)
        for n, other in enumerate(methods)
        for one in methods[n + 1 :]
        if nameless(one) == nameless(other)
    ]
    files = [
        (one, other)
        for other in methods
        for one in methods
        if other not in own and one in own and one[:2] == other[:2]
    ]
    return plain + apart + files


def _without_r2r2(method: Method) -> Method:
    return nameless(method)._replace(agent=method.agent.removesuffix("+r2r2"))


def pair_table(study: Study) -> Table | None:
    """Every pair on every task; None where there is no pair."""
    rows: list[Cells] = []
    for one, other in pairs_of(study):
        names = [study.label(one), study.label(other)]
        shared = [t for t in study.tasks if study.cell(one, t) or study.cell(other, t)]
        rows += [[*names, t, *_task(study, one, other, t)] for t in shared]
        rows.append([*names, *_overall(study, one, other)])
    if not rows:
        return None
    header = ["first", "second", "task", "score of first", "score of second"]
    header += ["difference", "probability of improvement"]
    title = "Methods compared in pairs, with 95 % intervals"
    return table_of("pairs", title, header, rows, notes_of(study, PAIRS))


def _task(study: Study, one: Method, other: Method, task: str) -> Cells:
    cells = [study.cell(method, task) for method in (one, other)]
    entries: list[Entry] = []
    scores: list[Scores] = []
    for cell in cells:
        found = np.empty(0) if cell is None else cell.scores
        lacks = ["no run of it"] if cell is None else cell.shortfalls
        entries.append(score_entry(found, unsaid(lacks, study.shared)))
        scores.append({task: found} if _usable(found) else {})
    if not all(scores):
        return [*entries, Entry("-"), Entry("-")]
    return [*entries, _difference(*scores), _probability(*scores)]


def _overall(study: Study, one: Method, other: Method) -> Cells:
    """The row of all tasks that both have."""
    raw = [_scores(study, method) for method in (one, other)]
    tasks = [task for task in raw[0] if task in raw[1]]
    left_out = [t for t in study.tasks if (t in raw[0]) != (t in raw[1])]
    note = f"without {', '.join(left_out)}, which one of them lacks" if left_out else ""
    words = Entry(f"all shared ({len(tasks)})", note)
    if not tasks:
        return [words, "-", "-", "-", "-"]
    difference = _relative_difference(study, one, other, tasks)
    probability = _probability(*(_only(found, tasks) for found in raw))
    return [words, "-", "-", difference, probability]


def _relative_difference(
    study: Study, one: Method, other: Method, tasks: Sequence[str]
) -> Entry:
    """The difference of normalised scores, or why there is none."""
    if bases_differ(study, (one, other)):
        bases = "; ".join(base_label(study, method) for method in (one, other))
        return Entry("-", f"no overall difference, as their bases differ ({bases})")
    relative = [_scores(study, method, relative=True) for method in (one, other)]
    if all(task in found for found in relative for task in tasks):
        return _difference(*(_only(found, tasks) for found in relative))
    return Entry("-", "normalised scores are missing: see their table")


def _only(scores: Scores, tasks: Sequence[str]) -> Scores:
    return {task: scores[task] for task in tasks}


def _scores(study: Study, method: Method, relative: bool = False) -> Scores:
    """A method's scores by task, where there are some to calculate with."""
    cells = [(one.cell, one) for one in study.normalised if one.cell.method == method]
    found = {cell.task: one.scores if relative else cell.scores for cell, one in cells}
    return {task: scores for task, scores in found.items() if _usable(scores)}


def _usable(scores: Floats) -> bool:
    return bool(len(scores)) and bool(np.isfinite(scores).all())


def _difference(ours: Scores, theirs: Scores) -> Entry:
    def statistic(x: Given, y: Given) -> Floats:
        return mean_score(x) - mean_score(y)

    return _compared(statistic, ours, theirs)


def _probability(ours: Scores, theirs: Scores) -> Entry:
    return _compared(probability_of_improvement, ours, theirs, digits=2)


def _compared(
    statistic: Callable[[Given, Given], Floats],
    ours: Scores,
    theirs: Scores,
    digits: int | None = None,
) -> Entry:
    value = float(statistic(ours, theirs))
    low = high = math.nan
    if all(len(found) > 1 for both in (ours, theirs) for found in both.values()):
        rng = np.random.default_rng(SEED)
        between = comparison_interval(statistic, ours, theirs, rng, SAMPLES)
        low, high = ends(between)
    return interval_entry(value, low, high, digits=digits)
