"""Parts of a report's page: tables, figures, and lists of what is missing.

All texts that come from runs pass through `escaped`, or `safe_json` for values.
"""

import html
import json
import re
from collections.abc import Iterable, Sequence

from r2r2.report.charts import Chart, Line, legend_of
from r2r2.report.drawing import draw_panel, hover_of
from r2r2.report.escapes import one_line
from r2r2.report.svg import style_of
from r2r2.report.tables import Entry, Table

LONG = 28  # letters, beyond which a text is set in lines


def figure_html(chart: Chart, number: int) -> str:
    """A figure with its legend, its panels, and the values that its pointer tells."""
    panels = "".join(
        f'<div class="panel">{draw_panel(chart, panel)}'
        f'<div class="hit" tabindex="0" role="group" aria-label="'
        f'{escaped(panel.title or chart.title)}: arrow keys tell its values"></div>'
        "</div>"
        for panel in chart.panels
    )
    values = safe_json([hover_of(chart, panel) for panel in chart.panels])
    few = {1: " one", 2: " two"}.get(len(chart.panels), " rows" if chart.rows else "")
    endings = ("svg", "png", "pdf", "csv")
    title = escaped(chart.title)
    if chart.notes:
        title += ' <span class="tag">partial</span>'
    caption = " ".join([chart.caption, *(f"{note}." for note in chart.notes)])
    return (
        f'<figure id="figure-{chart.name}">'
        f"{_head(f'Figure {number}.', title, 'figures', chart.name, endings)}"
        f"{_legend(chart)}{_axes(chart)}"
        f'<div class="panels{few}">{panels}</div>'
        f"<figcaption>{escaped(caption)}</figcaption>"
        f'<script type="application/json">{values}</script></figure>'
    )


def table_html(table: Table, number: int) -> str:
    """A table that scrolls in its own box, with its notes below."""
    marks = {note: place for place, note in enumerate(table.footnotes, start=1)}
    numeric = [_numeric(table, place) for place in range(len(table.header))]
    header = "".join(
        f'<th scope="col"{_class(["num"] if right else [])}>{escaped(name)}</th>'
        for name, right in zip(table.header, numeric, strict=True)
    )
    rows = "".join(f"<tr>{_row(table, row, numeric, marks)}</tr>" for row in table.rows)
    title, endings = escaped(table.title), ("csv", "md", "tex")
    return (
        f'<div class="sheet" id="table-{escaped(table.name)}">'
        f"{_head(f'Table {number}.', title, 'tables', table.name, endings)}"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table>'
        f"<thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"{_notes(table, marks)}</div>"
    )


def escaped(text: str) -> str:
    """Text that HTML shows as it is, also within quotes.

    Example:
        >>> escaped("<b>" + chr(27))
        '&lt;b&gt;?'
    """
    return html.escape(one_line(text))


def list_html(lines: Iterable[str]) -> str:
    """A list of texts.

    Example:
        >>> list_html(["a < b"])
        '<ul class="lacks"><li>a &lt; b</li></ul>'
    """
    return f'<ul class="lacks">{_items(lines)}</ul>'


def safe_json(value: object) -> str:
    r"""JSON that may stand within a script element, whatever its texts hold.

    Example:
        >>> print(safe_json("</script>&"))
        "\u003c/script\u003e\u0026"
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _head(
    number: str, title: str, folder: str, name: str, endings: Sequence[str]
) -> str:
    links = "".join(
        f'<a href="{folder}/{escaped(name)}.{ending}">{ending.upper()}</a>'
        for ending in endings
    )
    return (
        f'<div class="head"><h3><span class="number">{number}</span> {title}</h3>'
        f'<span class="links">{links}</span></div>'
    )


def _legend(chart: Chart) -> str:
    """Buttons that take a line away and bring it back; none where rows have names."""
    if chart.rows:
        return ""
    keys = "".join(
        f'<button type="button" class="button key" data-line="{place}" '
        f'aria-pressed="true">{_sample(line)}{escaped(line.name)}</button>'
        for place, line in enumerate(legend_of(chart))
    )
    return f'<div class="legend" role="group" aria-label="Lines">{keys}</div>'


def _sample(line: Line) -> str:
    stroke = '<path class="line" d="M0 6H30"/>' if line.joined else ""
    kind = {"none": "", "full": "dot", "hollow": "ring"}[line.mark]
    mark = f'<circle class="{kind}" cx="15" cy="6" r="4"/>' if kind else ""
    return f'<svg class="{style_of(line)}" aria-hidden="true">{stroke}{mark}</svg>'


def _axes(chart: Chart) -> str:
    if len(chart.panels) == 1 or chart.rows:
        return ""
    said = escaped(f"{chart.y.label} by {chart.x.label}")
    return f'<p class="axes">{said[:1].upper()}{said[1:]}</p>'


def _numeric(table: Table, place: int) -> bool:
    """Whether a column is of numbers, which belong to the right."""
    entries = [row[place] for row in table.rows]
    plain = all(re.fullmatch(r"-|[\d.,]+", entry.text) for entry in entries)
    return plain or any(entry.numbers for entry in entries)


def _row(
    table: Table,
    row: Sequence[Entry],
    numeric: Sequence[bool],
    marks: dict[str, int],
) -> str:
    cells = []
    for place, (entry, right) in enumerate(zip(row, numeric, strict=True)):
        text = escaped(entry.text)
        if entry.note:
            mark = marks[entry.note]
            where = escaped(f"note-{table.name}-{mark}")
            said = escaped(entry.note)
            text += f'<sup><a href="#{where}" title="{said}">{mark}</a></sup>'
        long = not right and len(entry.text) > LONG
        kinds = ["num"] * right + ["long"] * long + ["partial"] * bool(entry.note)
        tag, scope = ("td", "") if place else ("th", ' scope="row"')
        cells.append(f"<{tag}{scope}{_class(kinds)}>{text}</{tag}>")
    return "".join(cells)


def _notes(table: Table, marks: dict[str, int]) -> str:
    plain = "".join(f"<p>{escaped(note)}</p>" for note in table.notes)
    listed = "".join(
        f'<li id="{escaped(f"note-{table.name}-{mark}")}">{escaped(note)}</li>'
        for note, mark in marks.items()
    )
    if listed:
        listed = f"<ol>{listed}</ol>"
        said = "Numbers in italics lack something to be the paper's:"
        plain = f"<p>{said}</p>{listed}{plain}"
    return f'<div class="notes">{plain}</div>'


def _class(kinds: Sequence[str]) -> str:
    return f' class="{" ".join(kinds)}"' if kinds else ""


def _items(lines: Iterable[str]) -> str:
    return "".join(f"<li>{escaped(line)}</li>" for line in lines)
