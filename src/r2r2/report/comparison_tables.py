"""Tables that compare methods in pairs and with the paper, and the list of all tables.

Only results with the paper's settings, tasks, seeds and steps count as a reproduction. All others
are shown with their shortfalls, without a verdict.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from r2r2.report.score_tables import (
    NORMALIZED,
    SUITE_TITLES,
    ablation_table,
    aggregates_table,
    cell_entry,
    diagnostics_table,
    last_evaluations_table,
    main_table,
    method_columns,
    paper_cells_table,
    paper_key,
    planned_table,
    runs_table,
    score_tables,
    shortfalls_table,
    table_notes,
)
from r2r2.report.study import Study, describe, describe_suite
from r2r2.report.tables import (
    EMPTY,
    Entry,
    Table,
    TableRow,
    interval_ends,
    interval_entry,
    make_table,
    number_entry,
    score_entry,
    summarize,
    summary_entry,
)
from r2r2.stats import paper
from r2r2.stats.aggregates import mean_score, probability_of_improvement
from r2r2.stats.bootstrap import comparison_interval
from r2r2.stats.samples import Floats, ScoresLike
from r2r2.stats.scores import SCORE_NAME, Cell, Method
from r2r2.stats.suites import SAMPLES, SEED, NormalizedCell

FEW_METHODS = 3  # up to this number, all pairs are compared
Scores = dict[str, Floats]
PAIRS = (
    "Difference: of the means, first minus second; over all tasks, of the mean normalised scores "
    "if the bases are the same. Probability: that a run of the first beats one of the second on "
    "the same task; 0.5 is no difference. Intervals are 95 % percentile bootstrap intervals with "
    f"{SAMPLES:,} resamples of the seeds of each method within tasks (generator seed {SEED}); with "
    "a single seed of either method there is none. They do not account for different settings."
)
PAPER_INTERVALS = (
    "Means over seeds. The paper gives mean and deviation over five seeds. Its intervals are "
    "approximated here from five synthetic seeds, evenly spaced with this mean and deviation, by "
    f"the same bootstrap as ours ({SAMPLES:,} resamples, generator seed {SEED})."
)
FINAL_RETURN = (
    "Final return: the last evaluation, mean ± standard deviation over seeds. The score, ours and "
    f"the paper's, is the {SCORE_NAME}."
)
POOLED = (
    "Intervals are pooled over tasks and seeds, as the paper's appear to be, with "
    f"{SAMPLES:,} resamples (generator seed {SEED})."
)
TIMES = (
    "Ours: after the first updates, including environments and evaluations, on the machine in the "
    "run's versions.json. A fleet updates all its members at once, so a step of one member takes a "
    "fraction of a step of the fleet. The paper's are of one agent on other hardware."
)


def all_tables(study: Study) -> list[Table]:
    """Return every table that the study has data for, in the order of the report."""
    pairs = pair_table(study)
    tables = [
        *([pairs] if compares_two(study) else []),
        main_table(study),
        aggregates_table(study),
        *score_tables(study),
        last_evaluations_table(study),
        ablation_table(study),
        *([] if compares_two(study) else [pairs]),
        paper_aggregates_table(study),
        paper_table(study),
        paper_table(study, normalized=True),
        diagnostics_table(study),
        timing_table(study),
        runs_table(study),
        planned_table(study),
        shortfalls_table(study),
        paper_cells_table(study),
    ]
    return [table for table in tables if table.rows]


def compares_two(study: Study) -> bool:
    """Return whether the study is about two methods, so that their comparison comes first."""
    return len(study.methods) == 2


def method_pairs(study: Study) -> list[tuple[Method, Method]]:
    """Return the pairs of methods to compare, the reference second.

    Of a few methods all pairs. Of many, each agent with R2R2 against the same without, runs that
    disagree, and runs against results of files of the same agent and UTD.
    """
    methods, run_methods = study.methods, study.run_methods
    if len(methods) <= FEW_METHODS:
        return [
            (a, b) if a in run_methods and b not in run_methods else (b, a)
            for a, b in itertools.combinations(methods, 2)
        ]
    regularized = [
        (one, other)
        for one, other in itertools.permutations(methods, 2)
        if one.agent == f"{other.agent}+r2r2"
        and one._replace(agent="", run="") == other._replace(agent="", run="")
    ]
    disagreeing = [
        (one, other)
        for other, one in itertools.combinations(methods, 2)
        if one._replace(run="") == other._replace(run="")
    ]
    files = [
        (one, other)
        for other, one in itertools.permutations(methods, 2)
        if other not in run_methods and one in run_methods and one[:2] == other[:2]
    ]
    return regularized + disagreeing + files


def pair_table(study: Study) -> Table:
    """Return every pair of methods on every task."""
    rows: list[TableRow] = [
        [study.label(one), study.label(other), *columns]
        for one, other in method_pairs(study)
        for columns in _compare(study, one, other)
    ]
    header = ["first", "second", "task", "score of first", "score of second"]
    header += ["difference", "probability of improvement"]
    title = "Methods compared in pairs, with 95 % intervals"
    return make_table("pairs", title, header, rows, table_notes(study, PAIRS))


def paper_table(study: Study, normalized: bool = False) -> Table:
    """Return every cell beside the paper's, with raw or normalized scores."""
    published = paper.normalized_scores() if normalized else paper.raw_scores()
    rows: list[TableRow] = []
    for one in study.normalized:
        if theirs := published.get(paper_key(one.cell)):
            columns = _paper_columns(one if normalized else one.cell, theirs)
            final = [] if normalized else [score_entry(one.cell.last_returns)]
            start = one.cell.task, *method_columns(study, one.cell.method)
            rows.append([*start, *final, *columns])
    name, kind, notes = "beside_paper", "Raw", [PAPER_INTERVALS, FINAL_RETURN]
    if normalized:
        name, kind, notes = f"{name}_normalised", "Normalised", [NORMALIZED, PAPER_INTERVALS]
    title = f"{kind} scores beside the paper's, cell by cell, with 95 % intervals"
    header = ["task", "method", "UTD", *([] if normalized else ["final return"])]
    header += ["ours", "paper", "intervals overlap", "lacks"]
    return make_table(name, title, header, rows, notes)


