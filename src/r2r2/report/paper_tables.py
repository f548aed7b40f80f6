"""Our numbers beside the paper's: scores, aggregates, times.

Only what has the paper's settings, tasks, seeds and steps is called a reproduction. All
else stands there too, with what it lacks, and no word on whether it agrees.
"""

import math
from collections.abc import Sequence

from r2r2.report import paper
from r2r2.report.samples import Floats
from r2r2.report.score_tables import NORMALISED, SUITE_TITLES, utd_text
from r2r2.report.scores import Cell
from r2r2.report.shortfalls import brief, brief_suite
from r2r2.report.study import RunData, Study, Timing
from r2r2.report.suites import SAMPLES, SEED, SuiteResult
from r2r2.report.summary import (
    Summary,
    bracketed,
    ends,
    interval_entry,
    rounded,
    summary_of,
)
from r2r2.report.tables import Cells, Entry, Table, table_of

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
