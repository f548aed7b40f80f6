"""Tables of a study: scores as in the paper, ablations, runs and diagnostics."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from r2r2.report.study import (
    NO_BASE,
    MemberData,
    RunData,
    Study,
    describe,
    describe_suite,
    format_seeds,
    without_shared,
)
from r2r2.report.tables import (
    DEVIATIONS,
    EMPTY,
    INTERVALS,
    Entry,
    Table,
    TableRow,
    interval_ends,
    interval_entry,
    make_table,
    score_entry,
)
from r2r2.stats import paper
from r2r2.stats.scores import SCORE_POINTS, Cell, Method
from r2r2.stats.suites import STATISTICS, NormalizedCell, SuiteResult

SUITE_TITLES = {
    "gym-mujoco": "Gymnasium MuJoCo",
    "dmc-hard": "DMC-Hard",
    paper.ALL: "all 11 tasks",
}
NORMALIZED = (
    "Scores are relative to the base agent at UTD 1 on the same task: "
    "1 + (S - mean of the base) / |mean of the base|. With a base near zero every "
    "difference becomes large: see the raw scores."
)
DIFFERENT_BASES = "Normalised scores with different bases cannot be compared"
DIAGNOSTICS = {
    "effective_rank": "effective rank",
    "rank_99": "99 % rank",
    "dead": "dead coordinates",
    "redundancy": "redundancy",
    "variance_hinge": "variance hinge",
    "norm": "norm",
    "bias": "value bias",
}
LAST_DIAGNOSTICS = (
    "At each seed's last evaluation; ± is the standard deviation over seeds (ddof 1). "
    "docs/diagnostics.md defines each column."
)


def main_table(study: Study) -> Table:
    """Return the mean normalized score of every method on every suite."""
    suites = list(dict.fromkeys(result.suite for result in study.suites))
    results = {(result.suite, result.method): result for result in study.suites}
    rows: list[TableRow] = [
        [
            *method_columns(study, method),
            *_base_columns(study, method),
            *(suite_entry(study, results[suite, method], "mean") for suite in suites),
        ]
        for method in sorted(study.methods, key=lambda m: m.utd or math.inf)
    ]
    titles = [suite_title(study, suite) for suite in suites]
    header = ["method", "UTD", *_base_header(study), *titles]
    title = "Mean normalised score per suite, with 95 % intervals"
    notes = _normalized_notes(study, score_note(study))
    return make_table("main", title, header, rows, notes)


def aggregates_table(study: Study) -> Table:
    """Return every statistic of every method on every suite that has any."""
    suites = {result.suite for result in study.suites if result.estimates}
    results = [result for result in study.suites if result.suite in suites]
    rows: list[TableRow] = [
        [
            suite_title(study, result.suite),
            *method_columns(study, result.method),
            *_base_columns(study, result.method),
            *(suite_entry(study, result, statistic) for statistic in STATISTICS),
        ]
        for result in results
    ]
    header = ["suite", "method", "UTD", *_base_header(study), *STATISTICS]
    title = "Statistics of normalised scores per suite, with 95 % intervals"
    return make_table("aggregates", title, header, rows, _normalized_notes(study))


def score_tables(study: Study) -> list[Table]:
    """Return for each UTD the raw and the normalized scores, with tasks in rows."""
    utds = sorted({m.utd for m in study.methods}, key=lambda utd: utd or math.inf)
    return [_utd_table(study, utd, kind) for utd in utds for kind in (False, True)]


def ablation_table(study: Study) -> Table:
    """Return the methods that differ in their settings alone."""
    run_methods = study.run_methods
    groups: dict[tuple[str, int | None], list[Method]] = {}
    for method in study.methods:
        if method in run_methods:
            groups.setdefault((method.agent, method.utd), []).append(method)
    rows: list[TableRow] = [
        [
            method.agent,
            format_utd(method),
            _settings_text(study, method),
            *(_cell_entry(study, method, task) for task in study.tasks),
        ]
        for methods in groups.values()
        if len(methods) > 1
        for method in sorted(methods, key=lambda m: m.deviation_count)
    ]
    header = ["agent", "UTD", "settings that differ", *study.tasks]
    title = "Ablations: raw scores of the same agent with other settings"
    return make_table("ablations", title, header, rows, table_notes(study, DEVIATIONS))


def runs_table(study: Study) -> Table:
    """Return the runs and files of the study."""
    header = ["run", "status", "method", "UTD", "tasks", "seeds", "environment steps"]
    header.append("remarks")
    rows = [_run_row(study, run) for run in study.runs]
    shared = "; ".join(map(str, study.shared_overrides))
    notes = [f"All runs: {shared}."] if shared else []
    return make_table("runs", "Runs and files", header, rows, notes)


def shortfalls_table(study: Study) -> Table:
    """Return the shortfalls of each incomplete cell."""
    rows: list[TableRow] = [
        [
            *method_columns(study, cell.method),
            cell.task,
            str(len(cell.scores)),
            describe(cell.shortfalls),
        ]
        for cell in study.cells
        if not cell.complete
    ]
    header = ["method", "UTD", "task", "seeds with a score", "lacks"]
    return make_table("lacks", "Missing, uneven or scaled down", header, rows)


def diagnostics_table(study: Study) -> Table:
    """Return the last diagnostics of each method and task."""
    rows: list[TableRow] = []
    members_by_seed = study.members_by_seed()
    for cell in study.cells:
        members = [
            member
            for (method, task, _), member in members_by_seed.items()
            if (method, task) == (cell.method, cell.task) and member.diagnostics
        ]
        if members:
            entries = [_last_diagnostic(members, name) for name in DIAGNOSTICS]
            rows.append([cell.task, *method_columns(study, cell.method), *entries])
    header = ["task", "method", "UTD", *DIAGNOSTICS.values()]
    title, notes = "Representations at the end", [LAST_DIAGNOSTICS]
    return make_table("diagnostics", title, header, rows, notes)


def suite_title(study: Study, suite: str) -> str:
    """Return the title of a suite."""
    if suite in SUITE_TITLES:
        return SUITE_TITLES[suite]
    count = len(study.tasks)
    return f"{suite} ({count} task{'s' if count > 1 else ''})"


def suite_entry(study: Study, result: SuiteResult, statistic: str) -> Entry:
    """Return a statistic over a suite, or a dash with the reasons."""
    estimate = result.estimates.get(statistic)
    note = describe_suite(result, study.shared_overrides)
    if estimate is None:
        return Entry("-", note)
    ends = interval_ends(estimate.stratified)
    return interval_entry(estimate.value, *ends, note, digits=2)


def format_utd(method: Method) -> str:
    """Return the UTD of a method as text."""
    return "unknown" if method.utd is None else str(method.utd)


def method_columns(study: Study, method: Method) -> list[str]:
    """Return the columns "method" and "UTD"."""
    return [study.label(method, utd=False), format_utd(method)]


def score_note(study: Study) -> str:
    """Return a note that defines scores, including those of short curves."""
    note = f"A score is the mean of a seed's last {SCORE_POINTS} evaluations"
    points = [seed.points for cell in study.cells for seed in cell.seeds]
    if any(0 < count < SCORE_POINTS for count in points):
        note += "; with fewer, the mean of all, including those before training"
    return f"{note}."


def table_notes(study: Study, *notes: str) -> list[str]:
    """Return the notes of a table, after the overrides that all runs share."""
    if not study.shared_overrides:
        return list(notes)
    shared = "; ".join(map(str, study.shared_overrides))
    return [f"All runs: {shared}. None of them reproduces the paper.", *notes]


def _base_header(study: Study) -> list[str]:
    """Return the header of a column of bases, if they differ between methods."""
    return ["base"] if study.bases_differ(study.methods) else []


def _base_columns(study: Study, method: Method) -> list[str]:
    return [study.base_label(method) for _ in _base_header(study)]


def _normalized_notes(study: Study, *first: str) -> list[str]:
    bases = [
        f"{DIFFERENT_BASES}: 1.00 is the score of the base."
        for _ in _base_header(study)
    ]
    return table_notes(study, *first, *bases, NORMALIZED, INTERVALS)


def _bases_note(study: Study, methods: Sequence[Method]) -> list[str]:
    """Return a note on the bases of methods, if they differ."""
    if not study.bases_differ(methods):
        return []
    groups: dict[str, list[str]] = {}
    for method in methods:
        groups.setdefault(study.base_label(method), []).append(study.label(method))
    groups.pop(NO_BASE, None)
    texts = [f"1.00 is {k} for [{'; '.join(labels)}]" for k, labels in groups.items()]
    return [f"{DIFFERENT_BASES}: {', '.join(texts)}."]


def _utd_table(study: Study, utd: int | None, normalized: bool) -> Table:
    methods = [method for method in study.methods if method.utd == utd]
    rows: list[TableRow] = [
        [task, *(_cell_entry(study, m, task, normalized) for m in methods)]
        for task in study.tasks
        if any(study.cell(m, task) for m in methods)
    ]
    header = ["task", *(study.label(method, utd=False) for method in methods)]
    name = "utd_unknown" if utd is None else f"utd{utd}"
    title = "an unknown UTD" if utd is None else f"UTD {utd}"
    if normalized:
        name, title = f"normalised_{name}", f"Normalised scores at {title}"
        notes = [*_bases_note(study, methods), NORMALIZED, INTERVALS]
    else:
        name, title = f"raw_{name}", f"Raw scores at {title}"
        notes = [score_note(study), DEVIATIONS]
    return make_table(name, title, header, rows, table_notes(study, *notes))


def _cell_entry(
    study: Study, method: Method, task: str, normalized: bool = False
) -> Entry:
    cell: Cell | NormalizedCell | None = study.cell(method, task)
    if cell is None:
        return EMPTY
    if normalized:
        cell = next(one for one in study.normalized if one.cell is cell)
    shortfalls = without_shared(cell.shortfalls, study.shared_overrides)
    return score_entry(cell.scores, shortfalls, normalized)


def _settings_text(study: Study, method: Method) -> str:
    overrides = [o for o in method.overrides if o not in study.shared_overrides]
    texts = [*map(str, overrides)]
    if len({m.precision for m in study.methods} - {""}) > 1:
        texts.append(f"precision={method.precision}")
    texts += [f"run {method.run}"] if method.run else []
    return "; ".join(texts) or "none"


def _run_row(study: Study, run: RunData) -> TableRow:
    method = run.results.method
    keys = run.results.members or [(r.env_name, r.seed) for r in run.results.rows]
    steps = [row.env_step for row in run.results.rows]
    steps += [member.env_steps for member in run.members]
    return [
        run.name,
        run.status,
        *method_columns(study, method),
        ", ".join(run.tasks),
        format_seeds(sorted({seed for _, seed in keys})),
        f"{max(steps, default=0):,}",
        "; ".join(_remarks(run)) or "none",
    ]


def _remarks(run: RunData) -> Iterable[str]:
    for member in run.members:
        if member.stopped:
            yield (
                f"{member.name} stopped at environment step {member.env_steps:,}: "
                f"{member.stopped}"
            )
        if member.collapses:
            first = f"{member.collapses[0]:,}"
            yield f"{member.name} first collapsed at environment step {first}"
        if shortfall := run.results.truncated_logs.get((member.task, member.seed)):
            yield f"{member.name} has {shortfall}"


def _last_diagnostic(members: Iterable[MemberData], name: str) -> Entry:
    """Return the mean over seeds of the last values of a diagnostic."""
    values = [m.diagnostics[name].values[-1] for m in members if name in m.diagnostics]
    return score_entry(np.array(values, dtype=np.float64))
