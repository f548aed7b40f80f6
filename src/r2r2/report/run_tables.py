"""The runs themselves: what was read, how far it came, and what was seen inside."""

from collections.abc import Iterable

import numpy as np

from r2r2.report.completeness import brief, seed_list
from r2r2.report.members import members_by_seed
from r2r2.report.score_tables import utd_text
from r2r2.report.study import MemberData, RunData, Study
from r2r2.report.summary import score_entry
from r2r2.report.tables import Cells, Entry, Table, table_of

DIAGNOSTICS = {
    "effective_rank": "effective rank",
    "rank_99": "99 % rank",
    "dead": "dead coordinates",
    "redundancy": "redundancy",
    "variance_hinge": "variance hinge",
    "norm": "norm",
    "bias": "value bias",
}
LAST = (
    "At each seed's last evaluation; ± is the standard deviation over seeds (ddof 1). "
    "docs/diagnostics.md says what each is."
)


def runs_table(study: Study) -> Table:
    """What the report is made of."""
    header = ["run", "status", "method", "UTD", "tasks", "seeds", "environment steps"]
    header.append("remarks")
    rows = [_run(study, run) for run in study.runs]
    notes = [f"All runs: {'; '.join(study.shared)}."] if study.shared else []
    return table_of("runs", "What was read", header, rows, notes)


def lacks_table(study: Study) -> Table | None:
    """What each cell lacks to be the paper's; None where nothing does."""
    rows: list[Cells] = [
        [
            study.label(cell.method, utd=False),
            utd_text(cell.method),
            cell.task,
            str(len(cell.scores)),
            brief(cell.shortfalls),
        ]
        for cell in study.cells
        if not cell.complete
    ]
    if not rows:
        return None
    header = ["method", "UTD", "task", "seeds with a score", "lacks"]
    return table_of("lacks", "What is missing, uneven or scaled down", header, rows)


def diagnostics_table(study: Study) -> Table | None:
    """What was last seen inside each method's representations; None if nothing was."""
    rows: list[Cells] = []
    seen = members_by_seed(study)
    for cell in study.cells:
        members = [
            member
            for (method, task, _), member in seen.items()
            if (method, task) == (cell.method, cell.task) and member.diagnostics
        ]
        if members:
            label = study.label(cell.method, utd=False)
            numbers = [_last(members, name) for name in DIAGNOSTICS]
            rows.append([cell.task, label, utd_text(cell.method), *numbers])
    if not rows:
        return None
    header = ["task", "method", "UTD", *DIAGNOSTICS.values()]
    return table_of("diagnostics", "Representations at the end", header, rows, [LAST])


def _run(study: Study, run: RunData) -> Cells:
    method = run.results.method
    pairs = run.results.members or [(r.env_name, r.seed) for r in run.results.rows]
    seeds = sorted({seed for _, seed in pairs})
    steps = [row.env_step for row in run.results.rows]
    steps += [member.env_steps for member in run.members]
    return [
        run.name,
        run.status,
        study.label(method, utd=False),
        utd_text(method),
        ", ".join(run.tasks),
        seed_list(list(map(str, seeds))),
        f"{max(steps, default=0):,}",
        "; ".join(_remarks(run)) or "none",
    ]


def _remarks(run: RunData) -> Iterable[str]:
    for member in run.members:
        if member.stopped:
            yield (
                f"{member.name} was stopped at {member.env_steps:,} environment steps: "
                f"{member.stopped}"
            )
        if member.collapses:
            first = f"{member.collapses[0]:,}"
            yield f"{member.name} was found collapsed first at environment step {first}"
        if lack := run.results.lacks.get((member.task, member.seed)):
            yield f"{member.name} has {lack}"


def _last(members: Iterable[MemberData], name: str) -> Entry:
    """The mean over seeds of the newest values of a diagnostic."""
    found = [m.diagnostics[name].values[-1] for m in members if name in m.diagnostics]
    return score_entry(np.array(found, dtype=np.float64), [])
