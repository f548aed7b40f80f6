"""Charts as SVG for the page, with the values that it shows on hover.

Colors are classes of the page's style sheet, so that they follow the light or dark theme.
`hover_data` gives the values of a drawing in its own coordinates.
"""

import html
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from r2r2.report.charts import Axis, Chart, Line, Panel, Point
from r2r2.report.tables import format_number

PADDING = 0.04  # share of a scale, beyond its ends


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

    def with_room(self) -> "Scale":
        """Return a linear scale that goes beyond its ends, with the same ticks."""
        room = PADDING * (self.high - self.low)
        return self._replace(low=self.low - room, high=self.high + room)


def make_scale(axis: Axis, low: float, high: float, max_ticks: int = 6) -> Scale:
    """Return a scale from one round number to another that includes low and high."""
    if axis.ticks:
        return Scale(low, high, axis.log, axis.ticks)
    if axis.log:
        return _log_scale(low, high, max_ticks)
    if low == high:
        margin = abs(low) / 2 or 1.0
        low, high = low - margin, high + margin
    min_step = (high - low) / max(max_ticks - 1, 1)
    unit = 10.0 ** math.floor(math.log10(min_step))
    steps = (factor * unit for factor in (1.0, 2.0, 2.5, 5.0, 10.0))
    step = next(step for step in steps if step >= min_step * (1 - 1e-9))
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
    superscripts = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    powers = range(first, last + 1, max(1, math.ceil((last - first) / max_ticks)))
    texts = {power: f"10{str(power).translate(superscripts)}" for power in powers}
    texts |= {power: str(10**power) for power in (0, 1) if power in texts}
    ticks = tuple((10.0**power, text) for power, text in texts.items())
    return Scale(10.0**first, 10.0**last, True, ticks)


def tick_text(value: float) -> str:
    """Return a number as shown on an axis, such as '250k', '1.5M' or '0.25'."""
    units = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    unit, letter = next((u for u in units if abs(value) >= u[0]), (1.0, ""))
    return _with_minus_sign(f"{value / unit:.6g}{letter}")


def value_text(value: float, *others: float) -> str:
    """Return a number for hover: five digits, or all of an integer; `others` share its decimals."""
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

    def bar_center(self, row: float) -> float:
        """Return the vertical center of the bar in a row of a chart of rows."""
        return self.frame.top + ROW_HEIGHT * row + BAR_TOP + BAR_HEIGHT / 2


WIDE = Frame(680, 390, 64, 20, 34, 58)
SMALL = Frame(340, 230, 46, 12, 30, 26)  # one of several panels
ROWS = Frame(680, 0, 10, 84, 8, 56)  # as high as its rows require
SMALL_ROWS_WIDTH = 440.0
ROW_HEIGHT, BAR_HEIGHT = 56.0, 15.0
BAR_TOP = 24.0  # from the top of a row to its bar
ROWS_TITLE_HEIGHT = 26.0
MAX_LETTER_WIDTH = 9.0


def plot_area(chart: Chart, panel: Panel) -> PlotArea:
    """Return the axes of a panel."""
    single = len(chart.panels) == 1
    if chart.rows:
        return _rows_area(chart, panel, single)
    lines = chart.lines if chart.y.shared else panel.lines
    bounds = [end for line in lines for end in line.y_range]
    ends = min(bounds, default=0.0), max(bounds, default=1.0)
    y = make_scale(chart.y, *ends, 7 if single else 5)
    y = y.with_room() if chart.y.padded else y
    lines = chart.lines if chart.x.ticks else panel.lines
    parts = [x for line in lines for x in (line.x, *(steps for steps, _ in line.seeds))]
    values = [float(x) for part in parts for x in part]
    margin = 0.5 if chart.x.ticks else 0.0
    ends = min(values, default=0.0) - margin, max(values, default=1.0) + margin
    x = tight_scale(chart.x, *ends, 8 if single else 6)
    return PlotArea(WIDE if single else SMALL, x, y)


