"""A report as one page that needs nothing but itself."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from string import Template
from typing import NamedTuple

from r2r2.report.all_charts import Gallery
from r2r2.report.charts import Chart, Line, legend_of
from r2r2.report.comparison_tables import which_of
from r2r2.report.study import Study
from r2r2.report.svg import style_of
from r2r2.report.svg_charts import draw_panel, hover_of
from r2r2.report.tables import Entry, Table, one_line
from r2r2.report.theme import theme_css
from r2r2.stats import paper
from r2r2.storage.files import atomic_write

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


FEW = 4  # names; of more their number is told
PLACES: tuple[str, ...] = ("commit", "device")
VERSIONS = ("r2r2", "python", "jax", "numpy", "gymnasium", "mujoco", "dm_control")


def title_of(study: Study) -> str:
    """What is compared on what, in one line."""
    agents = list(dict.fromkeys(method.agent for method in study.methods))
    return f"{_listed(agents, 'agents')} on {_listed(study.tasks, 'tasks')}"


def lede(study: Study) -> str:
    """What a reader is to know first."""
    utds = sorted({m.utd for m in study.methods if m.utd is not None})
    at = f" at UTD {_joined([str(utd) for utd in utds])}" if utds else ""
    theirs = any(which_of(cell) in paper.raw_scores() for cell in study.cells)
    beside = " and the paper's own numbers beside them" if theirs else ""
    return (
        f"Scores, learning curves and diagnostics{at}, with 95 % intervals{beside}. "
        "Point at a figure, touch it, or use the arrow keys on it for exact values."
    )


def banner(study: Study) -> str:
    """That the results are not the paper's, where that is so, and why."""
    lacking = [cell for cell in study.cells if not cell.complete]
    if not lacking:
        return ""
    cells = len(study.cells)
    which = f"{len(lacking)} of {cells}" if len(lacking) < cells else "All"
    said = (
        f"{which} results are partial or scaled down: not a reproduction of the paper."
    )
    why = "What each lacks stands with it, and below under “What is missing”."
    if study.shared:
        why = f"All runs: {'; '.join(study.shared)}. {why}"
    return (
        f'<div class="banner" role="note"><strong>{said}</strong>'
        f"<p>{escaped(why)}</p></div>"
    )


def facts(study: Study) -> str:
    """Runs, seeds and steps in numbers, and what the runs were made with."""
    seeds = [len(cell.seeds) for cell in study.cells]
    steps = [seed.env_steps for cell in study.cells for seed in cell.seeds]
    updates = [member.updates for run in study.runs for member in run.members]
    few, many = min(seeds), max(seeds)
    found = {
        "runs and files": _statuses(study),
        "methods": str(len(study.methods)),
        "tasks": str(len(study.tasks)),
        "seeds per cell": str(many) if few == many else f"{few} to {many}",
        "environment steps, at most": f"{max(steps, default=0):,}",
    }
    if updates:
        found["updates of a member, at most"] = f"{max(updates):,}"
    long = _made_with(study)
    return "".join(
        f"<div{kind}><dt>{escaped(name)}</dt><dd>{escaped(said)}</dd></div>"
        for kind, group in (("", found), (' class="long"', long))
        for name, said in group.items()
    )


def _statuses(study: Study) -> str:
    counts: dict[str, int] = {}
    for run in study.runs:
        counts[run.status] = counts.get(run.status, 0) + 1
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _made_with(study: Study) -> dict[str, str]:
    """Commits, devices and versions, each that occurs among the runs."""
    values: dict[str, list[str]] = {}
    for run in study.runs:
        for name, value in run.versions.items():
            known = values.setdefault(name, [])
            if value not in known:
                known.append(value)
    said = {name: _joined(found, "or") for name, found in values.items()}
    found = {name: said[name] for name in PLACES if name in said}
    versions = [f"{name} {said[name]}" for name in VERSIONS if name in said]
    return {**found, **({"versions": ", ".join(versions)} if versions else {})}


def _listed(names: Sequence[str], what: str) -> str:
    return _joined(names) if len(names) <= FEW else f"{len(names)} {what}"


def _joined(names: Sequence[str], word: str = "and") -> str:
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last


FILE = "index.html"
WEB = Path(__file__).parent / "web"

# Tables with a section of their own; all others are in one.
FIRST, READ, LACKS = "main", "runs", "lacks"


