"""Charts as files for papers and slides: SVG, PNG, PDF, and their numbers as CSV.

The same study gives the same bytes.
"""

import io
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r2r2.report.all_charts import Gallery, gallery_of
from r2r2.report.axis_scale import Scale
from r2r2.report.charts import Chart, Line, Panel, chart_csv, legend_of, values_of
from r2r2.report.learning_curve import COLOURS, DPI, dress, untyped
from r2r2.report.study import Study
from r2r2.report.summary import rounded
from r2r2.report.svg import cut
from r2r2.report.svg_charts import plane_of
from r2r2.storage.files import atomic_write

LONG = 56  # letters of a name that a picture has room for
DASHES = {"solid": "-", "dashed": (0, (5, 2)), "dotted": (0, (1.2, 1.6))}


def panel_marks(axes: Any, chart: Chart, panel: Panel) -> None:
    """Draws the lines of a panel, on the scales that the page's drawing has."""
    plane = plane_of(chart, panel)
    for line in panel.lines:
        _draw_line(axes, line)
    _scale(axes.xaxis, axes.set_xlim, plane.x)
    _scale(axes.yaxis, axes.set_ylim, plane.y)


def _scale(axis: Any, limit: Any, scale: Scale) -> None:
    from matplotlib.ticker import NullFormatter, NullLocator

    if scale.log:
        axis.axes.set_yscale("log")
        axis.set_minor_formatter(NullFormatter())
        axis.set_minor_locator(NullLocator())
    axis.set_ticks([at for at, _ in scale.ticks], [said for _, said in scale.ticks])
    limit(scale.low, scale.high)


def _draw_line(axes: Any, line: Line) -> None:
    colour, dash = COLOURS[line.style.colour], DASHES[line.style.dash]
    for seed in line.each:
        axes.plot(*seed, color=colour, lw=0.5, alpha=0.35)
    points = list(values_of(line))
    x = [point.x + line.shift for point in points]
    y = [point.y for point in points]
    ends = [
        (at, one.low, one.high)
        for at, one in zip(x, points, strict=True)
        if one.low is not None
    ]
    if line.mark == "none" and len(ends) > 1:
        across, low, high = zip(*ends, strict=True)
        axes.fill_between(across, low, high, color=colour, alpha=0.16, lw=0)
    else:
        for at, a, b in ends:
            axes.plot([at, at], [a, b], color=colour, lw=1.1, marker="_", ms=5)
    alone = line.mark != "none" or len(points) == 1
    axes.plot(
        x,
        y,
        color=colour,
        lw=1.6 if line.joined else 0,
        ls=dash,
        marker="o" if alone else "",
        ms=4.5,
        mfc="white" if line.mark == "hollow" else colour,
    )


