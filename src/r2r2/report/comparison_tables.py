"""Our numbers beside the paper's: scores, aggregates, times.

Only what has the paper's settings, tasks, seeds and steps is called a reproduction. All
else stands there too, with what it lacks, and no word on whether it agrees.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from r2r2.report.baselines import base_label, bases_differ
from r2r2.report.completeness import brief, brief_suite, unsaid
from r2r2.report.labels import nameless
from r2r2.report.score_tables import NORMALISED, SUITE_TITLES, notes_of, utd_text
from r2r2.report.study import RunData, Study, Timing
from r2r2.report.summary import (
    Summary,
    bracketed,
    ends,
    interval_entry,
    rounded,
    score_entry,
    summary_of,
)
from r2r2.report.tables import Cells, Entry, Table, table_of
from r2r2.stats import paper
from r2r2.stats.aggregates import mean_score, probability_of_improvement
from r2r2.stats.bootstrap import comparison_interval
from r2r2.stats.samples import Floats, Given
from r2r2.stats.scores import Cell, Method
from r2r2.stats.suites import SAMPLES, SEED, SuiteResult

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


NO_REPRODUCTION = "not a reproduction"
HEADER = ("task", "method", "UTD", "ours", "paper", "intervals overlap", "lacks")
CELLS = (
    "The paper gives mean and deviation of five seeds. Its intervals are made here of "
    "five even stand-ins with that mean and deviation, by the same bootstrap as ours "
    f"({SAMPLES:,} resamples, generator seeded with {SEED}): an approximation."
)
POOLED = (
    "Intervals are pooled over tasks and seeds, which is what the paper's look like, "
    f"of {SAMPLES:,} resamples, generator seeded with {SEED}."
)
TIMES = (
    "Ours: after the first updates, environments and evaluations included, on whatever "
    "machine the run was made; versions.json in its folder says which. A fleet makes "
    "the updates of all its members at once, so a step of one member takes a part of "
    "the fleet's. The paper's are of one agent on its own hardware."
)


def overlap(one: tuple[float, float], other: tuple[float, float]) -> str:
    """Whether two intervals have anything in common.

    Example:
        >>> overlap((1.0, 2.0), (2.0, 3.0)), overlap((2.1, 3.0), (1.0, 2.0))
        ('yes', 'no')
        >>> overlap((float("nan"), 2.0), (1.0, 3.0))
        'no interval'
    """
    if any(map(math.isnan, (*one, *other))):
        return "no interval"
    return "yes" if one[0] <= other[1] and other[0] <= one[1] else "no"


def beside_table(study: Study) -> Table | None:
    """Every cell beside the paper's; None where the paper has none of them."""
    published = paper.raw_scores()
    rows = [
        _beside(study, cell, cell.scores, cell.shortfalls, spread)
        for cell in study.cells
        if (spread := published.get(which_of(cell))) is not None
    ]
    title = "Raw scores beside the paper's, cell by cell, with 95 % intervals"
    return table_of("beside_paper", title, HEADER, rows, [CELLS]) if rows else None


def beside_normalised_table(study: Study) -> Table | None:
    """Every normalised cell beside the paper's; None where it has none of them."""
    published = paper.normalised_scores()
    rows = [
        _beside(study, one.cell, one.scores, one.shortfalls, spread, digits=2)
        for one in study.normalised
        if (spread := published.get(which_of(one.cell))) is not None
    ]
    title = "Normalised scores beside the paper's, cell by cell, with 95 % intervals"
    name, notes = "beside_paper_normalised", [NORMALISED, CELLS]
    return table_of(name, title, HEADER, rows, notes) if rows else None


