"""All charts of a study, as SVG, PNG and PDF files and their numbers as CSV.

Equal studies give equal bytes.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from r2r2.report.charts import (
    COLORS,
    Chart,
    Line,
    Note,
    NoteKind,
    Panel,
    chart_csv,
    make_notes,
)
from r2r2.report.curve_charts import (
    aggregate_curves,
    profiles,
    rank_charts,
    spectrum_chart,
    task_curves,
)
from r2r2.report.learning_curve import DPI, style_axes, untyped
from r2r2.report.score_charts import ablations, suites_by_utd, tasks_by_utd, timing
from r2r2.report.study import Study
from r2r2.report.svg import Scale, plot_area, truncate
from r2r2.report.tables import format_number, printable
from r2r2.storage.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
COLUMNS = 4
NAME_LENGTH = 56  # letters of a name that a picture has room for
PANEL_TITLE_LENGTH = 32  # letters in a line, above one of several panels
LEGEND_LETTERS, LEGEND_SAMPLE = 13, 9  # letters per inch; width of a sample in letters
NOTE_LETTERS = 21  # per inch
DASHES = {"solid": "-", "dashed": (0, (5, 2)), "dotted": (0, (1.2, 1.6))}

# Independent of time and machine: no date, no random ids, matplotlib's own fonts.
SETTINGS = {
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
METADATA = {
    "svg": {"Date": None, "Creator": "r2r2"},
    "png": {"Software": "r2r2"},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": "r2r2"},
}


class MissingChart(NamedTuple):
    """A kind of chart that a study has no data for."""

    title: str
    reason: str


class ChartSet(NamedTuple):
    """The charts of a study, in the order of the paper's."""

    charts: tuple[Chart, ...]  # with unique names, which are names of files
    missing: tuple[MissingChart, ...]


COMPLETE_SUITE = (
    "requires a method with scores on all tasks of a suite or of this report, and its "
    "base at UTD 1"
)
VARIANTS = "requires two variants of an agent on the same task at the same UTD"
NO_ENCODER = "agents without an encoder have none"
NO_SPECTRUM = f"no run has recorded finite, nonzero singular values; {NO_ENCODER}"

# The functions that make charts, each with a title and the reason if it makes none.
MAKERS: dict[Callable[[Study], Chart | list[Chart] | None], tuple[str, str]] = {
    suites_by_utd: ("Score against UTD", f"{COMPLETE_SUITE}, at two or more UTDs"),
    tasks_by_utd: (
        "Score against UTD, task by task",
        "requires runs at two or more UTDs",
    ),
    aggregate_curves: ("Aggregate learning curves", COMPLETE_SUITE),
    task_curves: ("Learning curves", "no run has an evaluation yet"),
    profiles: ("Performance profiles", COMPLETE_SUITE),
    ablations: ("Ablations", VARIANTS),
    spectrum_chart: ("Spectra of the representation", NO_SPECTRUM),
    rank_charts: ("Effective rank", f"no run has recorded diagnostics; {NO_ENCODER}"),
    timing: ("Time", "no run has recorded times, or all were too short"),
}


def write_figures(study: Study, folder: Path) -> ChartSet:
    """Write all figures of a study as NAME.svg, .png, .pdf and .csv into a folder."""
    chart_set = make_charts(study)
    folder.mkdir(parents=True, exist_ok=True)
    for chart in chart_set.charts:
        for extension, content in render_chart(chart).items():
            atomic_write(folder / f"{chart.name}.{extension}", content)
        atomic_write(folder / f"{chart.name}.csv", chart_csv(chart))
    return chart_set


def make_charts(study: Study) -> ChartSet:
    """Return all charts of a study."""
    charts: dict[str, Chart] = {}
    missing: list[MissingChart] = []
    for make, title_and_reason in MAKERS.items():
        made = make(study)
        of_kind = made if isinstance(made, list) else [made] if made else []
        if not of_kind:
            missing.append(MissingChart(*title_and_reason))
        for chart in of_kind:
            name = _unique_file_name(chart.name, charts)
            notes = (*chart.notes, *_partial_notes(chart))
            charts[name] = _printable(chart._replace(name=name, notes=notes))
    return ChartSet(tuple(charts.values()), tuple(missing))


def _partial_notes(chart: Chart) -> tuple[Note, ...]:
    lines = [line for panel in chart.panels for line in panel.lines]
    labels = (label for line in lines for label in line.partial)
    return make_notes(NoteKind.PARTIAL, labels)


