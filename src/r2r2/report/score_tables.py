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
    number_entry,
    score_entry,
)
from r2r2.stats import paper
from r2r2.stats.scores import LAST_NAME, SCORE_NAME, SCORE_POINTS, Cell, Method, ShortfallKind
from r2r2.stats.suites import STATISTICS, SuiteResult

SUITE_TITLES = {"gym-mujoco": "Gymnasium MuJoCo", "dmc-hard": "DMC-Hard", paper.ALL: "all 11 tasks"}
NORMALIZED = (
    "Scores are relative to the base agent at UTD 1 on the same task: 1 + (S - mean of the base) / "
    "|mean of the base|. With a base near zero every difference becomes large: see the raw scores."
)
# Marks of members that the status, or another remark, shows already.
SHOWN_ABOVE = (ShortfallKind.STATUS, ShortfallKind.STOPPED, ShortfallKind.DAMAGED)
MISSING, COMPLETE = "missing", "complete"
CELL_STATES = (
    "Complete: with the paper's settings, seeds and steps. Partial: with other settings, fewer "
    "seeds or fewer steps. Missing: not run."
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
            *_method_and_base(study, method),
            *(_suite_entry(study, results[suite, method], "mean") for suite in suites),
        ]
        for method in sorted(study.methods, key=lambda m: m.utd or math.inf)
    ]
    header = [*_method_header(study), *(suite_title(study, suite) for suite in suites)]
    title = "Mean normalised score per suite, with 95 % intervals"
    return make_table("main", title, header, rows, _normalized_notes(study, score_note(study)))


def aggregates_table(study: Study) -> Table:
    """Return every statistic of every method on every suite that has any."""
    suites = {result.suite for result in study.suites if result.estimates}
    rows: list[TableRow] = [
        [
            suite_title(study, result.suite),
            *_method_and_base(study, result.method),
            *(_suite_entry(study, result, statistic) for statistic in STATISTICS),
        ]
        for result in study.suites
        if result.suite in suites
    ]
    header = ["suite", *_method_header(study), *STATISTICS]
    title = "Statistics of normalised scores per suite, with 95 % intervals"
    notes = _normalized_notes(study, "The paper's tables have mean and IQM, its curves the mean.")
    return make_table("aggregates", title, header, rows, notes)


def score_tables(study: Study) -> list[Table]:
    """Return for each UTD the raw and the normalized scores, with tasks in rows."""
    utds = sorted({m.utd for m in study.methods}, key=lambda utd: utd or math.inf)
    return [_utd_table(study, utd, kind) for utd in utds for kind in (False, True)]


def last_evaluations_table(study: Study) -> Table:
    """Return the score of every cell beside its last evaluation, which the terminal shows."""
    rows: list[TableRow] = []
    for cell in study.cells:
        score = cell_entry(study, cell.method, cell.task)
        last = score_entry(cell.last_returns)
        if cell.score_name != SCORE_NAME:
            score = score._replace(note="; ".join(filter(None, (cell.score_name, score.note))))
        rows.append([cell.task, *method_columns(study, cell.method), score, last])
    header = ["task", "method", "UTD", SCORE_NAME, LAST_NAME]
    title = f"Raw returns: {SCORE_NAME} (the score) and {LAST_NAME}"
    return make_table("last_evaluations", title, header, rows, table_notes(study, DEVIATIONS))


def ablation_table(study: Study) -> Table:
    """Return the methods that differ in their settings alone."""
    run_methods = study.run_methods
    several_precisions = len({m.precision for m in study.methods} - {""}) > 1
    groups: dict[tuple[str, int | None], list[Method]] = {}
    for method in study.methods:
        if method in run_methods:
            groups.setdefault((method.agent, method.utd), []).append(method)
    rows: list[TableRow] = []
    for methods in groups.values():
        for method in sorted(methods, key=lambda m: m.deviation_count):
            settings = method.setting_texts(study.shared_overrides, precision=several_precisions)
            entries = [cell_entry(study, method, task) for task in study.tasks]
            texts = [method.agent, format_utd(method), "; ".join(settings) or "none"]
            rows += [[*texts, *entries]] if len(methods) > 1 else []
    header = ["agent", "UTD", "settings that differ", *study.tasks]
    title = "Ablations: raw scores of the same agent with other settings"
    return make_table("ablations", title, header, rows, table_notes(study, DEVIATIONS))


