"""The documentation site: nothing comes from other hosts, and every link leads somewhere."""

import csv
import importlib.util
import json
import logging
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
MARKDOWN = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Attributes whose address a browser loads by itself; a link (<a href>) is followed by people.
LOADED = ("src", "srcset", "data", "poster", "xlink:href", "background")


class Page(HTMLParser):
    """What a page of the site loads, links to and names."""

    def __init__(self, path):
        super().__init__()
        self.path, self.loads, self.links, self.ids = path, [], [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in LOADED or (name == "href" and tag not in ("a", "base")):
                self.loads.append(value)
            elif name == "href":
                self.links.append(value)
            elif name == "style":
                self.loads += urls(value)
            elif name == "id":
                self.ids.add(value)


def urls(css):
    """Return the addresses that a style sheet loads."""
    return [x.strip("'\" ") for x in re.findall(r"url\(([^)]*)\)|@import ([^;]*)", css) for x in x]


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def is_local(address):
    return urlsplit(address).scheme in ("", "data") and not address.startswith("//")


def test_pages_load_nothing_from_other_hosts(pages):
    loads = [(page.path, address) for page in pages.values() for address in page.loads]
    assert len(loads) > 100
    assert [x for x in loads if not is_local(x[1])] == []


def test_styles_and_scripts_load_nothing_from_other_hosts(site, pages):
    styles = [*site.rglob("*.css"), *site.rglob("*.svg"), *pages]
    assert all(is_local(address) for path in styles for address in urls(path.read_text()))
    for path in [*site.rglob("*.js"), *site.rglob("*.svg"), *pages]:
        hosts = r"unpkg|jsdelivr|cdnjs|googleapis|gstatic|//cdn\.|import\([\"']https?:"
        assert not re.search(hosts, path.read_text()), path


def test_every_link_of_the_site_leads_somewhere(site, pages):
    checked = 0
    for page in pages.values():
        for link in filter(is_local, page.links):
            parts = urlsplit(link)
            target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_relative_to(site), f"{page.path}: {link}"
            assert target.is_file(), f"{page.path}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, f"{page.path}: {link}"
            checked += 1
    assert checked > 1000


def test_every_link_between_markdown_files_leads_somewhere():
    """As a code host shows them: relative to the file."""
    checked = 0
    for page in MARKDOWN:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if is_local(link) and urlsplit(link).path:
                assert (page.parent / urlsplit(link).path).exists(), f"{page.name}: {link}"
                checked += 1
    assert checked > 60


def test_the_example_report_is_of_this_version():
    """It is made by `r2r2 report results --out docs/example_report`."""
    report, web = ROOT / "docs" / "example_report", ROOT / "src" / "r2r2" / "report" / "web"
    page = (report / "index.html").read_text()
    assert all((web / name).read_text() in page for name in ("page.css", "page.js"))
    assert json.loads((report / "report.json").read_text())["runs"] == ["results"]
    with (ROOT / "results" / "members.csv").open() as file:
        rows = list(csv.DictReader(file))
    for cell in {row["cell"] for row in rows}:  # one method on one task
        mean = statistics.mean(float(row["score"]) for row in rows if row["cell"] == cell)
        assert f"{mean:,.1f} ± " in page, cell


def test_formulas_and_diagrams_need_no_script(pages):
    text = "".join(path.read_text() for path in pages)
    assert "<math" in text
    assert 'class="arithmatex"' not in text
    assert 'class="mermaid"' not in text


def test_the_site_is_small_and_without_dates(site):
    files = [path for path in site.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 7e6
    assert not [x for x in files if x.suffix in (".gz", ".xml", ".map", ".pdf", ".csv", ".tex")]


@pytest.fixture
def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "tools" / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Files:
    """The files of a site, one of them excluded."""

    def get_file_from_path(self, path):
        excluded = SimpleNamespace(is_excluded=lambda: True)
        return SimpleNamespace(inclusion=excluded) if path.startswith("example/") else None


def show(hooks, source, written):
    """Return the text of a page of the site."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri=source))
    config = SimpleNamespace(docs_dir=str(ROOT / "docs"))
    return hooks.on_page_markdown(written, page, config, Files())


@pytest.mark.parametrize(
    ("source", "written", "shown"),
    [
        ("a.md", "[pool](../benchmarks/pool.py)", "pool (`benchmarks/pool.py`)"),
        ("a.md", "[`benchmarks/pool.py`](../benchmarks/pool.py#L3)", "`benchmarks/pool.py`"),
        ("b/a.md", "[log](../../CHANGELOG.md)", "[log](../changelog.md)"),
        ("b/a.md", "[data](../data.md#x)", None),
        ("changelog.md", "[data](docs/data.md#x)", "[data](data.md#x)"),
        ("changelog.md", "[pool](benchmarks/pool.py)", "pool (`benchmarks/pool.py`)"),
        ("a.md", "[host](https://example.org/x.md)", None),
        ("a.md", "[x](example/screenshots.py)", "x (`docs/example/screenshots.py`)"),
        ("a.md", "```\n[pool](../benchmarks/pool.py)\n```", None),
    ],
)
def test_links_to_files_that_are_not_published_become_names(hooks, source, written, shown):
    assert show(hooks, source, written) == (shown or written)


def test_a_link_to_a_missing_file_fails_a_strict_build(hooks, caplog):
    with caplog.at_level(logging.WARNING, "mkdocs"):
        show(hooks, "a.md", "[x](../no/such.py)")
    assert "a.md: link to '../no/such.py', which does not exist" in caplog.text
