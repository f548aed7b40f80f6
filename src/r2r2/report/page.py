"""The report as one self-contained HTML page."""

import base64
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from string import Template
from typing import NamedTuple

from r2r2.report.charts import COLORS, DARK_COLORS, Chart, NoteKind
from r2r2.report.comparison_tables import compares_two
from r2r2.report.figures import ChartSet
from r2r2.report.score_tables import paper_key
from r2r2.report.study import Study
from r2r2.report.svg import draw_panel, hover_data, style_classes
from r2r2.report.tables import Entry, Table, printable
from r2r2.stats import paper
from r2r2.storage.files import atomic_write

FILE = "index.html"
WEB = Path(__file__).parent / "web"
SOURCE = "run folders and result files"
WRAP_LENGTH = 28  # letters; longer texts in tables are wrapped
VERSIONS = ("r2r2", "python", "jax", "numpy", "gymnasium", "mujoco", "dm_control")
# Tables with their own section; all others share one.
SUMMARY_TABLE, RUNS_TABLE, PAIRS_TABLE = "main", "runs", "pairs"
SHORTFALLS_TABLE = "lacks"
MISSING_TABLES = ("planned", SHORTFALLS_TABLE, "paper_cells")
# The light and the dark color of every CSS variable of the page.
THEME = {
    "ground": ("#ffffff", "#111418"),
    "raised": ("#f7f8fa", "#191d23"),
    "ink": ("#16191d", "#e9ecef"),
    "soft": ("#454c55", "#b9c0c9"),
    "faint": ("#626a74", "#98a1ac"),
    "rule": ("#dfe3e8", "#2d343d"),
    "accent": ("#0b5cad", "#7db8f2"),
    "warn": ("#c77700", "#d9973a"),
    "warn-ink": ("#8a5200", "#eab96d"),
    "warn-ground": ("#fff6e5", "#2a2113"),
    **{f"c{n}": pair for n, pair in enumerate(zip(COLORS, DARK_COLORS, strict=True))},
}


class Section(NamedTuple):
    """One section of a page, as HTML."""

    name: str  # its anchor
    title: str
    content: str
    links: str = ""  # to its parts, in the table of contents


def write_page(study: Study, tables: Sequence[Table], chart_set: ChartSet, folder: Path) -> Path:
    """Write `index.html`, which links to `tables/` and `figures/`; return its path."""
    path = folder / FILE
    atomic_write(path, page_html(study, tables, chart_set))
    return path


def page_html(study: Study, tables: Sequence[Table], chart_set: ChartSet) -> str:
    """Return the page of a study; names of runs and files never become markup."""
    agents = list(dict.fromkeys(method.agent for method in study.methods))
    title = f"{_names(agents, 'agents')} on {_names(study.tasks, 'tasks')}"
    above = _banner(study), _facts(study)
    return fill_page(title, introduction(study), above, _sections(study, tables, chart_set))


