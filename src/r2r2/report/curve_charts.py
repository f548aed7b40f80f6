"""Charts against environment steps: returns and effective ranks, task by task."""

from collections.abc import Mapping

from r2r2.report import bands
from r2r2.report.absences import broken, lacking
from r2r2.report.charts import Axis, Chart, Panel
from r2r2.report.members import members_by_seed
from r2r2.report.palette import styles_of
from r2r2.report.scores import Method
from r2r2.report.study import Series, Study

RANK = "effective_rank"
STEPS = Axis("environment steps")

# The seeds of each method on each task.
Seeds = Mapping[tuple[Method, str], Mapping[int, Series]]


def task_curves(study: Study) -> list[Chart]:
    """Returns against steps: a chart for each UTD, a panel for each task."""
    found = {(curve.method, curve.task): curve.seeds for curve in study.curves}
    caption = f"Return of an evaluation's episodes. {bands.SAID}"
    axes = STEPS, Axis("return")
    return _by_utd(study, found, Chart("curves", "Learning curves", caption, *axes, ()))


def rank_charts(study: Study) -> list[Chart]:
    """Effective ranks against steps: a chart for each UTD, a panel for each task."""
    found: dict[tuple[Method, str], dict[int, Series]] = {}
    for (method, task, seed), member in members_by_seed(study).items():
        if RANK in member.diagnostics:
            by_seed = found.setdefault((method, task), {})
            by_seed[seed] = member.diagnostics[RANK]
    caption = (
        "Exponential of the entropy of Z's normalised singular values, on a fixed "
        f"batch from replay. {bands.SAID}"
    )
    axes = STEPS, Axis("effective rank")
    return _by_utd(study, found, Chart("rank", "Effective rank", caption, *axes, ()))


def _by_utd(study: Study, found: Seeds, like: Chart) -> list[Chart]:
    """A chart for each UTD; results whose UTD is not known are in every one."""
    known: list[int | None] = [*sorted({m.utd for m, _ in found if m.utd is not None})]
    charts = []
    for utd in known or [None]:
        here = {which: s for which, s in found.items() if which[0].utd in (utd, None)}
        panels = tuple(_panels(study, here))
        if panels:
            name, title = like.name, like.title
            if utd is not None:
                name, title = f"{name}-utd-{utd}", f"{title}, UTD {utd}"
            notes = broken(study, ((*which, s) for which, s in here.items()))
            chart = like._replace(name=name, title=title, panels=panels, notes=notes)
            charts.append(chart)
    return charts


def _panels(study: Study, found: Seeds) -> list[Panel]:
    styles = styles_of(study.methods)
    panels = []
    for task in study.tasks:
        lines = []
        for method in study.methods:
            seeds = found.get((method, task), {})
            if seeds:
                name, style = study.label(method, utd=False), styles[method]
                line = bands.seeds_and_mean(name, style, tuple(seeds.values()))
                lines.append(line._replace(lacks=lacking(study, method, [task])))
        if lines:
            panels.append(Panel(task, tuple(lines)))
    return panels