class Part(NamedTuple):
    """A section of the page, and what the contents name in it."""

    name: str
    title: str
    inside: str
    entries: Sequence[tuple[str, str]] = ()  # where and what


def write_page(
    study: Study, tables: Sequence[Table], gallery: Gallery, folder: Path
) -> Path:
    """Writes a study as `index.html`, which loads nothing and links to its files.

    Args:
        study: what it is about.
        tables: to show, the files of which are in `tables/`.
        gallery: the figures to show, the files of which are in `figures/`.
        folder: where the page goes.

    Returns:
        The page.
    """
    path = folder / FILE
    atomic_write(path, page_html(study, tables, gallery))
    return path


def page_html(study: Study, tables: Sequence[Table], gallery: Gallery) -> str:
    """A study as a page; what runs and files are called never becomes markup.

    Example:
        >>> from r2r2.storage.evaluations import Row
        >>> from r2r2.stats.scores import Method, Results
        >>> from r2r2.report.study import RunData, study_of
        >>> results = Results(Method("<b>", 1), [Row("x", "a", 0, "return", 1, 2.0)])
        >>> study = study_of([RunData("r", "runs/r", "file", results)])
        >>> page = page_html(study, [], Gallery((), ()))
        >>> "<b>" in page, "&lt;b&gt;" in page
        (False, True)
    """
    style = f"{theme_css()}\n{_web('page.css')}"
    script = _web("page.js")
    parts = _parts(tables, gallery)
    return Template(_web("page.html")).substitute(
        policy=_policy(style, script),
        generator=f"r2r2 {metadata.version('r2r2')}",
        title=escaped(title_of(study)),
        style=style,
        lede=escaped(lede(study)),
        banner=banner(study),
        facts=facts(study),
        contents=_contents(parts),
        sections="\n".join(map(_section, parts)),
        script=script,
    )


def _parts(tables: Sequence[Table], gallery: Gallery) -> list[Part]:
    later = {LACKS: 1, READ: 2}  # in the order of their sections
    order = sorted(tables, key=lambda table: later.get(table.name, 0))
    shown = {t.name: table_html(t, place) for place, t in enumerate(order, start=1)}
    figures = [
        figure_html(chart, place) for place, chart in enumerate(gallery.charts, start=1)
    ]
    drawn = [(f"figure-{chart.name}", chart.title) for chart in gallery.charts]
    rest = [table for table in tables if table.name not in (FIRST, READ, LACKS)]
    listed = [(f"table-{table.name}", table.title) for table in rest]
    inside = "".join(shown[table.name] for table in rest)
    parts = [
        Part("summary", "Summary", shown.get(FIRST, "")),
        Part("figures", "Figures", "".join(figures), drawn),
        Part("tables", "Tables", inside, listed),
        Part("missing", "What is missing", _missing(shown.get(LACKS, ""), gallery)),
        Part("runs", "What was read", shown.get(READ, "")),
    ]
    return [part for part in parts if part.inside]


def _missing(lacks: str, gallery: Gallery) -> str:
    if not lacks and not gallery.absent:
        return "<p>Nothing: every cell has all that the paper's has.</p>"
    lines = [f"{title}: {why}." for title, why in gallery.absent]
    figures = f"<h3>Figures that are not here</h3>{list_html(lines)}" if lines else ""
    said = (
        "A number that lacks something is shown with what it lacks, and is no "
        "reproduction of the paper's."
    )
    return (f"<p>{said}</p>{lacks}" if lacks else "") + figures


def _section(part: Part) -> str:
    return (
        f'<section id="{part.name}"><h2>{escaped(part.title)}</h2>'
        f"{part.inside}</section>"
    )


def _contents(parts: Iterable[Part]) -> str:
    items = []
    for part in parts:
        inner = "".join(f"<li>{_link(*entry)}</li>" for entry in part.entries)
        below = f"<ol>{inner}</ol>" if inner else ""
        items.append(f"<li>{_link(part.name, part.title)}{below}</li>")
    return f"<ol>{''.join(items)}</ol>"


def _link(name: str, title: str) -> str:
    return f'<a href="#{escaped(name)}">{escaped(title)}</a>'


def _policy(style: str, script: str) -> str:
    """What the page may load and run: its own style and script, and nothing else."""
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _web(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")
