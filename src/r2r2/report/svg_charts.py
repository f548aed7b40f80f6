"""Charts as SVG for a page, with the values that its pointer tells.

Colours are classes of the page's style sheet, so that they follow its light or dark
ground. `hover_of` gives the numbers behind a drawing in the drawing's own coordinates.
"""

import html
from collections.abc import Iterable

from r2r2.report.axis_scale import Scale, exact, inner_scale, scale_of, span_of
from r2r2.report.charts import Chart, Line, Panel, legend_of, values_of
from r2r2.report.summary import rounded
from r2r2.report.svg import Frame, Plane, cut, named, path, style_of, text, told

ROW, BAR = 56.0, 15.0  # heights
ROW_DRAWING_TITLE = 26.0  # above all rows, where there is one
LETTER = 9.0  # wide, at most
BELOW = 24.0  # from the top of a row to its bar
FRAME = Frame(680, 0, 10, 84, 8, 56)
NARROW = 440.0  # where there are several panels


def plane_of_rows(chart: Chart, panel: Panel) -> Plane:
    """The axes of a chart of rows, which is as high as it needs to be."""
    top = FRAME.top + (ROW_DRAWING_TITLE if panel.title else 0)
    height = top + ROW * len(panel.lines) + FRAME.bottom
    ends = [0.0, *(end for line in panel.lines for end in line.ends)]
    most = 6 if len(chart.panels) == 1 else 5
    x = scale_of(chart.x, min(ends), max(ends), most)
    width = FRAME.width if len(chart.panels) == 1 else NARROW
    frame = FRAME._replace(width=width, height=height, top=top)
    return Plane(frame, x, Scale(0.0, 1.0, False, ()))


def hover_of_rows(chart: Chart, panel: Panel, plane: Plane) -> dict[str, object]:
    """What the pointer tells of a chart of rows."""
    lines: list[object] = []
    at: list[object] = []
    for row, line in enumerate(panel.lines):
        for one in values_of(line):
            down = _top(plane, row) + BELOW + BAR / 2
            where = len(at), plane.at(one.y, 0)[0], down
            values = [[*where, *told(one)]]
            lines.append({**named(line, row), "values": values})
            at.append([down, ""])
    title = ", ".join(filter(None, [panel.title, chart.x.label]))
    return {"title": title, "x": "", "at": at, "lines": lines, "down": True}


def row_axes(chart: Chart, panel: Panel, plane: Plane) -> Iterable[str]:
    """The title above the rows and the scale below."""
    frame = plane.frame
    if panel.title:
        room = int(frame.width / LETTER)
        yield text(frame.left + 2, 17, cut(panel.title, room), "name")
    bottom = frame.height - frame.bottom
    for value, said in plane.x.ticks:
        x = plane.at(value, 0)[0]
        yield f'<path class="grid" d="M{x} {frame.top}V{bottom}"/>'
        yield text(x, bottom + 8, said, "tick mid hang")
    yield text(frame.width - 4, frame.height - 5, chart.x.label, "label end")


def bar(plane: Plane, line: Line, row: int) -> str:
    """One row: its name, its bar with the interval, and its value."""
    top, zero = _top(plane, row), plane.at(0.0, 0)[0]
    middle = top + BELOW + BAR / 2
    room = int((plane.frame.width - zero) / LETTER)
    parts = [text(zero + 2, top + 17, cut(line.name, room), "row")]
    points = list(values_of(line))
    if not points:
        parts.append(text(zero + 7, middle, line.remark, "tick middle"))
    for _, value, low, high, _ in points:
        end = plane.at(value, 0)[0]
        kind = "hollow" if line.mark == "hollow" else "bar"
        parts.append(
            f'<rect class="{kind}" x="{min(zero, end):g}" y="{top + BELOW:g}" '
            f'width="{abs(end - zero):g}" height="{BAR:g}" rx="1.5"/>'
        )
        beyond = end
        if low is not None and high is not None:
            a, b = plane.at(low, 0)[0], plane.at(high, 0)[0]
            caps = "".join(f"M{x:g} {middle - 4:g}v8" for x in (a, b))
            outline = f"M{a:g} {middle:g}H{b:g}{caps}"
            parts.append(f'<path class="whisker over" d="{outline}"/>')
            beyond = max(end, b)
        said = rounded(value)
        parts.append(text(max(beyond, zero) + 7, middle, said, "tick middle"))
    return "".join(parts)


def _top(plane: Plane, row: int) -> float:
    return plane.frame.top + ROW * row


WIDE = Frame(680, 390, 64, 20, 34, 58)
SMALL = Frame(340, 230, 46, 12, 30, 26)
TITLE = 44  # letters that a small panel has room for


def plane_of(chart: Chart, panel: Panel) -> Plane:
    """The axes of one of a chart's panels."""
    if chart.rows:
        return plane_of_rows(chart, panel)
    frame = WIDE if len(chart.panels) == 1 else SMALL
    few = frame is SMALL
    seen = chart.panels if chart.y.shared else (panel,)
    ends = [end for one in seen for line in one.lines for end in line.ends]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    y = scale_of(chart.y, low, high, 5 if few else 7)
    left, right = span_of(chart.panels if chart.x.ticks else (panel,))
    if chart.x.ticks:
        left, right = left - 0.5, right + 0.5
    return Plane(frame, inner_scale(chart.x, left, right, 6 if few else 8), y)


