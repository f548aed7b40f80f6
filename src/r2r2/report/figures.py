"""Pictures by matplotlib: charts of a study (equal studies give equal bytes), curves of a run."""

import io
import itertools
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from r2r2.config.errors import UserError
from r2r2.report import curve_charts, score_charts
from r2r2.report.charts import (
    COLORS,
    Chart,
    Curve,
    Line,
    Note,
    NoteKind,
    Panel,
    chart_csv,
    count_text,
    learning_curves,
    make_notes,
)
from r2r2.report.study import Study
from r2r2.report.svg import plot_area, truncate
from r2r2.report.tables import format_number, printable
from r2r2.stats.scores import METRIC
from r2r2.storage.evaluations import Row
from r2r2.storage.files import atomic_write

FORMATS = ("svg", "png", "pdf")
COLUMNS = 4
DPI = 150
NAME_LENGTH = 56  # letters of a name that a picture has room for
PANEL_TITLE_LENGTH = 32  # letters in a line, above one of several panels
LEGEND_LETTERS, LEGEND_SAMPLE = 13, 9  # letters per inch; width of a sample in letters
NOTE_LETTERS = 21  # per inch
MAX_INNER_LEGEND = 5  # entries; a longer legend would cover the data
DASHES = {"solid": "-", "dashed": (0, (5, 2)), "dotted": (0, (1.2, 1.6))}

# Independent of time and machine: no date, no random ids, matplotlib's own fonts.
SETTINGS: Any = {
    "text.parse_math": False,
    "svg.hashsalt": "r2r2",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
METADATA: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": "r2r2"},
    "png": {"Software": "r2r2"},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": "r2r2"},
}


class ChartSet(NamedTuple):
    """The charts of a study, in the order of the paper's."""

    charts: tuple[Chart, ...]  # with unique names, which are names of files
    missing: tuple[tuple[str, str], ...]  # title and reason of each kind without data


COMPLETE_SUITE = (
    "requires a method with scores on all tasks of a suite or of this report, and its base at UTD 1"
)
SUITE_AT_TWO_UTDS = f"{COMPLETE_SUITE}, at two or more UTDs"
TWO_UTDS = "requires runs at two or more UTDs"
VARIANTS = "requires two variants of an agent on the same task at the same UTD"
NO_ENCODER = "agents without an encoder have none"
NO_DIAGNOSTICS = f"no run has recorded diagnostics; {NO_ENCODER}"
NO_SPECTRUM = f"no run has recorded finite, nonzero singular values; {NO_ENCODER}"

# The functions that make charts, each with a title and the reason if it makes none.
MAKERS: dict[Callable[[Study], Chart | list[Chart] | None], tuple[str, str]] = {
    score_charts.suites_by_utd: ("Score against UTD", SUITE_AT_TWO_UTDS),
    score_charts.tasks_by_utd: ("Score against UTD, task by task", TWO_UTDS),
    curve_charts.aggregate_curves: ("Aggregate learning curves", COMPLETE_SUITE),
    curve_charts.task_curves: ("Learning curves", "no run has an evaluation yet"),
    curve_charts.profiles: ("Performance profiles", COMPLETE_SUITE),
    score_charts.ablations: ("Ablations", VARIANTS),
    curve_charts.spectrum_chart: ("Spectra of the representation", NO_SPECTRUM),
    curve_charts.rank_charts: ("Effective rank", NO_DIAGNOSTICS),
    score_charts.timing: ("Time", "no run has recorded times, or all were too short"),
}


def write_figures(study: Study, folder: Path) -> ChartSet:
    """Write all figures of a study as NAME.svg, .png, .pdf and .csv into a folder."""
    chart_set = make_charts(study)
    write_charts(chart_set.charts, folder)
    return chart_set


