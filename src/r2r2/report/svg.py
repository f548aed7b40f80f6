"""Charts as SVG for the page, with the values that it shows on hover.

Colors are classes of the page's style sheet, so that they follow the light or dark
theme. `hover_data` gives the values of a drawing in its own coordinates.
"""

import html
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from r2r2.report.charts import Axis, Chart, Line, Panel, Point
from r2r2.report.tables import format_number

TICK_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


class Scale(NamedTuple):
    """A mapping from values to positions between 0 and 1, with ticks."""

    low: float
    high: float
    log: bool
    ticks: tuple[tuple[float, str], ...]

    def position(self, value: float) -> float:
        """Return the position of a value; 0 is the start of the axis and 1 its end."""
        transform: Callable[[float], float] = math.log10 if self.log else float
        value = max(value, self.low) if self.log else value
        low, high = transform(self.low), transform(self.high)
        return (transform(value) - low) / (high - low)


def make_scale(axis: Axis, low: float, high: float, max_ticks: int = 6) -> Scale:
    """Return a scale from one round number to another that includes low and high.

    Example:
        >>> [text for _, text in make_scale(Axis("return"), 3.0, 97.0).ticks]
        ['0', '20', '40', '60', '80', '100']
    """
    if axis.ticks:
        return Scale(low, high, axis.log, axis.ticks)
    if axis.log:
        return _log_scale(low, high, max_ticks)
    if low == high:
        margin = abs(low) / 2 or 1.0
        low, high = low - margin, high + margin
    min_step = (high - low) / max(max_ticks - 1, 1)
    unit = 10.0 ** math.floor(math.log10(min_step))
    step = next(s * unit for s in TICK_STEPS if s * unit >= min_step * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple((n * step, tick_text(n * step)) for n in range(first, last + 1))
    return Scale(ticks[0][0], ticks[-1][0], False, ticks)


def tight_scale(axis: Axis, low: float, high: float, max_ticks: int = 6) -> Scale:
    """Return a scale that ends at low (or 0, if close) and high, with round ticks."""
    if not axis.log and not axis.ticks and 0 < low < high / 5:
        low = 0.0
    scale = make_scale(axis, low, high, max_ticks)
    if axis.ticks or low == high:
        return scale
    ticks = tuple(tick for tick in scale.ticks if low <= tick[0] <= high)
    return Scale(low, high, scale.log, ticks)


def _log_scale(low: float, high: float, max_ticks: int) -> Scale:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    powers = range(first, last + 1, max(1, math.ceil((last - first) / max_ticks)))
    ticks = tuple((10.0**power, _power_text(power)) for power in powers)
    return Scale(10.0**first, 10.0**last, True, ticks)


def _power_text(power: int) -> str:
    if power in (0, 1):
        return str(10**power)
    return "10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def tick_text(value: float) -> str:
    """Return a number as shown on an axis, such as '250k', '1.5M' or '0.25'."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return _with_minus_sign(f"{value / unit:.6g}{letter}")
    return _with_minus_sign(f"{value:.6g}")


def value_text(value: float, *others: float) -> str:
    """Return a number as shown on hover: five digits, or all digits of an integer.

    Other numbers that are shown with it get the same number of decimals.

    Example:
        >>> value_text(12345.678), value_text(0.0123456), value_text(500_000.0)
        ('12,346', '0.012346', '500,000')
        >>> value_text(976.28, 1125.02)
        '976.3'
    """
    numbers = [value, *others]
    largest = max(map(abs, numbers))
    if all(number == round(number) for number in numbers) and largest < 1e15:
        return _with_minus_sign(f"{value:,.0f}")
    if not 1e-4 <= largest < 1e15:
        return _with_minus_sign(f"{value:.5g}")
    decimals = max(0, 4 - math.floor(math.log10(largest)))
    return _with_minus_sign(f"{value:,.{decimals}f}")


def _with_minus_sign(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}") if text.startswith("-") else text


class Frame(NamedTuple):
    """The size of a drawing and the margins around its axes."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float


class PlotArea(NamedTuple):
    """A frame with its scales."""

    frame: Frame
    x: Scale
    y: Scale

    def to_pixels(self, x: float, y: float) -> tuple[float, float]:
        """Return the coordinates of a point in the drawing."""
        f = self.frame
        right = f.left + self.x.position(x) * (f.width - f.left - f.right)
        down = f.top + (1 - self.y.position(y)) * (f.height - f.top - f.bottom)
        return round(right, 1), round(down, 1)

    def row_top(self, row: int) -> float:
        """Return the upper end of a row in a chart of rows."""
        return self.frame.top + ROW_HEIGHT * row

    def row_center(self, row: int) -> float:
        """Return the vertical center of the bar in a row."""
        return self.row_top(row) + BAR_TOP + BAR_HEIGHT / 2


WIDE = Frame(680, 390, 64, 20, 34, 58)
SMALL = Frame(340, 230, 46, 12, 30, 26)  # one of several panels
ROWS = Frame(680, 0, 10, 84, 8, 56)  # as high as its rows require
SMALL_ROWS_WIDTH = 440.0
ROW_HEIGHT, BAR_HEIGHT = 56.0, 15.0
BAR_TOP = 24.0  # from the top of a row to its bar
ROWS_TITLE_HEIGHT = 26.0
MAX_LETTER_WIDTH = 9.0
SMALL_TITLE_LENGTH = 44  # letters


def plot_area(chart: Chart, panel: Panel) -> PlotArea:
    """Return the axes of a panel."""
    single = len(chart.panels) == 1
    if chart.rows:
        return _rows_area(chart, panel, single)
    panels = chart.panels if chart.y.shared else (panel,)
    bounds = [end for p in panels for line in p.lines for end in line.y_range]
    low, high = min(bounds, default=0.0), max(bounds, default=1.0)
    y = make_scale(chart.y, low, high, 7 if single else 5)
    left, right = _x_range(chart.panels if chart.x.ticks else (panel,))
    if chart.x.ticks:
        left, right = left - 0.5, right + 0.5
    x = tight_scale(chart.x, left, right, 8 if single else 6)
    return PlotArea(WIDE if single else SMALL, x, y)


def _rows_area(chart: Chart, panel: Panel, single: bool) -> PlotArea:
    top = ROWS.top + (ROWS_TITLE_HEIGHT if panel.title else 0)
    height = top + ROW_HEIGHT * len(panel.lines) + ROWS.bottom
    bounds = [0.0, *(end for line in panel.lines for end in line.y_range)]
    x = make_scale(chart.x, min(bounds), max(bounds), 6 if single else 5)
    width = ROWS.width if single else SMALL_ROWS_WIDTH
    frame = ROWS._replace(width=width, height=height, top=top)
    return PlotArea(frame, x, Scale(0.0, 1.0, False, ()))


def _x_range(panels: Sequence[Panel]) -> tuple[float, float]:
    values = [
        float(x)
        for panel in panels
        for line in panel.lines
        for part in (line.x, *(steps for steps, _ in line.seeds))
        for x in part
    ]
    return (min(values), max(values)) if values else (0.0, 1.0)


def draw_panel(chart: Chart, panel: Panel) -> str:
    """Return one panel of a chart as an SVG element, styled by the page."""
    area = plot_area(chart, panel)
    size = "wide" if len(chart.panels) == 1 else "small"
    parts = [
        f'<svg class="chart {size}{" rows" * chart.rows}" role="img" '
        f'viewBox="0 0 {area.frame.width:g} {area.frame.height:g}">',
        f"<title>{html.escape(panel.title or chart.title)}</title>",
        f"<desc>{html.escape(_description(chart, panel))}</desc>",
        *(_row_axes if chart.rows else _axes)(chart, panel, area),
    ]
    numbers = _line_numbers(chart)
    for row, line in enumerate(panel.lines):
        drawing = _draw_bar(area, line, row) if chart.rows else _draw_line(area, line)
        group = f'<g class="{style_classes(line)}" data-line="{numbers[line.name]}">'
        parts.append(f"{group}{drawing}</g>")
    parts.append('<g class="cursor"></g></svg>')
    return "".join(parts)


def hover_data(chart: Chart, panel: Panel) -> dict[str, object]:
    """Return every value of a panel and where it is drawn, for `page.js`.

    A value is [index into "at", x, y, value, interval, detail]; "at" has a position
    along the axis and its text.
    """
    area, numbers = plot_area(chart, panel), _line_numbers(chart)
    lines = []
    positions: dict[float, tuple[float, str]] = {}  # by x, or by row
    names = dict(chart.x.ticks)
    for row, line in enumerate(panel.lines):
        values: list[tuple[float, list[object]]] = []
        for point in line.points:
            key = float(row) if chart.rows else point.x
            if chart.rows:
                center = area.to_pixels(point.y, 0)[0], area.row_center(row)
                positions[key] = center[1], ""
            else:
                center = area.to_pixels(point.x + line.offset, point.y)
                left = area.to_pixels(point.x, area.y.low)[0]
                positions[key] = left, names.get(key, value_text(key))
            values.append((key, [*center, *_point_texts(point)]))
        lines.append((line, values))
    index = {key: number for number, key in enumerate(sorted(positions))}
    title = ", ".join(filter(None, [panel.title, chart.x.label]))
    return {
        "title": title if chart.rows else panel.title,
        "x": "" if chart.rows else chart.x.label,
        "at": [positions[key] for key in index],
        "lines": [
            {
                "line": numbers[line.name],
                "name": line.name,
                "style": style_classes(line),
                "hollow": line.marker == "hollow",
                "values": [[index[key], *rest] for key, rest in values],
            }
            for line, values in lines
        ],
        "rows": chart.rows,
        "margins": [area.frame.top, area.frame.bottom],
    }


def style_classes(line: Line) -> str:
    """Return the CSS classes of a line's color and dash."""
    return f"s{line.style.color} {line.style.dash}"


def truncate(text: str, length: int) -> str:
    """Return a text of at most so many letters, ending in an ellipsis if cut."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _line_numbers(chart: Chart) -> dict[str, int]:
    return {line.name: number for number, line in enumerate(chart.legend)}


def _point_texts(point: Point) -> tuple[str, str, str]:
    """Return a value, its interval and its detail as texts."""
    y, low, high, detail = point[1:]
    if low is None or high is None:
        return value_text(y), "", detail
    value, *bounds = (value_text(number, y, low, high) for number in (y, low, high))
    return value, " to ".join(bounds), detail


def _description(chart: Chart, panel: Panel) -> str:
    """Return the last value of every line in words, for screen readers."""
    values = []
    for line in panel.lines:
        if line.points:
            value, interval, _ = _point_texts(line.points[-1])
            values.append(f"{line.name}: {value}" + f" ({interval})" * bool(interval))
    axes = chart.x.label if chart.rows else f"{chart.y.label} by {chart.x.label}"
    return f"{axes}. Last values: {'; '.join(values)}."


def _axes(chart: Chart, panel: Panel, area: PlotArea) -> Iterable[str]:
    frame = area.frame
    bottom, right = frame.height - frame.bottom, frame.width - frame.right
    for value, label in area.y.ticks:
        y = area.to_pixels(area.x.low, value)[1]
        yield f'<path class="grid" d="M{frame.left} {y}H{right}"/>'
        yield _text(frame.left - 7, y, label, "tick end middle")
    for value, label in area.x.ticks:
        x = area.to_pixels(value, area.y.low)[0]
        yield f'<path class="axis" d="M{x} {bottom}v4"/>'
        yield _text(x, bottom + 8, label, "tick mid hang")
    yield f'<path class="axis" d="M{frame.left} {bottom}H{right}"/>'
    if frame is SMALL:
        yield _text(2, 15, truncate(panel.title, SMALL_TITLE_LENGTH), "name")
        return
    title = ", ".join(filter(None, [panel.title, chart.y.label]))
    yield _text(2, 15, title, "label")
    yield _text(right, frame.height - 5, chart.x.label, "label end")


def _row_axes(chart: Chart, panel: Panel, area: PlotArea) -> Iterable[str]:
    frame = area.frame
    if panel.title:
        title = truncate(panel.title, int(frame.width / MAX_LETTER_WIDTH))
        yield _text(frame.left + 2, 17, title, "name")
    bottom = frame.height - frame.bottom
    for value, label in area.x.ticks:
        x = area.to_pixels(value, 0)[0]
        yield f'<path class="grid" d="M{x} {frame.top}V{bottom}"/>'
        yield _text(x, bottom + 8, label, "tick mid hang")
    yield _text(frame.width - 4, frame.height - 5, chart.x.label, "label end")


def _draw_line(area: PlotArea, line: Line) -> str:
    points = line.points
    centers = [area.to_pixels(p.x + line.offset, p.y) for p in points]
    parts = [_draw_seed(area, x, y) for x, y in line.seeds]
    intervals = [
        (area.to_pixels(x, low), area.to_pixels(x, high))
        for x, low, high in ((p.x + line.offset, p.low, p.high) for p in points)
        if low is not None and high is not None
    ]
    if line.marker == "none" and len(intervals) > 1:
        lows, highs = zip(*intervals, strict=True)
        parts.insert(0, f'<path class="band" d="{_path([*lows, *highs[::-1]])}Z"/>')
    else:
        parts += [_whisker(*ends) for ends in intervals]
    if line.connected and len(centers) > 1:
        parts.append(f'<path class="line" d="{_path(centers)}"/>')
    if line.marker != "none" or len(centers) == 1:
        kind = "ring" if line.marker == "hollow" else "dot"
        circle = '<circle class="{}" cx="{}" cy="{}" r="4"/>'
        parts += [circle.format(kind, x, y) for x, y in centers]
    return "".join(parts)


def _draw_seed(area: PlotArea, x: Iterable[float], y: Iterable[float]) -> str:
    points = [
        area.to_pixels(*p) for p in zip(x, y, strict=True) if not math.isnan(p[1])
    ]
    return f'<path class="seed" d="{_path(points)}"/>' if len(points) > 1 else ""


def _whisker(low: tuple[float, float], high: tuple[float, float]) -> str:
    (x, bottom), (_, top) = low, high
    caps = "".join(f"M{x - 4:g} {y:g}h8" for y in (top, bottom))
    return f'<path class="whisker" d="M{x:g} {bottom:g}V{top:g}{caps}"/>'


def _draw_bar(area: PlotArea, line: Line, row: int) -> str:
    """Return one row: its name, and its bar with the interval and the value."""
    top, middle = area.row_top(row), area.row_center(row)
    zero = area.to_pixels(0.0, 0)[0]
    room = int((area.frame.width - zero) / MAX_LETTER_WIDTH)
    parts = [_text(zero + 2, top + 17, truncate(line.name, room), "row")]
    if not line.points:
        parts.append(_text(zero + 7, middle, line.detail_text, "tick middle"))
    for _, value, low, high, _ in line.points:
        end = outer = area.to_pixels(value, 0)[0]
        kind = "hollow" if line.marker == "hollow" else "bar"
        parts.append(
            f'<rect class="{kind}" x="{min(zero, end):g}" y="{top + BAR_TOP:g}" '
            f'width="{abs(end - zero):g}" height="{BAR_HEIGHT:g}" rx="1.5"/>'
        )
        if low is not None and high is not None:
            a, b = area.to_pixels(low, 0)[0], area.to_pixels(high, 0)[0]
            caps = "".join(f"M{x:g} {middle - 4:g}v8" for x in (a, b))
            outline = f"M{a:g} {middle:g}H{b:g}{caps}"
            parts.append(f'<path class="whisker over" d="{outline}"/>')
            outer = max(end, b)
        x = max(outer, zero) + 7
        parts.append(_text(x, middle, format_number(value), "tick middle"))
    return "".join(parts)


def _text(x: float, y: float, text: str, classes: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{classes}">{html.escape(text)}</text>'


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