def fill_page(
    title: str, lede: str, above: tuple[str, str], sections: Sequence[Section], source: str = SOURCE
) -> str:
    """Return a page with its style and script, and a table of contents.

    Args:
        title: of the page, as plain text.
        lede: the sentences below it, as plain text.
        above: a banner and a list of facts, as HTML.
        sections: those without content are left out.
        source: what the page was created from, for its footer.
    """
    template, css, script = (
        (WEB / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")
    )
    style = f"{_theme_css()}\n{css}"
    shown = [section for section in sections if section.content]
    contents = "".join(
        _link(s.name, s.title, f"<ol>{s.links}</ol>" if s.links else "") for s in shown
    )
    return Template(template).substitute(
        # Allow only the page's own style and script.
        policy=(
            f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        ),
        generator=f"r2r2 {metadata.version('r2r2')}",
        title=escape(title),
        style=style,
        lede=escape(lede),
        banner=above[0],
        facts=above[1],
        contents=f"<ol>{contents}</ol>",
        sections="\n".join(
            f'<section id="{s.name}"><h2>{s.title}</h2>{s.content}</section>' for s in shown
        ),
        source=escape(source),
        script=script,
    )


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def escape(text: str) -> str:
    """Return text that HTML shows literally, also within quotes."""
    return html.escape(printable(text))


def _names(names: Sequence[str], noun: str) -> str:
    return _join(names) if len(names) <= 4 else f"{len(names)} {noun}"


def _join(names: Sequence[str], word: str = "and") -> str:
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last


def introduction(study: Study) -> str:
    """Return the sentences below the title."""
    utds = sorted({m.utd for m in study.methods if m.utd is not None})
    at = f" at UTD {_join([str(utd) for utd in utds])}" if utds else ""
    published = any(paper_key(cell) in paper.raw_scores() for cell in study.cells)
    beside = ", next to the paper's numbers" if published else ""
    return (
        f"Scores, learning curves and diagnostics{at}, with 95 % intervals{beside}. "
        "Hover over a figure, touch it or use the arrow keys on it for exact values."
    )


def _banner(study: Study) -> str:
    """Return the warnings about damaged files, and about results that are not the paper's."""
    damage = ""
    if study.damage:
        texts = "".join(f"<p>{escape(text)}</p>" for text in study.damage)
        title = "Files of these runs are damaged."
        damage = f'<div class="banner" role="note"><strong>{title}</strong>{texts}</div>'
    partial = [cell for cell in study.cells if not cell.complete]
    if not partial:
        return damage
    which = "All" if len(partial) == len(study.cells) else f"{len(partial)} of {len(study.cells)}"
    what = "have a note"
    if any(cell.in_paper for cell in partial):
        what = "are partial or scaled down: not a reproduction of the paper"
    reason = "Notes and the section “What is missing” say what each result lacks."
    if study.shared_overrides:
        reason = f"All runs: {'; '.join(map(str, study.shared_overrides))}. {reason}"
    if study.abnormal:
        marked = "; ".join(f"{label} ({why})" for label, why in study.abnormal.items())
        reason = f"{NoteKind.ABNORMAL.value}: {marked}. {reason}"
    return (
        f'{damage}<div class="banner" role="note"><strong>{which} results {what}.'
        f"</strong><p>{escape(reason)}</p></div>"
    )


def _facts(study: Study) -> str:
    """Return the numbers of runs, seeds and steps, and the software versions."""
    seeds = [len(cell.seeds) for cell in study.cells]
    steps = [seed.env_steps for cell in study.cells for seed in cell.seeds]
    updates = [member.updates for run in study.runs for member in run.members]
    few, many = min(seeds), max(seeds)
    numbers = {
        "runs and files": ", ".join(_sources(study)),
        "methods": str(len(study.methods)),
        "tasks": str(len(study.tasks)),
        "seeds per cell": str(many) if few == many else f"{few} to {many}",
        "most environment steps": f"{max(steps, default=0):,}",
        "most updates of a member": f"{max(updates):,}" if updates else "",
    }
    return "".join(
        f"<div{attribute}><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for attribute, group in (("", numbers), (' class="long"', _software(study)))
        for name, value in group.items()
        if value
    )


def _sources(study: Study) -> list[str]:
    """Return the number of runs of each status, and of files, which may have several methods."""
    statuses = Counter(run.status for run in study.runs if run.status != "file")
    files = len({run.path for run in study.runs if run.status == "file"})
    sources = [f"{n} {status}" for status, n in statuses.items()]
    return sources + ([f"{files} file{'s' if files > 1 else ''}"] if files else [])


def _software(study: Study) -> dict[str, str]:
    """Return the commits, devices and versions of the runs, empty where unknown."""
    values: dict[str, dict[str, None]] = {}
    for run in study.runs:
        for name, value in run.versions.items():
            values.setdefault(name, {})[value] = None
    texts = {name: _join(list(of_name), "or") for name, of_name in values.items()}
    versions = ", ".join(f"{name} {texts[name]}" for name in VERSIONS if name in texts)
    return {**{k: texts.get(k, "") for k in ("commit", "device")}, "versions": versions}


def _sections(study: Study, tables: Sequence[Table], chart_set: ChartSet) -> list[Section]:
    """Return the sections of a report; some may have no content."""
    order = {**dict.fromkeys(MISSING_TABLES, 1), RUNS_TABLE: 2}  # numbered in the order of sections
    numbered = enumerate(sorted(tables, key=lambda t: order.get(t.name, 0)), start=1)
    shown = {table.name: table_html(table, number) for number, table in numbered}
    # Of two methods the comparison, of more the scores, is what a reader looks for.
    summary = [PAIRS_TABLE] if compares_two(study) else []
    summary = [name for name in (*summary, SUMMARY_TABLE) if name in shown]
    special = *summary, RUNS_TABLE, *MISSING_TABLES
    others = [table for table in tables if table.name not in special]
    charts = chart_set.charts
    figures = "".join(figure_html(chart, n) for n, chart in enumerate(charts, start=1))
    figure_links = "".join(_link(f"figure-{c.name}", c.title) for c in charts)
    table_links = "".join(_link(f"table-{t.name}", t.title) for t in others)
    missing = _missing_html(study, shown, chart_set)
    return [
        Section("summary", "Summary", "".join(shown[name] for name in summary)),
        Section("figures", "Figures", figures, figure_links),
        Section("tables", "Tables", "".join(shown[t.name] for t in others), table_links),
        Section("missing", "What is missing", missing),
        Section("runs", "Runs and files", shown.get(RUNS_TABLE, "")),
    ]


def _link(target: str, title: str, inner: str = "") -> str:
    """Return an item of the table of contents."""
    return f'<li><a href="#{escape(target)}">{escape(title)}</a>{inner}</li>'


def _missing_html(study: Study, shown: Mapping[str, str], chart_set: ChartSet) -> str:
    """Return the section on what is missing, from the HTML of all tables by name."""
    tables = ""
    for name in MISSING_TABLES:
        partial = any(cell.in_paper and not cell.complete for cell in study.cells)
        if name == SHORTFALLS_TABLE and name in shown and partial:
            tables += (
                "<p>These results differ from the paper's in settings, seeds or steps, and "
                "are not a reproduction.</p>"
            )
        tables += shown.get(name, "")
    if not tables and not chart_set.missing:
        why = ": every cell has the paper's settings, seeds and steps" if study.in_paper else ""
        return f"<p>Nothing{why}.</p>"
    texts = [f"{title}: {reason}." for title, reason in chart_set.missing]
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    summary = f"<summary>Figures that these runs have no data for ({len(texts)})</summary>"
    figures = f'<details class="notes">{summary}<ul class="lacks">{items}</ul></details>'
    return f"{tables}{figures}" if items else tables


def figure_html(chart: Chart, number: int) -> str:
    """Return a figure with its legend, its panels and the values shown on hover."""
    panels = "".join(
        f'<div class="panel">{draw_panel(chart, panel)}'
        f'<div class="hit" tabindex="0" role="group" aria-label="'
        f'{escape(panel.title or chart.title)}: arrow keys show values"></div></div>'
        for panel in chart.panels
    )
    data = [hover_data(chart, panel) for panel in chart.panels]
    values = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # so that no value ends the script element
        values = values.replace(character, f"\\u{ord(character):04x}")
    size = {1: " one", 2: " two"}.get(len(chart.panels), " rows" if chart.rows else "")
    partial = any(note.kind is NoteKind.PARTIAL for note in chart.notes)
    title = escape(chart.title) + (' <span class="tag">partial</span>' if partial else "")
    caption = " ".join([chart.caption, *(f"{note.text}." for note in chart.notes)])
    files = f"figures/{chart.name}", ("svg", "png", "pdf", "csv")
    heading = _heading(f"Figure {number}.", title, *files)
    axes = ""
    if len(chart.panels) > 1 and not chart.rows:
        text = escape(f"{chart.y.label} by {chart.x.label}")
        axes = f'<p class="axes">{text[:1].upper()}{text[1:]}</p>'
    return (
        f'<figure id="figure-{chart.name}">'
        f"{heading}{_legend(chart)}{axes}"
        f'<div class="panels{size}">{panels}</div>'
        f"<figcaption>{escape(caption)}</figcaption>"
        f'<script type="application/json">{values}</script></figure>'
    )


def _heading(number: str, title: str, path: str, extensions: Sequence[str]) -> str:
    links = "".join(f'<a href="{escape(path)}.{e}">{e.upper()}</a>' for e in extensions)
    return (
        f'<div class="head"><h3><span class="number">{number}</span> {title}</h3>'
        f'<span class="links">{links}</span></div>'
    )


def _legend(chart: Chart) -> str:
    """Return buttons that hide and show lines; nothing for bars, which have names."""
    if chart.rows:
        return ""
    buttons = []
    for number, line in enumerate(chart.legend):
        stroke = '<path class="line" d="M0 6H30"/>' if line.connected else ""
        kind = {"none": "", "filled": "dot", "hollow": "ring"}[line.marker]
        marker = f'<circle class="{kind}" cx="15" cy="6" r="4"/>' if kind else ""
        buttons.append(
            f'<button type="button" class="button key" data-line="{number}" '
            f'aria-pressed="true"><svg class="{style_classes(line)}" '
            f'aria-hidden="true">{stroke}{marker}</svg>{escape(line.name)}</button>'
        )
    return f'<div class="legend" role="group" aria-label="Lines">{"".join(buttons)}</div>'


def table_html(table: Table, number: int) -> str:
    """Return a table that scrolls in its own box, with a line below that opens its notes."""
    name, title = escape(table.name), escape(table.title)
    ids = {note: f"note-{name}-{n}" for n, note in enumerate(table.footnotes, start=1)}
    numeric = [  # aligned to the right
        any(e.numbers for e in column) or all(re.fullmatch(r"-|[\d.,]+", e.text) for e in column)
        for _, column in table.columns
    ]
    header = "".join(
        f'<th scope="col"{_class(num=right)}>{escape(name)}</th>'
        for name, right in zip(table.header, numeric, strict=True)
    )
    rows = "".join(f"<tr>{_row_html(row, numeric, ids)}</tr>" for row in table.rows)
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    if ids:
        items = "".join(f'<li id="{i}">{escape(n)}</li>' for n, i in ids.items())
        notes = f"<ol>{items}</ol>{notes}"
    caveats = f" ({len(ids)} on numbers in italics)" if ids else ""
    if notes:
        summary = f"<summary>Notes{caveats}</summary>"
        notes = f'<details class="notes">{summary}{notes}</details>'
    heading = f"Table {number}.", title, f"tables/{table.name}", ("csv", "md", "tex")
    return (
        f'<div class="sheet" id="table-{name}">{_heading(*heading)}'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table>'
        f"<thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"{notes}</div>"
    )


def _row_html(row: Sequence[Entry], numeric: Sequence[bool], ids: Mapping[str, str]) -> str:
    cells = []
    for index, (entry, right) in enumerate(zip(row, numeric, strict=True)):
        text = escape(entry.text)
        if entry.note:
            target, title = ids[entry.note], escape(entry.note)
            mark = target.rpartition("-")[2]
            text += f'<sup><a href="#{target}" title="{title}">{mark}</a></sup>'
        long = not right and len(entry.text) > WRAP_LENGTH
        classes = _class(num=right, long=long, partial=bool(entry.note))
        tag, scope = ("td", "") if index else ("th", ' scope="row"')
        cells.append(f"<{tag}{scope}{classes}>{text}</{tag}>")
    return "".join(cells)


def _class(**flags: bool) -> str:
    names = [name for name, applies in flags.items() if applies]
    return f' class="{" ".join(names)}"' if names else ""


def _theme_css() -> str:
    """Return a variable for each color: of the system's scheme or `data-theme`; print is light."""
    light, dark = (
        f"color-scheme: {scheme}; "
        + " ".join(f"--{name}: {pair[index]};" for name, pair in THEME.items())
        for index, scheme in enumerate(("light", "dark"))
    )
    rules = [
        f":root {{ {light} }}",
        *(f".s{n} {{ --c: var(--c{n}); }}" for n in range(len(COLORS))),
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {dark} }} }}",
        f":root[data-theme=dark] {{ {dark} }}",
        f"@media print {{ :root:root:root {{ {light} }} }}",
    ]
    return "\n".join(rules)