def runs_table(study: Study) -> Table:
    """Return the runs and files of the study."""
    header = ["run", "status", "method", "UTD", "tasks", "seeds", "environment steps", "remarks"]
    rows = [_run_row(study, run) for run in study.runs]
    shared = "; ".join(map(str, study.shared_overrides))
    notes = [f"All runs: {shared}."] if shared else []
    notes += [f"Left out: {text}." for text in study.unreadable]
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
    return make_table("lacks", "What each result lacks", header, rows)


def planned_table(study: Study) -> Table:
    """Return the cells of the study's experiment that have not all of their seeds."""
    rows: list[TableRow] = []
    for cell in study.planned:
        left = sorted({*cell.seeds} - {*cell.finished})
        if left:
            state = "partial" if cell.finished else MISSING
            seeds = f"{len(cell.finished)} of {len(cell.seeds)}", format_seeds(left)
            settings = cell.settings or "none"
            rows.append([cell.agent, str(cell.utd), cell.task, settings, *seeds, state])
    header = ["agent", "UTD", "task", "settings that differ"]
    header += ["finished seeds", "missing seeds", "state"]
    return make_table("planned", "Cells of the experiment without all of their seeds", header, rows)


def paper_cells_table(study: Study) -> Table:
    """Return for every cell of the paper's tables whether the study's experiment has it."""
    states: dict[paper.CellKey, str] = {}
    for cell in study.cells:
        if len(cell.scores) and states.get(paper_key(cell)) != COMPLETE:
            states[paper_key(cell)] = COMPLETE if cell.complete else "partial"
    published = paper.raw_scores() if study.planned else {}
    agents = list(dict.fromkeys(key.agent for key in published))
    rows: list[TableRow] = [
        [str(utd), task, *(states.get(paper.CellKey(task, x, utd), MISSING) for x in agents)]
        for utd in sorted({key.utd for key in published})
        for task in paper.tasks()
    ]
    count = sum(key in states for key in published)
    notes = [f"{count} of {len(published)} cells have results. {CELL_STATES}"]
    title = "The paper's cells: agents on tasks at a UTD"
    return make_table("paper_cells", title, ["UTD", "task", *agents], rows, notes)


def diagnostics_table(study: Study) -> Table:
    """Return the mean over seeds of the last diagnostics of each method and task."""
    published = paper.effective_ranks()
    groups: dict[tuple[Method, str], list[MemberData]] = {}
    for (method, task, _), member in study.members_by_seed().items():
        if member.diagnostics:
            groups.setdefault((method, task), []).append(member)
    rows: list[TableRow] = []
    for cell in study.cells:
        if members := groups.get((cell.method, cell.task)):
            by_name = [m.diagnostics for m in members]
            last = [[d[x].values[-1] for d in by_name if x in d] for x in DIAGNOSTICS]
            entries = [score_entry(np.array(values, np.float64)) for values in last]
            theirs = published.get(paper_key(cell))
            entries.insert(1, EMPTY if theirs is None else number_entry(theirs, str(theirs)))
            rows.append([cell.task, *method_columns(study, cell.method), *entries])
    rank, *others = DIAGNOSTICS.values()
    header = ["task", "method", "UTD", rank, f"{rank} (paper)", *others]
    title = "Representations at the end"
    notes = [LAST_DIAGNOSTICS, rank_note(study)]
    return make_table("diagnostics", title, header, rows, notes)


def rank_note(study: Study) -> str:
    """Return how effective ranks are measured, here and in the paper."""
    probes = dict.fromkeys(run.probe for run in study.runs if run.probe is not None)
    batches = [f"{p.probe_batch:,} of the first {p.probe_rows:,} replay rows" for p in probes]
    published = [
        f"{rank} for {key.agent} on {key.task} at UTD {key.utd}"
        for key, rank in paper.effective_ranks().items()
    ]
    return (
        "Effective rank: the exponential of the entropy of Z's normalised singular values, not "
        f"centred, on {' or '.join(batches) or 'a fixed batch from replay'}. The paper has "
        f"{' and '.join(published)}, without a formula, batch or step: its measure may differ."
    )


