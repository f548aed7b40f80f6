"""What stands between the axes of a figure, drawn by matplotlib."""

from typing import Any

from r2r2.report.charts import Chart, Line, Panel, values_of
from r2r2.report.curve import COLOURS
from r2r2.report.drawing import plane_of
from r2r2.report.summary import rounded
from r2r2.report.svg import cut
from r2r2.report.ticks import Scale

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
