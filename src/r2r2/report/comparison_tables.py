"""Tables that compare methods in pairs and with the paper, and the list of all tables.

Only results with the paper's settings, tasks, seeds and steps count as a reproduction.
All others are shown with their shortfalls, without a verdict.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from r2r2.report.score_tables import (
    NORMALIZED,
    SUITE_TITLES,
    ablation_table,
    aggregates_table,
    diagnostics_table,
    main_table,
    method_columns,
    runs_table,
    score_tables,
    shortfalls_table,
    table_notes,
)
from r2r2.report.study import (
    RunData,
    RunTiming,
    Study,
    describe,
    describe_suite,
    without_shared,
)
from r2r2.report.tables import (
    EMPTY,
    Entry,
    ScoreSummary,
    Table,
    TableRow,
    format_interval,
    format_number,
    interval_ends,
    interval_entry,
    make_table,
    score_entry,
    summarize,
)
from r2r2.stats import paper
from r2r2.stats.aggregates import mean_score, probability_of_improvement
from r2r2.stats.bootstrap import comparison_interval
from r2r2.stats.samples import Floats, ScoresLike
from r2r2.stats.scores import Cell, Method, Shortfall, ShortfallKind
from r2r2.stats.suites import SAMPLES, SEED, SuiteResult

FEW_METHODS = 3  # up to this number, all pairs are compared
Scores = dict[str, Floats]

PAIRS = (
    "Difference: of the means, first minus second; over all tasks, of the mean "
    "normalised scores if the bases are the same. Probability: that a run of the first "
    "beats one of the second on the same task; 0.5 is no difference. Intervals are "
    f"95 % percentile bootstrap intervals with {SAMPLES:,} resamples of the seeds of "
    f"each method within tasks (generator seed {SEED}); with a single seed of either "
    "method there is none. They do not account for different settings."
)
NO_REPRODUCTION = "not a reproduction"
PAPER_HEADER = ("task", "method", "UTD", "ours", "paper", "intervals overlap", "lacks")
PAPER_INTERVALS = (
    "The paper gives mean and deviation over five seeds. Its intervals are "
    "approximated here from five synthetic seeds, evenly spaced with this mean and "
    "deviation, by the same bootstrap as ours "
    f"({SAMPLES:,} resamples, generator seed {SEED})."
)
POOLED = (
    "Intervals are pooled over tasks and seeds, as the paper's appear to be, with "
    f"{SAMPLES:,} resamples (generator seed {SEED})."
)
TIMES = (
    "Ours: after the first updates, including environments and evaluations, on the "
    "machine in the run's versions.json. A fleet updates all its members at once, so a "
    "step of one member takes a fraction of a step of the fleet. The paper's are of "
    "one agent on other hardware."
)


def all_tables(study: Study) -> list[Table]:
    """Return every table that the study has data for, in the order of the report."""
    tables = [
        main_table(study),
        aggregates_table(study),
        *score_tables(study),
        ablation_table(study),
        pair_table(study),
        paper_aggregates_table(study),
        paper_table(study),
        paper_normalized_table(study),
        diagnostics_table(study),
        timing_table(study),
        runs_table(study),
        shortfalls_table(study),
    ]
    return [table for table in tables if table.rows]


def method_pairs(study: Study) -> list[tuple[Method, Method]]:
    """Return the pairs of methods to compare, the reference second.

    Of a few methods all pairs. Of many, each agent with R2R2 against the same without,
    runs that disagree, and runs against results of files of the same agent and UTD.
    """
    methods, run_methods = study.methods, study.run_methods
    if len(methods) <= FEW_METHODS:
        pairs = [(b, a) for n, a in enumerate(methods) for b in methods[n + 1 :]]
        return [
            (a, b) if a in run_methods and b not in run_methods else (b, a)
            for b, a in pairs
        ]
    regularized = [
        (one, other)
        for one in methods
        for other in methods
        if one.agent == f"{other.agent}+r2r2"
        and one._replace(agent="", run="") == other._replace(agent="", run="")
    ]
    disagreeing = [
        (one, other)
        for n, other in enumerate(methods)
        for one in methods[n + 1 :]
        if one._replace(run="") == other._replace(run="")
    ]
    files = [
        (one, other)
        for other in methods
        for one in methods
        if other not in run_methods and one in run_methods and one[:2] == other[:2]
    ]
    return regularized + disagreeing + files


def pair_table(study: Study) -> Table:
    """Return every pair of methods on every task."""
    rows: list[TableRow] = []
    for one, other in method_pairs(study):
        names = [study.label(one), study.label(other)]
        tasks = [t for t in study.tasks if study.cell(one, t) or study.cell(other, t)]
        rows += [[*names, t, *_compare_on_task(study, one, other, t)] for t in tasks]
        rows.append([*names, *_compare_overall(study, one, other)])
    header = ["first", "second", "task", "score of first", "score of second"]
    header += ["difference", "probability of improvement"]
    title = "Methods compared in pairs, with 95 % intervals"
    return make_table("pairs", title, header, rows, table_notes(study, PAIRS))


def paper_table(study: Study) -> Table:
    """Return every cell beside the paper's."""
    published = paper.raw_scores()
    rows = [
        _paper_row(study, cell, cell.scores, cell.shortfalls, score)
        for cell in study.cells
        if (score := published.get(paper_key(cell))) is not None
    ]
    title = "Raw scores beside the paper's, cell by cell, with 95 % intervals"
    return make_table("beside_paper", title, PAPER_HEADER, rows, [PAPER_INTERVALS])


