"""A report as one page that needs nothing but itself."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from string import Template
from typing import NamedTuple

from r2r2.record.files import write_whole
from r2r2.report.gallery import Gallery
from r2r2.report.page_head import banner, facts, lede, title_of
from r2r2.report.page_parts import escaped, figure_html, list_html, table_html
from r2r2.report.study import Study
from r2r2.report.tables import Table
from r2r2.report.theme import theme_css

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
    write_whole(path, page_html(study, tables, gallery))
    return path


def page_html(study: Study, tables: Sequence[Table], gallery: Gallery) -> str:
    """A study as a page; what runs and files are called never becomes markup.

    Example:
        >>> from r2r2.record.evaluations import Row
        >>> from r2r2.report.scores import Method, Results
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