def _rows_area(chart: Chart, panel: Panel, single: bool) -> PlotArea:
    top = ROWS.top + (ROWS_TITLE_HEIGHT if panel.title else 0)
    height = top + ROW_HEIGHT * len(panel.lines) + ROWS.bottom
    bounds = [0.0, *(end for line in panel.lines for end in line.y_range)]
    x = make_scale(chart.x, min(bounds), max(bounds), 6 if single else 5)
    width = ROWS.width if single else SMALL_ROWS_WIDTH
    frame = ROWS._replace(width=width, height=height, top=top)
    return PlotArea(frame, x, Scale(0.0, 1.0, False, ()))


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

    A value is [index into "at", x, y, value, interval, detail]; "at" has positions with texts.
    """
    area, numbers = plot_area(chart, panel), _line_numbers(chart)
    ticks = dict(chart.x.ticks)
    lines = list(enumerate(panel.lines))
    keys = {row if chart.rows else p.x for row, line in lines for p in line.points}
    index = {key: number for number, key in enumerate(sorted(keys))}

    def position(key: float) -> tuple[float, str]:
        if chart.rows:
            return area.bar_center(key), ""
        return area.to_pixels(key, area.y.low)[0], ticks.get(key, value_text(key))

    def value(row: int, line: Line, point: Point) -> list[object]:
        key = row if chart.rows else point.x
        center = area.to_pixels(point.x + line.offset, point.y)
        if chart.rows:
            center = area.to_pixels(point.y, 0)[0], area.bar_center(row)
        return [index[key], *center, *_point_texts(point)]

    title = ", ".join(filter(None, [panel.title, chart.x.label]))
    return {
        "title": title if chart.rows else panel.title,
        "x": "" if chart.rows else chart.x.label,
        "at": [position(key) for key in index],
        "lines": [
            {
                "line": numbers[line.name],
                "name": line.name,
                "style": style_classes(line),
                "hollow": line.marker == "hollow",
                "values": [value(row, line, point) for point in line.points],
            }
            for row, line in lines
        ],
        "rows": chart.rows,
        "margins": [area.frame.top, area.frame.bottom],
    }


def style_classes(line: Line) -> str:
    """Return the CSS classes of a line's color and dash."""
    return f"s{line.style.color} {line.style.dash}"


def truncate(text: str, length: int) -> str:
    """Return a text cut to `length` characters, the last of which is then an ellipsis."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _line_numbers(chart: Chart) -> dict[str, int]:
    return {line.name: number for number, line in enumerate(chart.legend)}


def _point_texts(point: Point) -> tuple[str, str, str]:
    """Return a value, its interval and its detail as texts."""
    ends = point.interval or ()
    value, *bounds = (value_text(number, point.y, *ends) for number in (point.y, *ends))
    return value, " to ".join(bounds), point.detail


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
        yield _text(2, 15, truncate(panel.title, 44), "name")
        return
    yield _text(2, 15, ", ".join(filter(None, [panel.title, chart.y.label])), "label")
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
    points = [(point.x + line.offset, point) for point in line.points]
    centers = [area.to_pixels(x, point.y) for x, point in points]
    intervals = [
        [area.to_pixels(x, end) for end in point.interval] for x, point in points if point.interval
    ]
    parts = [
        f'<path class="seed" d="{_path(map(area.to_pixels, *seed))}"/>'
        for seed in line.seeds
        if len(seed[0]) > 1
    ]
    if line.marker == "none" and len(intervals) > 1:
        lows, highs = zip(*intervals, strict=True)
        parts.insert(0, f'<path class="band" d="{_path([*lows, *highs[::-1]])}Z"/>')
    else:
        for (x, bottom), (_, top) in intervals:
            caps = "".join(f"M{x - 4:g} {y:g}h8" for y in (top, bottom))
            parts.append(f'<path class="whisker" d="M{x:g} {bottom:g}V{top:g}{caps}"/>')
    if line.connected and len(centers) > 1:
        parts.append(f'<path class="line" d="{_path(centers)}"/>')
    if line.marker != "none" or len(centers) == 1:
        kind = "ring" if line.marker == "hollow" else "dot"
        circle = '<circle class="{}" cx="{}" cy="{}" r="4"/>'
        parts += [circle.format(kind, x, y) for x, y in centers]
    return "".join(parts)


def _draw_bar(area: PlotArea, line: Line, row: int) -> str:
    """Return one row: its name, and its bar with the interval and the value."""
    middle = area.bar_center(row)
    top = middle - BAR_HEIGHT / 2
    zero, _ = area.to_pixels(0.0, 0)
    room = int((area.frame.width - zero) / MAX_LETTER_WIDTH)
    parts = [_text(zero + 2, top + 17 - BAR_TOP, truncate(line.name, room), "row")]
    if not line.points:
        parts.append(_text(zero + 7, middle, line.detail_text, "tick middle"))
    for point in line.points:
        end, _ = area.to_pixels(point.y, 0)
        kind = "hollow" if line.marker == "hollow" else "bar"
        parts.append(
            f'<rect class="{kind}" x="{min(zero, end):g}" y="{top:g}" '
            f'width="{abs(end - zero):g}" height="{BAR_HEIGHT:g}" rx="1.5"/>'
        )
        outer = max(end, zero)
        if point.interval:
            low, high = (area.to_pixels(bound, 0)[0] for bound in point.interval)
            caps = "".join(f"M{x:g} {middle - 4:g}v8" for x in (low, high))
            parts.append(f'<path class="whisker over" d="M{low:g} {middle:g}H{high:g}{caps}"/>')
            outer = max(outer, high)
        parts.append(_text(outer + 7, middle, format_number(point.y), "tick middle"))
    return "".join(parts)


def _text(x: float, y: float, text: str, classes: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{classes}">{html.escape(text)}</text>'


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