def paper_normalized_table(study: Study) -> Table:
    """Return every normalized cell beside the paper's."""
    published = paper.normalized_scores()
    rows = [
        _paper_row(study, one.cell, one.scores, one.shortfalls, score, digits=2)
        for one in study.normalized
        if (score := published.get(paper_key(one.cell))) is not None
    ]
    title = "Normalised scores beside the paper's, cell by cell, with 95 % intervals"
    name, notes = "beside_paper_normalised", [NORMALIZED, PAPER_INTERVALS]
    return make_table(name, title, PAPER_HEADER, rows, notes)


def paper_aggregates_table(study: Study) -> Table:
    """Return every aggregate beside the paper's."""
    rows = [
        _aggregate_row(study, result, published)
        for result in study.suites
        if result.suite in SUITE_TITLES and result.estimates
        for published in _published_aggregates(result)
    ]
    header = ["suite", "statistic", "method", "UTD", "ours", "paper"]
    header += ["intervals overlap", "lacks"]
    title = "Aggregates beside the paper's, with 95 % intervals"
    return make_table("beside_paper_aggregates", title, header, rows, [POOLED])


def timing_table(study: Study) -> Table:
    """Return the speed of each run."""
    rows = [_timing_row(study, run, run.timing) for run in study.runs if run.timing]
    header = ["run", "agent", "UTD", "members", "hours", "updates", "updates/s"]
    header += ["µs per update", "s per step of the fleet", "s per step of a member"]
    header += ["paper: s per step"]
    return make_table("timing", "Speed of the runs", header, rows, [TIMES])


def paper_key(cell: Cell) -> paper.CellKey:
    """Return the key of the paper's cell that corresponds to a cell."""
    return paper.CellKey(cell.task, cell.method.agent, cell.method.utd or 0)


def _verdict(
    complete: bool, ours: tuple[float, float], theirs: tuple[float, float]
) -> str:
    """Return whether two intervals overlap, for complete results."""
    if not complete:
        return NO_REPRODUCTION
    return "yes" if ours[0] <= theirs[1] and theirs[0] <= ours[1] else "no"


def _compare_on_task(study: Study, one: Method, other: Method, task: str) -> TableRow:
    entries: list[Entry] = []
    usable: list[Scores] = []
    for cell in (study.cell(method, task) for method in (one, other)):
        scores = np.empty(0) if cell is None else cell.scores
        missing = [Shortfall(ShortfallKind.MISSING)]
        shortfalls = missing if cell is None else cell.shortfalls
        shortfalls = without_shared(shortfalls, study.shared_overrides)
        entries.append(score_entry(scores, shortfalls))
        usable += [{task: scores}] if _is_usable(scores) else []
    if len(usable) < 2:
        return [*entries, EMPTY, EMPTY]
    return [*entries, _difference(*usable), _probability(*usable)]


def _compare_overall(study: Study, one: Method, other: Method) -> TableRow:
    """Return the row over all tasks that both methods have."""
    raw = [_usable_scores(study, method) for method in (one, other)]
    tasks = [task for task in raw[0] if task in raw[1]]
    omitted = [t for t in study.tasks if (t in raw[0]) != (t in raw[1])]
    note = f"without {', '.join(omitted)}, which one of them lacks" if omitted else ""
    title = Entry(f"all shared ({len(tasks)})", note)
    if not tasks:
        return [title, "-", "-", "-", "-"]
    difference = _normalized_difference(study, one, other, tasks)
    ours, theirs = ({task: scores[task] for task in tasks} for scores in raw)
    return [title, "-", "-", difference, _probability(ours, theirs)]