def draw_panel(chart: Chart, panel: Panel) -> str:
    """One panel of a chart as an SVG element, for a page that has the style sheet.

    Example:
        >>> from r2r2.report.charts import Axis
        >>> from r2r2.report.palette import Style
        >>> import numpy as np
        >>> line = Line("<td7>", Style(0), np.arange(3.0), np.arange(3.0))
        >>> axes = Axis("steps"), Axis("return")
        >>> chart = Chart("a", "A", "", *axes, (Panel("dog-run", (line,)),))
        >>> "&lt;td7&gt;" in draw_panel(chart, chart.panels[0])
        True
    """
    plane = plane_of(chart, panel)
    frame = plane.frame
    size = "wide" if len(chart.panels) == 1 else "small"
    parts = [
        f'<svg class="chart {size}{" rows" * chart.rows}" role="img" '
        f'viewBox="0 0 {frame.width:g} {frame.height:g}">',
        f"<title>{html.escape(panel.title or chart.title)}</title>",
        f"<desc>{html.escape(_described(chart, panel))}</desc>",
        *(row_axes if chart.rows else _axes)(chart, panel, plane),
    ]
    places = {line.name: place for place, line in enumerate(legend_of(chart))}
    for row, line in enumerate(panel.lines):
        inside = bar(plane, line, row) if chart.rows else _drawn(plane, line)
        place, style = places[line.name], style_of(line)
        parts.append(f'<g class="{style}" data-line="{place}">{inside}</g>')
    parts.append('<g class="cursor"></g></svg>')
    return "".join(parts)


def hover_of(chart: Chart, panel: Panel) -> dict[str, object]:
    """What the pointer tells of a panel: every value, and where it is drawn."""
    plane = plane_of(chart, panel)
    if chart.rows:
        return hover_of_rows(chart, panel, plane)
    every = sorted({x for line in panel.lines for x, *_ in values_of(line)})
    numbers = {x: number for number, x in enumerate(every)}
    names = dict(chart.x.ticks)
    places = {line.name: place for place, line in enumerate(legend_of(chart))}
    lines = [
        {
            **named(line, places[line.name]),
            "values": [
                [numbers[one.x], *plane.at(one.x + line.shift, one.y), *told(one)]
                for one in values_of(line)
            ],
        }
        for line in panel.lines
    ]
    at = [[plane.at(x, plane.y.low)[0], names.get(x, exact(x))] for x in every]
    return {
        "title": panel.title,
        "x": chart.x.label,
        "at": at,
        "lines": lines,
        "margins": [plane.frame.top, plane.frame.bottom],
    }


def _described(chart: Chart, panel: Panel) -> str:
    """The last value of every line in words, for readers who do not see the drawing."""
    said = []
    for line in panel.lines:
        *_, last = [None, *values_of(line)]
        if last is not None:
            value, within, _ = told(last)
            said.append(f"{line.name}: {value}" + (f" ({within})" if within else ""))
    axes = chart.x.label if chart.rows else f"{chart.y.label} by {chart.x.label}"
    return f"{axes}. Last values: {'; '.join(said)}."


def _axes(chart: Chart, panel: Panel, plane: Plane) -> Iterable[str]:
    frame = plane.frame
    bottom, right = frame.height - frame.bottom, frame.width - frame.right
    for value, said in plane.y.ticks:
        y = plane.at(plane.x.low, value)[1]
        yield f'<path class="grid" d="M{frame.left} {y}H{right}"/>'
        yield text(frame.left - 7, y, said, "tick end middle")
    for value, said in plane.x.ticks:
        x = plane.at(value, plane.y.low)[0]
        yield f'<path class="axis" d="M{x} {bottom}v4"/>'
        yield text(x, bottom + 8, said, "tick mid hang")
    yield f'<path class="axis" d="M{frame.left} {bottom}H{right}"/>'
    if frame is SMALL:
        yield text(2, 15, cut(panel.title, TITLE), "name")
        return
    up = ", ".join(filter(None, [panel.title, chart.y.label]))
    yield text(2, 15, up, "label")
    yield text(right, frame.height - 5, chart.x.label, "label end")


def _drawn(plane: Plane, line: Line) -> str:
    points = list(values_of(line))
    where = [plane.at(one.x + line.shift, one.y) for one in points]
    parts = [_seed(plane, x, y) for x, y in line.each]
    ends = [
        (one.x + line.shift, one.low, one.high)
        for one in points
        if one.low is not None and one.high is not None
    ]
    if line.mark == "none" and len(ends) > 1:
        under = [plane.at(x, low) for x, low, _ in ends]
        over = [plane.at(x, high) for x, _, high in reversed(ends)]
        parts.insert(0, f'<path class="band" d="{path([*under, *over])}Z"/>')
    elif ends:
        parts += [_whisker(plane.at(x, a), plane.at(x, b)) for x, a, b in ends]
    if line.joined and len(where) > 1:
        parts.append(f'<path class="line" d="{path(where)}"/>')
    if line.mark != "none" or len(where) == 1:
        kind = "ring" if line.mark == "hollow" else "dot"
        parts += [f'<circle class="{kind}" cx="{x}" cy="{y}" r="4"/>' for x, y in where]
    return "".join(parts)


def _seed(plane: Plane, x: Iterable[float], y: Iterable[float]) -> str:
    pairs = [plane.at(a, b) for a, b in zip(x, y, strict=True) if b == b]
    return f'<path class="seed" d="{path(pairs)}"/>' if len(pairs) > 1 else ""


def _whisker(low: tuple[float, float], high: tuple[float, float]) -> str:
    x, bottom = low
    top = high[1]
    caps = "".join(f"M{x - 4:g} {y:g}h8" for y in (top, bottom))
    return f'<path class="whisker" d="M{x:g} {bottom:g}V{top:g}{caps}"/>'