def _printable(chart: Chart) -> Chart:
    """Return a chart whose names have no unprintable characters."""
    panels = tuple(
        Panel(
            printable(panel.title),
            tuple(line._replace(name=printable(line.name)) for line in panel.lines),
        )
        for panel in chart.panels
    )
    notes = tuple(
        note._replace(items=tuple(map(printable, note.items))) for note in chart.notes
    )
    return chart._replace(title=printable(chart.title), panels=panels, notes=notes)


def _unique_file_name(name: str, taken: Iterable[str]) -> str:
    """Return a name that every file system accepts and that is not taken."""
    stem = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:80]
    number = 1
    unique = stem
    while unique in taken:
        number += 1
        unique = f"{stem}-{number}"
    return unique


def render_chart(chart: Chart) -> dict[str, bytes]:
    """Return the picture of a chart by format."""
    # Slow to import, and needed only for pictures.
    import matplotlib

    pictures: dict[str, bytes] = {}
    with untyped(matplotlib).rc_context(SETTINGS), warnings.catch_warnings():
        # Names may use letters that the font lacks; the page and the CSV show them.
        warnings.filterwarnings("ignore", "Glyph")
        figure = draw_chart(chart)
        # Lay out once instead of for every format.
        untyped(figure).draw_without_rendering()
        untyped(figure).set_layout_engine("none")
        for extension in FORMATS:
            content = io.BytesIO()
            options: dict[str, Any] = {"dpi": DPI, "metadata": METADATA[extension]}
            untyped(figure).savefig(content, format=extension, **options)
            pictures[extension] = content.getvalue()
    return pictures


def draw_chart(chart: Chart) -> "Figure":
    """Return a chart as a figure of matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_figure_size(chart), layout="constrained")
    columns = _columns(chart)
    rows = -(-len(chart.panels) // columns)
    for number, panel in enumerate(chart.panels):
        axes = untyped(figure).add_subplot(rows, columns, number + 1)
        style_axes(axes, _panel_title(panel.title, columns), 9.5)
        (_draw_bars if chart.rows else _draw_lines)(axes, chart, panel)
    if not chart.rows:
        _draw_labels(figure, chart)
    if chart.notes:
        _draw_notes(figure, chart.notes)
    return figure


def _columns(chart: Chart) -> int:
    """Return the fewest columns that do not need more rows than necessary."""
    panels = len(chart.panels)
    return 1 if chart.rows else -(-panels // -(-panels // COLUMNS))


def _figure_size(chart: Chart) -> tuple[float, float]:
    """Return width and height in inches, with room for the legend."""
    if chart.rows:
        return 7.0, 1.0 + 0.42 * sum(len(panel.lines) for panel in chart.panels)
    if len(chart.panels) == 1:
        return 6.0, 4.0
    width = 2.9 * _columns(chart)
    rows = -(-len(chart.panels) // _columns(chart))
    legend_rows = -(-len(chart.legend) // _legend_columns(chart, width))
    return width, 0.5 + 2.2 * rows + 0.17 * legend_rows


def _legend_columns(chart: Chart, inches: float) -> int:
    longest = max(min(len(line.name), NAME_LENGTH) for line in chart.legend)
    room = int(inches * LEGEND_LETTERS / (longest + LEGEND_SAMPLE))
    return max(1, min(room, len(chart.legend)))


def _panel_title(title: str, columns: int) -> str:
    """Return a panel's title, wrapped if other panels are beside it."""
    title = truncate(title, NAME_LENGTH)
    if columns == 1:
        return title
    return "\n".join(textwrap.wrap(title, PANEL_TITLE_LENGTH))


def _draw_labels(figure: "Figure", chart: Chart) -> None:
    """Add the labels of the axes and the legend."""
    if _columns(chart) > 1:
        untyped(figure).supxlabel(chart.x.label, fontsize=9)
        untyped(figure).supylabel(chart.y.label, fontsize=9)
    else:
        axes = untyped(figure.axes[-1])
        axes.set_xlabel(chart.x.label)
        axes.set_ylabel(chart.y.label)
    untyped(figure).legend(
        handles=[_legend_handle(line) for line in chart.legend],
        ncols=_legend_columns(chart, figure.get_figwidth()),
        fontsize=8,
        loc="outside upper center",
        frameon=False,
        handlelength=3.2,
    )


