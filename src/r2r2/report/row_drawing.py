"""Charts of rows as SVG: for every value a line of text and a bar below it.

So laid out, long names have room on a narrow screen too.
"""

from collections.abc import Iterable

from r2r2.report.charts import Chart, Line, Panel, values_of
from r2r2.report.summary import rounded
from r2r2.report.svg import Frame, Plane, cut, named, text, told
from r2r2.report.ticks import Scale, scale_of

ROW, BAR = 56.0, 15.0  # heights
TITLE = 26.0  # above all rows, where there is one
LETTER = 9.0  # wide, at most
BELOW = 24.0  # from the top of a row to its bar
FRAME = Frame(680, 0, 10, 84, 8, 56)
NARROW = 440.0  # where there are several panels


def plane_of_rows(chart: Chart, panel: Panel) -> Plane:
    """The axes of a chart of rows, which is as high as it needs to be."""
    top = FRAME.top + (TITLE if panel.title else 0)
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