def paper_aggregates_table(study: Study) -> Table:
    """Return every aggregate beside the paper's."""
    rows: list[TableRow] = []
    results = [r for r in study.suites if r.suite in SUITE_TITLES and r.estimates]
    for result, name in itertools.product(results, ("mean", "iqm")):
        agent, utd = result.method.agent, result.method.utd or 0
        published = paper.aggregate(result.suite, name, agent, utd)
        if published is None:
            continue
        estimate = result.estimates[name]
        ours, theirs = interval_ends(estimate.pooled), (published.low, published.high)
        rows.append(
            [
                SUITE_TITLES[result.suite],
                name,
                *method_columns(study, result.method),
                interval_entry(estimate.value, *ours, digits=2),
                interval_entry(published.value, *theirs, digits=2),
                _verdict(result.complete, ours, theirs),
                describe_suite(result) or "nothing",
            ]
        )
    header = ["suite", "statistic", "method", "UTD", "ours", "paper", "intervals overlap", "lacks"]
    title = "Aggregates beside the paper's, with 95 % intervals"
    return make_table("beside_paper_aggregates", title, header, rows, [POOLED])


def timing_table(study: Study) -> Table:
    """Return the speed of each run."""
    rows: list[TableRow] = []
    for run in study.runs:
        if (timing := run.timing) is None:
            continue
        method, per_member = run.results.method, timing.seconds_per_step
        published = [
            f"{time.seconds} ({time.task}, {time.hardware})"
            for time in paper.training_times()
            if (time.agent, time.utd) == method[:2] and time.task in run.tasks
        ]
        rates = timing.updates_per_second, timing.microseconds_per_update
        entries = [
            number_entry(timing.seconds / 3600),
            number_entry(timing.updates, f"{timing.updates:,}"),
            *map(number_entry, (*rates, per_member * timing.members, per_member)),
        ]
        texts = [run.name, *method_columns(study, method), str(timing.members)]
        rows.append([*texts, *entries, "; ".join(published) or "-"])
    header = ["run", "agent", "UTD", "members", "hours", "updates", "updates/s", "µs per update"]
    header += ["s per step of the fleet", "s per step of a member", "paper: s per step"]
    return make_table("timing", "Speed of the runs", header, rows, [TIMES])


