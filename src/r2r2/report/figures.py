"""Charts as files for papers and slides: SVG, PNG, PDF, and their numbers as CSV.

The same study gives the same bytes.
"""

import io
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r2r2.record.files import write_whole
from r2r2.report.charts import Chart, chart_csv, legend_of
from r2r2.report.curve import DPI, dress, untyped
from r2r2.report.figure_marks import LONG, legend_mark, panel_marks, row_marks
from r2r2.report.gallery import Gallery, gallery_of
from r2r2.report.study import Study
from r2r2.report.svg import cut

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
            write_whole(folder / f"{chart.name}.{ending}", content)
        write_whole(folder / f"{chart.name}.csv", chart_csv(chart))
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