def _normalized_difference(
    study: Study, one: Method, other: Method, tasks: Sequence[str]
) -> Entry:
    """Return the difference of normalized scores, or a dash with the reason."""
    if study.bases_differ((one, other)):
        bases = "; ".join(study.base_label(method) for method in (one, other))
        return Entry("-", f"no overall difference: the bases differ ({bases})")
    both = [_usable_scores(study, m, normalized=True) for m in (one, other)]
    if all(task in scores for scores in both for task in tasks):
        ours, theirs = ({task: scores[task] for task in tasks} for scores in both)
        return _difference(ours, theirs)
    return Entry("-", "normalised scores are missing: see their table")


def _usable_scores(study: Study, method: Method, normalized: bool = False) -> Scores:
    """Return a method's scores by task, where they are finite."""
    cells = [one for one in study.normalized if one.cell.method == method]
    by_task = {c.cell.task: c.scores if normalized else c.cell.scores for c in cells}
    return {task: scores for task, scores in by_task.items() if _is_usable(scores)}


def _is_usable(scores: Floats) -> bool:
    return bool(len(scores)) and bool(np.isfinite(scores).all())


def _difference(ours: Scores, theirs: Scores) -> Entry:
    def statistic(x: ScoresLike, y: ScoresLike) -> Floats:
        return mean_score(x) - mean_score(y)

    return _comparison_entry(statistic, ours, theirs)


def _probability(ours: Scores, theirs: Scores) -> Entry:
    return _comparison_entry(probability_of_improvement, ours, theirs, digits=2)


def _comparison_entry(
    statistic: Callable[[ScoresLike, ScoresLike], Floats],
    ours: Scores,
    theirs: Scores,
    digits: int | None = None,
) -> Entry:
    value = float(statistic(ours, theirs))
    low = high = math.nan
    if all(len(scores) > 1 for both in (ours, theirs) for scores in both.values()):
        rng = np.random.default_rng(SEED)
        interval = comparison_interval(statistic, ours, theirs, rng, SAMPLES)
        low, high = interval_ends(interval)
    return interval_entry(value, low, high, digits=digits)


def _paper_row(
    study: Study,
    cell: Cell,
    scores: Floats,
    shortfalls: Sequence[Shortfall],
    published: paper.MeanStd,
    digits: int | None = None,
) -> TableRow:
    """Return a row with a cell's scores, raw or normalized, and the paper's."""
    ours = summarize(scores)
    theirs = summarize(paper.synthetic_seeds(published))
    ends = (ours.low, ours.high), (theirs.low, theirs.high)
    theirs = theirs._replace(mean=published.mean, std=published.std)
    return [
        cell.task,
        *method_columns(study, cell.method),
        _summary_entry(ours, digits),
        _summary_entry(theirs, digits),
        _verdict(not shortfalls, *ends),
        describe(shortfalls) or "nothing",
    ]


def _summary_entry(summary: ScoreSummary, digits: int | None) -> Entry:
    if not summary.seeds:
        return EMPTY
    text = format_interval(summary.mean, summary.low, summary.high, digits)
    return Entry(text, numbers=summary._asdict())


def _aggregate_row(
    study: Study, result: SuiteResult, published: paper.Aggregate
) -> TableRow:
    estimate = result.estimates[published.statistic]
    ours, theirs = interval_ends(estimate.pooled), (published.low, published.high)
    return [
        SUITE_TITLES[result.suite],
        published.statistic,
        *method_columns(study, result.method),
        interval_entry(estimate.value, *ours, digits=2),
        interval_entry(published.value, *theirs, digits=2),
        _verdict(result.complete, ours, theirs),
        describe_suite(result) or "nothing",
    ]


def _published_aggregates(result: SuiteResult) -> Sequence[paper.Aggregate]:
    """Return the paper's aggregates of the same suite, agent and UTD."""
    agent, utd = result.method.agent, result.method.utd or 0
    aggregates = [paper.aggregate(result.suite, x, agent, utd) for x in ("mean", "iqm")]
    return [aggregate for aggregate in aggregates if aggregate is not None]


def _timing_row(study: Study, run: RunData, timing: RunTiming) -> TableRow:
    method = run.results.method
    per_member = timing.seconds_per_step
    published = [
        f"{time.seconds} ({time.task}, {time.hardware})"
        for time in paper.training_times()
        if (time.agent, time.utd) == (method.agent, method.utd)
        and time.task in run.tasks
    ]
    return [
        run.name,
        *method_columns(study, method),
        str(timing.members),
        _number_entry(timing.seconds / 3600),
        _number_entry(timing.updates, f"{timing.updates:,}"),
        _number_entry(timing.updates_per_second),
        _number_entry(timing.microseconds_per_update),
        _number_entry(per_member * timing.members),
        _number_entry(per_member),
        "; ".join(published) or "-",
    ]


def _number_entry(value: float, text: str = "") -> Entry:
    shown = "-" if math.isnan(value) else text or format_number(value)
    return Entry(shown, numbers={"value": value})