def _draw_lines(axes: Any, chart: Chart, panel: Panel) -> None:
    """Draw the lines of a panel, on the same scales as on the page."""
    area = plot_area(chart, panel)
    for line in panel.lines:
        _draw_line(axes, line)
    _set_scale(axes.xaxis, axes.set_xlim, area.x)
    _set_scale(axes.yaxis, axes.set_ylim, area.y)


def _set_scale(axis: Any, set_limits: Any, scale: Scale) -> None:
    from matplotlib.ticker import NullFormatter, NullLocator

    if scale.log:
        axis.axes.set_yscale("log")
        axis.set_minor_formatter(NullFormatter())
        axis.set_minor_locator(NullLocator())
    axis.set_ticks([at for at, _ in scale.ticks], [text for _, text in scale.ticks])
    set_limits(scale.low, scale.high)


def _draw_line(axes: Any, line: Line) -> None:
    color = COLORS[line.style.color]
    for seed in line.seeds:
        axes.plot(*seed, color=color, lw=0.5, alpha=0.35)
    points = line.points
    intervals = [
        (point.x + line.offset, point.low, point.high)
        for point in points
        if point.low is not None
    ]
    if line.marker == "none" and len(intervals) > 1:
        axes.fill_between(*zip(*intervals, strict=True), color=color, alpha=0.16, lw=0)
    else:
        for center, bottom, top in intervals:
            ends = [center, center], [bottom, top]
            axes.plot(*ends, color=color, lw=1.1, marker="_", ms=5)
    marked = line.marker != "none" or len(points) == 1
    x = [point.x + line.offset for point in points]
    y = [point.y for point in points]
    axes.plot(x, y, marker="o" if marked else "", **_line_style(line))


def _line_style(line: Line) -> dict[str, Any]:
    color = COLORS[line.style.color]
    return {
        "color": color,
        "lw": 1.6 if line.connected else 0,
        "ls": DASHES[line.style.dash],
        "ms": 4.5,
        "mfc": "white" if line.marker == "hollow" else color,
    }


def _legend_handle(line: Line) -> object:
    from matplotlib.lines import Line2D

    marker = "" if line.marker == "none" else "o"
    label = truncate(line.name, NAME_LENGTH)
    return Line2D([], [], marker=marker, label=label, **_line_style(line))


def _draw_bars(axes: Any, chart: Chart, panel: Panel) -> None:
    """Draw a bar for every value of a panel."""
    axes.set_xlabel(chart.x.label)
    axes.grid(visible=False, axis="y")
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    for row, line in enumerate(panel.lines):
        color = COLORS[line.style.color]
        hollow = line.marker == "hollow"
        alpha = 0.45 if line.style.dash == "dashed" and not hollow else 1.0
        look = {"color": "white" if hollow else color, "ec": color, "alpha": alpha}
        if not line.points:
            axes.annotate(line.detail_text, (0, row), (5, 0), fontsize=8, **beside)
        for _, value, low, high, _ in line.points:
            axes.barh(row, value, 0.55, lw=1.1, **look)
            if low is not None:
                axes.plot([low, high], [row, row], color="#222222", lw=1.1, marker="|")
            end = max(value, value if high is None else high), row
            axes.annotate(format_number(value), end, (5, 0), fontsize=8, **beside)
    names = [_wrap_name(line.name) for line in panel.lines]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.margins(x=0.12)


def _wrap_name(name: str) -> str:
    name = truncate(name, NAME_LENGTH)
    return name.replace(", ", ",\n", 1) if len(name) > NAME_LENGTH // 2 else name


def _draw_notes(figure: "Figure", notes: Sequence[Note]) -> None:
    """Write the notes below everything, for readers who see only the picture."""
    width = int(NOTE_LETTERS * figure.get_figwidth())
    lines = [line for note in notes for line in textwrap.wrap(note.text, width)]
    look: dict[str, object] = {"fontsize": 6.5, "color": "#8a5200"}
    untyped(figure).text(0.005, 0.004, "\n".join(lines), va="bottom", **look)
    # The layout engine reserves no room for this text or for a label that is moved up.
    inch = 1 / figure.get_figheight()
    room = (0.07 + 0.11 * len(lines)) * inch
    if figure.get_supxlabel():
        untyped(figure).supxlabel(figure.get_supxlabel(), y=room, fontsize=9)
        room += 0.2 * inch
    untyped(figure).get_layout_engine().set(rect=(0, room, 1, 1 - room))