def write_charts(charts: Iterable[Chart], folder: Path) -> None:
    """Write charts as NAME.svg, .png, .pdf and .csv into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for chart in charts:
        for extension, content in render_chart(chart).items():
            atomic_write(folder / f"{chart.name}.{extension}", content)
        atomic_write(folder / f"{chart.name}.csv", chart_csv(chart))


def make_charts(study: Study) -> ChartSet:
    """Return all charts of a study."""
    charts: dict[str, Chart] = {}
    missing: list[tuple[str, str]] = []
    abnormal = study.abnormal
    for make, title_and_reason in MAKERS.items():
        result = make(study)
        of_kind = result if isinstance(result, list) else [result] if result else []
        if not of_kind:
            missing.append(title_and_reason)
        for chart in of_kind:
            # Only names that every file system accepts, each once.
            stem = re.sub(r"[^a-z0-9-]+", "-", chart.name.lower()).strip("-")[:80]
            numbered = (f"{stem}-{number}" for number in itertools.count(2))
            name = next(n for n in itertools.chain([stem], numbered) if n not in charts)
            labels = [label for line in chart.lines for label in line.partial]
            notes = (*chart.notes, *make_notes(NoteKind.PARTIAL, labels))
            marked = [f"{x} ({abnormal[x]})" for x in labels if x in abnormal]
            notes += make_notes(NoteKind.ABNORMAL, marked)
            charts[name] = _printable(chart._replace(name=name, notes=notes))
    return ChartSet(tuple(charts.values()), tuple(missing))


def _printable(chart: Chart) -> Chart:
    """Return a chart whose names have no unprintable characters."""
    panels = []
    for panel in chart.panels:
        lines = [line._replace(name=printable(line.name)) for line in panel.lines]
        panels.append(Panel(printable(panel.title), lines))
    notes = tuple(note._replace(items=tuple(map(printable, note.items))) for note in chart.notes)
    return chart._replace(title=printable(chart.title), panels=panels, notes=notes)


def render_chart(chart: Chart) -> dict[str, bytes]:
    """Return the picture of a chart by format."""
    # Slow to import, and needed only for pictures.
    import matplotlib

    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        # Names may use letters that the font lacks; the page and the CSV show them.
        warnings.filterwarnings("ignore", "Glyph")
        figure = draw_chart(chart)
        # Lay out once instead of for every format.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        return {name: _render(figure, name, METADATA[name]) for name in FORMATS}


def _render(figure: Any, extension: str, metadata: Mapping[str, str | None]) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format=extension, dpi=DPI, metadata=metadata)
    return content.getvalue()


def draw_chart(chart: Chart) -> Any:
    """Return a chart as a figure of matplotlib."""
    from matplotlib.figure import Figure

    # The fewest columns that do not need more rows than necessary.
    panels = len(chart.panels)
    columns = 1 if chart.rows else -(-panels // -(-panels // COLUMNS))
    rows = -(-panels // columns)
    figure = Figure(figsize=_figure_size(chart, rows, columns), layout="constrained")
    for number, panel in enumerate(chart.panels, start=1):
        title = truncate(panel.title, NAME_LENGTH)
        if columns > 1:
            title = textwrap.fill(title, PANEL_TITLE_LENGTH)
        axes = figure.add_subplot(rows, columns, number)
        _style_axes(axes, title, 9.5)
        (_draw_bars if chart.rows else _draw_lines)(axes, chart, panel)
    if not chart.rows:
        _draw_labels(figure, chart, columns)
    if chart.notes:
        _draw_notes(figure, chart.notes)
    return figure


def _figure_size(chart: Chart, rows: int, columns: int) -> tuple[float, float]:
    """Return width and height in inches, with room for the legend."""
    if chart.rows:
        return 7.0, 1.0 + 0.42 * len(chart.lines)
    if len(chart.panels) == 1:
        return 6.0, 4.0
    width = 2.9 * columns
    legend_rows = -(-len(chart.legend) // _legend_columns(chart, width))
    return width, 0.5 + 2.2 * rows + 0.17 * legend_rows


def _legend_columns(chart: Chart, inches: float) -> int:
    longest = max(min(len(line.name), NAME_LENGTH) for line in chart.legend)
    room = int(inches * LEGEND_LETTERS / (longest + LEGEND_SAMPLE))
    return max(1, min(room, len(chart.legend)))


def _style_axes(axes: Any, title: str, size: float) -> None:
    """Give axes a title and the look of all pictures of this package."""
    axes.set_title(title, loc="left", fontsize=size)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)


def _draw_labels(figure: Any, chart: Chart, columns: int) -> None:
    """Add the labels of the axes and the legend."""
    from matplotlib.lines import Line2D

    if columns > 1:
        figure.supxlabel(chart.x.label, fontsize=9)
        figure.supylabel(chart.y.label, fontsize=9)
    else:
        figure.axes[-1].set_xlabel(chart.x.label)
        figure.axes[-1].set_ylabel(chart.y.label)
    handles = []
    for line in chart.legend:
        marker, label = line.marker != "none", truncate(line.name, NAME_LENGTH)
        handles.append(Line2D([], [], label=label, **_line_style(line, marker)))
    figure.legend(
        handles=handles,
        ncols=_legend_columns(chart, figure.get_figwidth()),
        fontsize=8,
        loc="outside upper center",
        frameon=False,
        handlelength=3.2,
    )


def _draw_lines(axes: Any, chart: Chart, panel: Panel) -> None:
    """Draw the lines of a panel, on the same scales as on the page."""
    from matplotlib.ticker import NullFormatter, NullLocator

    for line in panel.lines:
        _draw_line(axes, line)
    area = plot_area(chart, panel)
    for axis, scale in ((axes.xaxis, area.x), (axes.yaxis, area.y)):
        if scale.log:
            (axes.set_yscale if axis is axes.yaxis else axes.set_xscale)("log")
            axis.set_minor_formatter(NullFormatter())
            axis.set_minor_locator(NullLocator())
        axis.set_ticks([at for at, _ in scale.ticks], [text for _, text in scale.ticks])
    axes.set_xlim(area.x.low, area.x.high)
    axes.set_ylim(area.y.low, area.y.high)


def _draw_line(axes: Any, line: Line) -> None:
    color = COLORS[line.style.color]
    for seed in line.seeds:
        axes.plot(*seed, color=color, lw=0.5, alpha=0.35)
    points = [(point.x + line.offset, point) for point in line.points]
    intervals = [(x, *point.interval) for x, point in points if point.interval]
    if line.marker == "none" and len(intervals) > 1:
        axes.fill_between(*zip(*intervals, strict=True), color=color, alpha=0.16, lw=0)
    else:
        for x, *ends in intervals:
            axes.plot([x, x], ends, color=color, lw=1.1, marker="_", ms=5)
    style = _line_style(line, line.marker != "none" or len(points) == 1)
    axes.plot([x for x, _ in points], [point.y for _, point in points], **style)


def _line_style(line: Line, marker: bool) -> dict[str, Any]:
    color = COLORS[line.style.color]
    return {
        "color": color,
        "lw": 1.6 if line.connected else 0,
        "ls": DASHES[line.style.dash],
        "marker": "o" if marker else "",
        "ms": 4.5,
        "mfc": "white" if line.marker == "hollow" else color,
    }


def _draw_bars(axes: Any, chart: Chart, panel: Panel) -> None:
    """Draw a bar for every value of a panel."""
    axes.set_xlabel(chart.x.label)
    axes.grid(visible=False, axis="y")
    offset = {"xytext": (5, 0), "textcoords": "offset points"}
    beside: dict[str, Any] = {**offset, "va": "center", "fontsize": 8}
    names = []
    for row, line in enumerate(panel.lines):
        color = COLORS[line.style.color]
        hollow = line.marker == "hollow"
        alpha = 0.45 if line.style.dash == "dashed" and not hollow else 1.0
        look = {"color": "white" if hollow else color, "ec": color, "alpha": alpha}
        if not line.points:
            axes.annotate(line.detail_text, (0, row), **beside)
        for _, value, interval, _ in line.points:
            axes.barh(row, value, 0.55, lw=1.1, **look)
            if interval:
                axes.plot(interval, [row, row], color="#222222", lw=1.1, marker="|")
            axes.annotate(format_number(value), (max([value, *(interval or ())]), row), **beside)
        name = truncate(line.name, NAME_LENGTH)
        names.append(name.replace(", ", ",\n", 1) if len(name) > NAME_LENGTH // 2 else name)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.margins(x=0.12)


def _draw_notes(figure: Any, notes: Sequence[Note]) -> None:
    """Write the notes below everything, for readers who see only the picture."""
    width = int(NOTE_LETTERS * figure.get_figwidth())
    lines = [line for note in notes for line in textwrap.wrap(note.text, width)]
    text = "\n".join(lines)
    figure.text(0.005, 0.004, text, va="bottom", fontsize=6.5, color="#8a5200")
    # The layout engine reserves no room for this text or for a label that is moved up.
    inch = 1 / figure.get_figheight()
    room = (0.07 + 0.11 * len(lines)) * inch
    if figure.get_supxlabel():
        figure.supxlabel(figure.get_supxlabel(), y=room, fontsize=9)
        room += 0.2 * inch
    figure.get_layout_engine().set(rect=(0, room, 1, 1 - room))


def draw_curve(
    rows: Sequence[Row], path: Path, title: str, reference: Mapping[str, float] | None = None
) -> None:
    """Draw the returns among evaluations against environment steps, as a PNG file.

    Each task has one color: a thin line per seed, a bold line for their mean and a band from their
    minimum to their maximum. `reference` are returns to compare with, such as a random policy's.
    """
    curves = learning_curves(rows)
    if not curves:
        raise UserError(f"evaluations: nothing to draw; expected metric '{METRIC}'")
    # Slow to import, and needed only at the end of a run.
    import matplotlib

    with matplotlib.rc_context({"text.parse_math": False}):
        atomic_write(path, _render(curve_figure(curves, title, reference or {}), "png", {}))


def curve_figure(curves: Sequence[Curve], title: str, reference: Mapping[str, float]) -> Any:
    """Return learning curves, with references as dashed lines, as a figure."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure: Any = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for number, curve in enumerate(curves):
        _draw_task(axes, curve, COLORS[number % len(COLORS)])
    for number, (name, value) in enumerate(reference.items()):
        dashes = (0, (6 - number % 3 * 2, 2))
        axes.axhline(value, color="#444444", lw=1.1, ls=dashes, label=name)
        # Otherwise a reference close to the frame is hidden by it.
        axes.autoscale_view()
    _style_axes(axes, title, 12)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("episode return")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    _draw_curve_legend(figure, axes, any(len(curve.seeds) > 1 for curve in curves))
    return figure