def _verdict(complete: bool, ours: tuple[float, float], theirs: tuple[float, float]) -> str:
    """Return whether two intervals overlap, for complete results."""
    if not complete:
        return "not a reproduction"
    return "yes" if ours[0] <= theirs[1] and theirs[0] <= ours[1] else "no"


def _compare(study: Study, one: Method, other: Method) -> Iterable[TableRow]:
    """Yield the columns of a pair for each task, and for all that both have."""
    ours, theirs = (_usable_scores(study, method) for method in (one, other))
    for task in study.tasks:
        if study.cell(one, task) or study.cell(other, task):
            entries = [cell_entry(study, m, task, note="missing") for m in (one, other)]
            if task not in ours or task not in theirs:
                yield [task, *entries, EMPTY, EMPTY]
                continue
            difference = _comparison_entry(_mean_difference, ours, theirs, [task])
            yield [task, *entries, difference, _probability(ours, theirs, [task])]
    omitted = [task for task in study.tasks if (task in ours) != (task in theirs)]
    note = f"without {', '.join(omitted)}, which one of them lacks" if omitted else ""
    shared = [task for task in ours if task in theirs]
    title = Entry(f"all shared ({len(shared)})", note)
    if not shared:
        yield [title, "-", "-", "-", "-"]
        return
    difference = _normalized_difference(study, one, other, shared)
    yield [title, "-", "-", difference, _probability(ours, theirs, shared)]


def _normalized_difference(study: Study, one: Method, other: Method, tasks: Sequence[str]) -> Entry:
    """Return the difference of normalized scores, or a dash with the reason."""
    if study.bases_differ((one, other)):
        bases = "; ".join(study.base_label(method) for method in (one, other))
        return Entry("-", f"no overall difference: the bases differ ({bases})")
    ours, theirs = (_usable_scores(study, m, normalized=True) for m in (one, other))
    if not set(tasks) <= ours.keys() & theirs.keys():
        return Entry("-", "normalised scores are missing: see their table")
    return _comparison_entry(_mean_difference, ours, theirs, tasks)


def _usable_scores(study: Study, method: Method, normalized: bool = False) -> Scores:
    """Return a method's scores by task, where they are finite."""
    cells = [one for one in study.normalized if one.cell.method == method]
    by_task = {c.cell.task: c.scores if normalized else c.cell.scores for c in cells}
    return {t: x for t, x in by_task.items() if len(x) and np.isfinite(x).all()}


def _mean_difference(ours: ScoresLike, theirs: ScoresLike) -> Floats:
    return mean_score(ours) - mean_score(theirs)


def _probability(ours: Scores, theirs: Scores, tasks: Sequence[str]) -> Entry:
    return _comparison_entry(probability_of_improvement, ours, theirs, tasks, digits=2)


def _comparison_entry(
    statistic: Callable[[ScoresLike, ScoresLike], Floats],
    ours: Scores,
    theirs: Scores,
    tasks: Sequence[str],
    digits: int | None = None,
) -> Entry:
    """Return a statistic of two methods on some tasks."""
    first, second = ({t: scores[t] for t in tasks} for scores in (ours, theirs))
    ends = math.nan, math.nan
    if all(len(x) > 1 for x in (*first.values(), *second.values())):
        rng = np.random.default_rng(SEED)
        ends = interval_ends(comparison_interval(statistic, first, second, rng, SAMPLES))
    return interval_entry(float(statistic(first, second)), *ends, digits=digits)


def _paper_columns(ours: Cell | NormalizedCell, theirs: paper.MeanStd) -> TableRow:
    """Return a cell's scores, the paper's, whether they agree, and what it lacks."""
    summary = summarize(ours.scores)
    published = summarize(paper.synthetic_seeds(theirs))._replace(**theirs._asdict())
    ends = (summary.low, summary.high), (published.low, published.high)
    digits = 2 if isinstance(ours, NormalizedCell) else None
    return [
        summary_entry(summary, digits=digits),
        summary_entry(published, digits=digits),
        _verdict(ours.complete, *ends),
        describe(ours.shortfalls) or "nothing",
    ]