def row_marks(axes: Any, chart: Chart, panel: Panel) -> None:
    """Draws a bar for every value of a panel, beside its name."""
    axes.set_xlabel(chart.x.label)
    axes.grid(visible=False, axis="y")
    for row, line in enumerate(panel.lines):
        colour = COLOURS[line.style.colour]
        hollow = line.mark == "hollow"
        face = "white" if hollow else colour
        shade = 0.45 if line.style.dash == "dashed" and not hollow else 1.0
        points = list(values_of(line))
        if not points:
            where = {"textcoords": "offset points", "va": "center"}
            axes.annotate(line.remark, (0, row), (5, 0), fontsize=8, **where)
        for _, value, low, high, _ in points:
            axes.barh(row, value, 0.55, color=face, ec=colour, lw=1.1, alpha=shade)
            if low is not None:
                axes.plot([low, high], [row, row], color="#222222", lw=1.1, marker="|")
            beyond = max(value, value if high is None else high)
            axes.annotate(
                rounded(value),
                (beyond, row),
                (5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    axes.set_yticks(range(len(panel.lines)), [_wrapped(li.name) for li in panel.lines])
    axes.set_ylim(len(panel.lines) - 0.5, -0.5)
    axes.margins(x=0.12)


def _wrapped(name: str) -> str:
    name = cut(name, LONG)
    return name.replace(", ", ",\n", 1) if len(name) > LONG // 2 else name


def legend_mark(line: Line) -> object:
    """A sample of a line, with its name."""
    from matplotlib.lines import Line2D

    colour = COLOURS[line.style.colour]
    return Line2D(
        [],
        [],
        color=colour,
        lw=1.6 if line.joined else 0,
        ls=DASHES[line.style.dash],
        marker="" if line.mark == "none" else "o",
        mfc="white" if line.mark == "hollow" else colour,
        ms=4.5,
        label=cut(line.name, LONG),
    )


if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
COLUMNS = 4
NARROW = 32  # letters of a title above one of several panels
LETTERS, KEY = 13, 9  # of a legend to the inch, and those that a line's sample takes

FINE = 21  # letters of a remark to the inch

# Nothing of the moment or of the machine: no date, no random ids, own fonts.
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


def write_figures(study: Study, folder: Path) -> Gallery:
    """Writes every figure of a study into a folder, which is made.

    Args:
        study: what to draw.
        folder: for each chart it gets NAME.svg, NAME.png, NAME.pdf and NAME.csv.

    Returns:
        The charts, whose names are those of the files, and what is absent and why.
    """
    gallery = gallery_of(study)
    folder.mkdir(parents=True, exist_ok=True)
    for chart in gallery.charts:
        for ending, content in drawn(chart).items():
            atomic_write(folder / f"{chart.name}.{ending}", content)
        atomic_write(folder / f"{chart.name}.csv", chart_csv(chart))
    return gallery


def drawn(chart: Chart) -> dict[str, bytes]:
    """One chart in every format, by its ending."""
    # Slow to import, and most of what this package does needs no picture.
    import matplotlib
    from matplotlib.figure import Figure

    found: dict[str, bytes] = {}
    with untyped(matplotlib).rc_context(SETTINGS), warnings.catch_warnings():
        # Names may be in any script: the page and the CSV file show what this cannot.
        warnings.filterwarnings("ignore", "Glyph")
        figure = Figure(figsize=_size(chart), layout="constrained")
        _draw(figure, chart)
        if chart.notes:
            _remark(figure, chart.notes)
        # Laid out once, not again for every format.
        untyped(figure).draw_without_rendering()
        untyped(figure).set_layout_engine("none")
        for ending in FORMATS:
            content = io.BytesIO()
            told: dict[str, Any] = {"dpi": DPI, "metadata": METADATA[ending]}
            untyped(figure).savefig(content, format=ending, **told)
            found[ending] = content.getvalue()
    return found


def _columns(chart: Chart) -> int:
    """As few as fill the rows that they need at least."""
    panels = len(chart.panels)
    return 1 if chart.rows else -(-panels // -(-panels // COLUMNS))


def _size(chart: Chart) -> tuple[float, float]:
    """Inches, with room for the legend below."""
    if chart.rows:
        return 7.0, 1.0 + 0.42 * sum(len(panel.lines) for panel in chart.panels)
    if len(chart.panels) == 1:
        return 6.0, 4.0
    width = 2.9 * _columns(chart)
    rows = -(-len(chart.panels) // _columns(chart))
    keys = -(-len(legend_of(chart)) // _legend_columns(chart, width))
    return width, 0.5 + 2.2 * rows + 0.17 * keys


def _legend_columns(chart: Chart, inches: float) -> int:
    """How many names of lines have room beside each other."""
    names = [cut(line.name, LONG) for line in legend_of(chart)]
    room = int(inches * LETTERS / (max(map(len, names)) + KEY))
    return max(1, min(room, len(names)))


def titled(title: str, columns: int) -> str:
    r"""A panel's title, in lines where others stand beside it.

    Example:
        >>> titled("UTD 1, relative to sac, UTD 1, from theirs.csv", 2)
        'UTD 1, relative to sac, UTD 1,\nfrom theirs.csv'
    """
    whole = cut(title, LONG)
    return whole if columns == 1 else "\n".join(textwrap.wrap(whole, NARROW))


def _draw(figure: "Figure", chart: Chart) -> None:
    columns = _columns(chart)
    rows = -(-len(chart.panels) // columns)
    for number, panel in enumerate(chart.panels):
        axes = untyped(figure).add_subplot(rows, columns, number + 1)
        dress(axes, titled(panel.title, columns), 9.5)
        if chart.rows:
            row_marks(axes, chart, panel)
        else:
            panel_marks(axes, chart, panel)
    if chart.rows:
        return
    if columns > 1:
        untyped(figure).supxlabel(chart.x.label, fontsize=9)
        untyped(figure).supylabel(chart.y.label, fontsize=9)
    else:
        axes.set_xlabel(chart.x.label)
        axes.set_ylabel(chart.y.label)
    lines = legend_of(chart)
    handles = [legend_mark(line) for line in lines]
    place: dict[str, object] = {"loc": "outside upper center", "frameon": False}
    place["handlelength"] = 3.2
    wide = _legend_columns(chart, figure.get_figwidth())
    untyped(figure).legend(handles=handles, ncols=wide, fontsize=8, **place)


def _remark(figure: "Figure", notes: Sequence[str]) -> None:
    """Writes below everything what a reader of the picture alone must know."""
    most = int(FINE * figure.get_figwidth())
    lines = [line for note in notes for line in textwrap.wrap(note, most)]
    look: dict[str, object] = {"fontsize": 6.5, "color": "#8a5200"}
    untyped(figure).text(0.005, 0.004, "\n".join(lines), va="bottom", **look)
    # The layout leaves no room by itself, neither for this nor for a label moved up.
    inch = 1 / figure.get_figheight()
    room = (0.07 + 0.11 * len(lines)) * inch
    if figure.get_supxlabel():
        untyped(figure).supxlabel(figure.get_supxlabel(), y=room, fontsize=9)
        room += 0.2 * inch
    untyped(figure).get_layout_engine().set(rect=(0, room, 1, 1 - room))
