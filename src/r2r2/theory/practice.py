"""The constant mode in trained agents: tables and charts from the diagnostics of runs."""

from collections.abc import Mapping

import numpy as np

from r2r2.config.errors import UserError
from r2r2.report.charts import Chart
from r2r2.report.curve_charts import (
    RANK,
    SPREAD,
    constant_share,
    constant_share_charts,
    rank_charts,
    spectrum_chart,
)
from r2r2.report.score_tables import paper_key, rank_note
from r2r2.report.study import ABLATED, MemberData, Study
from r2r2.report.tables import (
    EMPTY,
    INTERVALS,
    Entry,
    Table,
    make_table,
    number_entry,
    summarize,
    summary_entry,
)
from r2r2.stats import paper
from r2r2.stats.samples import Floats
from r2r2.stats.scores import Method

Group = tuple[str, int, Method]  # task, UTD, method


def check_diagnostics(study: Study) -> None:
    """Raise a `UserError` if no run of a study has diagnostics of an encoder."""
    if not _groups(study):
        names = ", ".join(run.name for run in study.runs[:3])
        raise UserError(
            f"{names}: no diagnostics; expected a run of an agent with an encoder, after its first "
            "evaluation"
        )


def _groups(study: Study) -> Mapping[Group, list[MemberData]]:
    """Return the members with diagnostics, so that methods of one task and UTD are together."""
    groups: dict[Group, list[MemberData]] = {}
    for (method, task, _), member in study.members_by_seed().items():
        if SPREAD in member.diagnostics:
            groups.setdefault((task, method.utd or 0, method), []).append(member)
    methods, tasks = study.methods, study.tasks
    order = sorted(groups, key=lambda g: (tasks.index(g[0]), g[1], methods.index(g[2])))
    return {key: groups[key] for key in order}


def practice_table(study: Study) -> Table:
    """Return share of the constant mode and ranks at the last diagnosis, base beside R2R2."""
    published = dict(paper.effective_ranks())
    rows: list[list[Entry | str]] = []
    for (task, utd, method), members in _groups(study).items():
        cell = study.cell(method, task)
        theirs = published.pop(paper_key(cell), None) if cell else None
        spectra = [member.spectra[-1].singular_values for member in members if member.spectra]
        first = [float(s[0] ** 2 / (s**2).sum()) for s in spectra if s.any()]
        sizes = dict.fromkeys(str(len(s)) for s in spectra)
        rows.append(
            [
                task,
                study.label(method, utd=False).replace(ABLATED, ""),
                str(utd or "-"),
                f"{max(int(m.diagnostics[SPREAD].steps[-1]) for m in members):,}",
                _entry(constant_share(_last(members, SPREAD)), 3),
                _entry(np.array(first), 3),
                _entry(_last(members, RANK), 1),
                EMPTY if theirs is None else number_entry(theirs, f"{theirs}"),
                " or ".join(sizes) or "-",
            ]
        )
    for key, theirs in published.items():
        rank = number_entry(theirs, f"{theirs}")
        agent = f"{key.agent} (paper only)"
        rows.append([key.task, agent, str(key.utd), *[EMPTY] * 4, rank, EMPTY])
    header = (
        *("task", "method", "UTD", "environment step", "share of the constant mode"),
        *("share of the first direction", "effective rank", "effective rank (paper)", "d"),
    )
    notes = [
        "At the last diagnosis of every seed: means over seeds. The share of the constant mode is "
        "the squared norm of the mean latent over the mean squared norm of a latent; the share of "
        f"the first direction is that of the largest singular value of Z. {INTERVALS}",
        rank_note(study),
    ]
    return make_table("practice", "Trained encoders", header, rows, notes)


def _last(members: list[MemberData], field: str) -> Floats:
    return np.array([member.diagnostics[field].values[-1] for member in members])


def _entry(values: Floats, digits: int) -> Entry:
    return summary_entry(summarize(values), digits=digits)


def practice_charts(study: Study) -> list[Chart]:
    """Return the constant mode's share over time, the spectra, and effective ranks."""
    spectra = spectrum_chart(study)
    return [*constant_share_charts(study), *([spectra] if spectra else []), *rank_charts(study)]