def beside_aggregates_table(study: Study) -> Table | None:
    """Every aggregate beside the paper's; None where there is nothing to compare."""
    rows: list[Cells] = []
    own = [one for one in study.suites if one.suite in SUITE_TITLES and one.estimates]
    for one in own:
        for theirs in _published(one):
            estimate = one.estimates[theirs.statistic]
            ours = ends(estimate.pooled)
            agree = overlap(ours, (theirs.low, theirs.high))
            rows.append(
                [
                    SUITE_TITLES[one.suite],
                    theirs.statistic,
                    study.label(one.method, utd=False),
                    utd_text(one.method),
                    interval_entry(estimate.value, *ours, digits=2),
                    interval_entry(theirs.value, theirs.low, theirs.high, digits=2),
                    agree if one.complete else NO_REPRODUCTION,
                    brief_suite(one) or "nothing",
                ]
            )
    if not rows:
        return None
    header = ["suite", "statistic", "method", "UTD", "ours", "paper"]
    header += ["intervals overlap", "lacks"]
    title = "Aggregates beside the paper's, with 95 % intervals"
    return table_of("beside_paper_aggregates", title, header, rows, [POOLED])


def timing_table(study: Study) -> Table | None:
    """How fast each run was; None where no run says."""
    rows = [_timing(study, run, run.timing) for run in study.runs if run.timing]
    if not rows:
        return None
    header = ["run", "agent", "UTD", "members", "hours", "updates", "updates/s"]
    header += ["µs per update", "s per step of the fleet", "s per step of a member"]
    header += ["paper: s per step"]
    return table_of("timing", "Speed of the runs", header, rows, [TIMES])


def which_of(cell: Cell) -> paper.Which:
    """The paper's cell that ours belongs beside, if the paper has it."""
    return paper.Which(cell.task, cell.method.agent, cell.method.utd or 0)


def _beside(
    study: Study,
    cell: Cell,
    scores: Floats,
    lacks: Sequence[str],
    spread: paper.Spread,
    digits: int | None = None,
) -> Cells:
    """A row: a cell's scores, raw or normalised, and the paper's."""
    ours = summary_of(scores)
    theirs = summary_of(paper.stand_ins(spread))
    agree = overlap((ours.low, ours.high), (theirs.low, theirs.high))
    return [
        cell.task,
        study.label(cell.method, utd=False),
        utd_text(cell.method),
        _spread_entry(ours, digits),
        _spread_entry(theirs._replace(mean=spread.mean, std=spread.std), digits),
        NO_REPRODUCTION if lacks else agree,
        brief(lacks) or "nothing",
    ]


def _spread_entry(found: Summary, digits: int | None) -> Entry:
    if not found.seeds:
        return Entry("-")
    text = bracketed(found.mean, found.low, found.high, digits)
    return Entry(text, numbers=found._asdict())


def _published(one: SuiteResult) -> Sequence[paper.Aggregate]:
    """The paper's aggregates of the same suite, agent and UTD, each statistic once."""
    agent, utd, _ = one.method
    found = [paper.aggregate(one.suite, x, agent, utd or 0) for x in ("mean", "iqm")]
    return [aggregate for aggregate in found if aggregate is not None]


def _timing(study: Study, run: RunData, timing: Timing) -> Cells:
    method = run.results.method
    per_member = timing.seconds_per_step
    theirs = [
        f"{time.seconds} ({time.task}, {time.hardware})"
        for time in paper.times()
        if (time.agent, time.utd) == (method.agent, method.utd)
        and time.task in run.tasks
    ]
    return [
        run.name,
        study.label(method, utd=False),
        utd_text(method),
        str(timing.members),
        _plain(timing.seconds / 3600),
        _plain(timing.updates, f"{timing.updates:,}"),
        _plain(timing.updates_per_second),
        _plain(timing.microseconds_per_update),
        _plain(per_member * timing.members),
        _plain(per_member),
        "; ".join(theirs) or "-",
    ]


def _plain(value: float, text: str = "") -> Entry:
    shown = "-" if math.isnan(value) else text or rounded(value)
    return Entry(shown, numbers={"value": value})
