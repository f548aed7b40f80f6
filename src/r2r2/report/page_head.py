"""The head of a report's page: what it is made of, and whether it is all there."""

from collections.abc import Sequence

from r2r2.report import paper
from r2r2.report.page_parts import escaped
from r2r2.report.paper_tables import which_of
from r2r2.report.study import Study

FEW = 4  # names; of more their number is told
PLACES: tuple[str, ...] = ("commit", "device")
VERSIONS = ("r2r2", "python", "jax", "numpy", "gymnasium", "mujoco", "dm_control")


def title_of(study: Study) -> str:
    """What is compared on what, in one line."""
    agents = list(dict.fromkeys(method.agent for method in study.methods))
    return f"{_listed(agents, 'agents')} on {_listed(study.tasks, 'tasks')}"


def lede(study: Study) -> str:
    """What a reader is to know first."""
    utds = sorted({m.utd for m in study.methods if m.utd is not None})
    at = f" at UTD {_joined([str(utd) for utd in utds])}" if utds else ""
    theirs = any(which_of(cell) in paper.raw_scores() for cell in study.cells)
    beside = " and the paper's own numbers beside them" if theirs else ""
    return (
        f"Scores, learning curves and diagnostics{at}, with 95 % intervals{beside}. "
        "Point at a figure, touch it, or use the arrow keys on it for exact values."
    )


def banner(study: Study) -> str:
    """That the results are not the paper's, where that is so, and why."""
    lacking = [cell for cell in study.cells if not cell.complete]
    if not lacking:
        return ""
    cells = len(study.cells)
    which = f"{len(lacking)} of {cells}" if len(lacking) < cells else "All"
    said = (
        f"{which} results are partial or scaled down: not a reproduction of the paper."
    )
    why = "What each lacks stands with it, and below under “What is missing”."
    if study.shared:
        why = f"All runs: {'; '.join(study.shared)}. {why}"
    return (
        f'<div class="banner" role="note"><strong>{said}</strong>'
        f"<p>{escaped(why)}</p></div>"
    )


def facts(study: Study) -> str:
    """Runs, seeds and steps in numbers, and what the runs were made with."""
    seeds = [len(cell.seeds) for cell in study.cells]
    steps = [seed.env_steps for cell in study.cells for seed in cell.seeds]
    updates = [member.updates for run in study.runs for member in run.members]
    few, many = min(seeds), max(seeds)
    found = {
        "runs and files": _statuses(study),
        "methods": str(len(study.methods)),
        "tasks": str(len(study.tasks)),
        "seeds per cell": str(many) if few == many else f"{few} to {many}",
        "environment steps, at most": f"{max(steps, default=0):,}",
    }
    if updates:
        found["updates of a member, at most"] = f"{max(updates):,}"
    long = _made_with(study)
    return "".join(
        f"<div{kind}><dt>{escaped(name)}</dt><dd>{escaped(said)}</dd></div>"
        for kind, group in (("", found), (' class="long"', long))
        for name, said in group.items()
    )


def _statuses(study: Study) -> str:
    counts: dict[str, int] = {}
    for run in study.runs:
        counts[run.status] = counts.get(run.status, 0) + 1
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _made_with(study: Study) -> dict[str, str]:
    """Commits, devices and versions, each that occurs among the runs."""
    values: dict[str, list[str]] = {}
    for run in study.runs:
        for name, value in run.versions.items():
            known = values.setdefault(name, [])
            if value not in known:
                known.append(value)
    said = {name: _joined(found, "or") for name, found in values.items()}
    found = {name: said[name] for name in PLACES if name in said}
    versions = [f"{name} {said[name]}" for name in VERSIONS if name in said]
    return {**found, **({"versions": ", ".join(versions)} if versions else {})}


def _listed(names: Sequence[str], what: str) -> str:
    return _joined(names) if len(names) <= FEW else f"{len(names)} {what}"


def _joined(names: Sequence[str], word: str = "and") -> str:
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last