def suite_title(study: Study, suite: str) -> str:
    """Return the title of a suite."""
    if suite in SUITE_TITLES:
        return SUITE_TITLES[suite]
    count = len(study.tasks)
    return f"{suite} ({count} task{'s' if count > 1 else ''})"


def cell_entry(
    study: Study, method: Method, task: str, normalized: bool = False, note: str = ""
) -> Entry:
    """Return the scores of a method on a task, or a dash with a note without any."""
    for one in study.normalized:
        if (one.cell.method, one.cell.task) == (method, task):
            shown = one if normalized else one.cell
            shortfalls = without_shared(shown.shortfalls, study.shared_overrides)
            return score_entry(shown.scores, shortfalls, normalized)
    return Entry("-", note)


def format_utd(method: Method) -> str:
    """Return the UTD of a method as text."""
    return "unknown" if method.utd is None else str(method.utd)


def paper_key(cell: Cell) -> paper.CellKey:
    """Return the key of the paper's cell that corresponds to a cell."""
    return paper.CellKey(cell.task, cell.method.agent, cell.method.utd or 0)


def method_columns(study: Study, method: Method) -> list[str]:
    """Return the columns "method" and "UTD"."""
    return [study.label(method, utd=False), format_utd(method)]


def score_note(study: Study) -> str:
    """Return a note that defines scores, including those of short curves."""
    note = f"A score is the mean of a seed's last {SCORE_POINTS} evaluations"
    points = [seed.points for cell in study.cells for seed in cell.seeds]
    if any(0 < count < SCORE_POINTS for count in points):
        note += "; with fewer, the mean of all, including those before training"
    return f"{note}. The table of raw returns also has the {LAST_NAME}, as the terminal does."


def table_notes(study: Study, *notes: str) -> list[str]:
    """Return the notes of a table, after the overrides that all runs share."""
    if not study.shared_overrides:
        return list(notes)
    shared = "; ".join(map(str, study.shared_overrides))
    verdict = " None of them reproduces the paper." if study.in_paper else ""
    return [f"All runs: {shared}.{verdict}", *notes]


def _method_header(study: Study) -> list[str]:
    """Return the header of a method, with a column of bases if they differ."""
    return ["method", "UTD", *(["base"] if study.bases_differ(study.methods) else [])]


def _method_and_base(study: Study, method: Method) -> list[str]:
    """Return the columns of `_method_header`."""
    return [*method_columns(study, method), study.base_label(method)][: len(_method_header(study))]


def _suite_entry(study: Study, result: SuiteResult, statistic: str) -> Entry:
    """Return a statistic over a suite, or a dash with the reasons."""
    estimate = result.estimates.get(statistic)
    note = describe_suite(result, study.shared_overrides)
    if estimate is None:
        return Entry("-", note)
    return interval_entry(estimate.value, *interval_ends(estimate.stratified), note, digits=2)


def _normalized_notes(study: Study, *first: str) -> list[str]:
    differ = study.bases_differ(study.methods)
    bases = [f"{DIFFERENT_BASES}: 1.00 is the score of the base."] if differ else []
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
        [task, *(cell_entry(study, m, task, normalized) for m in methods)]
        for task in study.tasks
        if any(study.cell(m, task) for m in methods)
    ]
    header = ["task", *(study.label(method, utd=False) for method in methods)]
    name = "utd_unknown" if utd is None else f"utd{utd}"
    title = "an unknown UTD" if utd is None else f"UTD {utd}"
    if normalized:
        name, title = f"normalised_{name}", f"Normalised scores at {title}"
        notes = [*_bases_note(study, methods), "Means over seeds.", NORMALIZED, INTERVALS]
    else:
        name, title = f"raw_{name}", f"Raw scores at {title}"
        notes = [score_note(study), DEVIATIONS]
    return make_table(name, title, header, rows, table_notes(study, *notes))


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
    yield from run.damage
    for member in run.members:
        if member.stopped:
            step = f"environment step {member.env_steps:,}"
            yield f"{member.name} stopped at {step}: {member.stopped}"
        if member.collapses:
            yield f"{member.name} first collapsed at environment step {member.collapses[0]:,}"
        for mark in run.results.marks.get((member.task, member.seed), ()):
            if mark.kind not in SHOWN_ABOVE:
                yield f"{member.name} has {mark}"