def _draw_task(axes: Any, curve: Curve, color: str) -> None:
    if len(curve.seeds) > 1:
        for steps, values in curve.seeds:
            marker = "." if len(steps) == 1 else ""
            axes.plot(steps, values, color=color, lw=0.7, alpha=0.45, marker=marker)
        low, high = curve.returns.min(axis=0), curve.returns.max(axis=0)
        axes.fill_between(curve.steps, low, high, color=color, alpha=0.14, lw=0)
    mean = curve.returns.mean(axis=0)
    marker = "o" if len(curve.steps) <= 1 else ""
    label = f"{curve.name} ({count_text(len(curve.seeds), 'seed')})"
    axes.plot(curve.steps, mean, color=color, lw=2.2, marker=marker, label=label)


def _draw_curve_legend(figure: Any, axes: Any, several_seeds: bool) -> None:
    """Add the legend: inside the axes if it is short, otherwise beside them."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles, labels = axes.get_legend_handles_labels()
    if several_seeds:
        gray = "#666666"
        mean = Line2D([], [], color=gray, lw=2.2)
        seed = Line2D([], [], color=gray, lw=0.7, alpha=0.6)
        handles += [mean, seed, Patch(color=gray, alpha=0.14, lw=0)]
        labels += ["mean over seeds", "one seed", "min to max over seeds"]
    if len(labels) > MAX_INNER_LEGEND + 3:
        place = {"loc": "outside right upper", "frameon": False}
        figure.legend(handles, labels, fontsize=9, **place)
    else:
        axes.legend(handles, labels, fontsize=9, framealpha=0.85, edgecolor="none")
