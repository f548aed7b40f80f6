import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from drawn import EVIL, drawn_run, drawn_study

from r2r2.report.all_charts import Gallery, gallery_of
from r2r2.report.all_tables import tables_of
from r2r2.report.charts import values_of
from r2r2.report.page import lede, page_html, write_page
from r2r2.report.study import study_of
from r2r2.stats.scores import Method

VOID = {"meta", "link", "path", "circle", "rect", "br"}


class Page(HTMLParser):
    """Elements with their attributes and texts, refusing what does not nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag):
        return [attrs for name, attrs in self.found if name == tag]

    def inside(self, tag):
        return [data for name, data in self.texts if name == tag]


def page_of(study):
    return page_html(study, tables_of(study), gallery_of(study))


@pytest.fixture(scope="module")
def study():
    return drawn_study(("td7", "td7+r2r2"), ("Hopper-v5",), (1, 20), seeds=2, points=4)


@pytest.fixture(scope="module")
def text(study):
    return page_of(study)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


@pytest.fixture(scope="module")
def evil_text():
    """A page of runs whose every name is an attack."""
    run = drawn_run(Method(EVIL, 1, (EVIL,)), (EVIL,), 2, 3, EVIL)
    more = drawn_run(Method("td7", 1, (EVIL,)), (EVIL,), 2, 3, "b")
    members = tuple(m._replace(name=EVIL, stopped=EVIL) for m in run.members)
    bad = run._replace(members=members, versions={"commit": EVIL, "device": EVIL})
    return page_of(study_of([bad, more]))


def test_the_page_nests_and_has_every_section_and_figure(page, study):
    ids = [attrs["id"] for _, attrs in page.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    wanted = {"summary", "figures", "tables", "missing", "runs"}
    wanted |= {f"figure-{chart.name}" for chart in gallery_of(study).charts}
    wanted |= {f"table-{table.name}" for table in tables_of(study)}
    assert wanted <= set(ids)
    links = {a["href"][1:] for a in page.all("a") if a["href"].startswith("#")}
    assert links <= set(ids)


def test_tables_and_figures_are_numbered_as_they_come(text):
    for kind in ("Table", "Figure"):
        numbers = [int(number) for number in re.findall(rf">{kind} (\d+)\.<", text)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > 5


def test_nothing_is_loaded_from_elsewhere(text, evil_text):
    for page in (text, evil_text):
        assert "http:" not in page
        assert "https:" not in page
        assert "@import" not in page
        assert "url(" not in page
        parsed = Page(page)
        assert not {"img", "iframe", "object", "embed"} & {t for t, _ in parsed.found}
        assert not [a for _, a in parsed.found if "src" in a or "style" in a]
        assert not [a for _, attrs in parsed.found for a in attrs if a[:2] == "on"]
        assert parsed.all("link") == [{"rel": "icon", "href": "data:,"}]


def test_downloads_are_beside_the_page(page, study):
    links = {a["href"] for a in page.all("a") if not a["href"].startswith("#")}
    figures = {
        f"figures/{chart.name}.{end}"
        for chart in gallery_of(study).charts
        for end in ("svg", "png", "pdf", "csv")
    }
    tables = {
        f"tables/{table.name}.{end}"
        for table in tables_of(study)
        for end in ("csv", "md", "tex")
    }
    assert links == figures | tables


def test_the_policy_allows_the_pages_own_style_and_script_alone(text):
    policy = re.search(r'Security-Policy" content="([^"]*)"', text)[1]
    for kind, tag in (("style-src", "style"), ("script-src", "script")):
        inside = text.split(f"<{tag}>")[1].split(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_every_point_of_every_figure_is_told(page, study):
    charts = gallery_of(study).charts
    told = [json.loads(one) for one in page.inside("script") if one.startswith("[")]
    assert len(told) == len(charts)
    for panels, chart in zip(told, charts, strict=True):
        for data, panel in zip(panels, chart.panels, strict=True):
            values = [value for line in data["lines"] for value in line["values"]]
            points = [p for line in panel.lines for p in values_of(line)]
            assert len(values) == len(points) > 0
            assert all(0 <= value[0] < len(data["at"]) for value in values)
            names = {line["name"] for line in data["lines"]}
            assert names == {line.name for line in panel.lines}


def test_what_is_told_is_the_number_itself(page, study):
    charts = [chart.name for chart in gallery_of(study).charts]
    told = [json.loads(one) for one in page.inside("script") if one.startswith("[")]
    (panel,) = told[charts.index("score-by-utd-tasks")]
    assert panel["title"] == "Hopper-v5"
    ours, theirs = panel["lines"][:2]
    mean = study.cell(Method("td7", 1), "Hopper-v5").scores.mean()
    place, _, _, value, within, of = ours["values"][0]
    assert (ours["name"], of, value) == ("td7", "2 seeds", f"{mean:.2f}")
    assert re.fullmatch(r"[\d.]+ to [\d.]+", within)
    assert panel["at"][place][1] == "1"
    # The paper's raw_scores.csv: Hopper-v5, td7, UTD 20.
    assert (theirs["name"], theirs["hollow"]) == ("td7 (paper)", True)
    assert theirs["values"][1][3] == "3,281.9"


def test_figures_can_be_read_without_eyes_and_mouse(page):
    charts = [a for a in page.all("svg") if a.get("role") == "img"]
    hits = [a for a in page.all("div") if a.get("class") == "hit"]
    assert len(charts) == len(hits) > 0
    assert all(a["tabindex"] == "0" and a["aria-label"] for a in hits)
    assert len(page.inside("title")) == len(charts) + 1
    assert len(page.inside("desc")) == len(charts)
    assert all(re.search(r"Last values: .+\.$", said) for said in page.inside("desc"))


def test_names_never_become_markup(evil_text):
    page = Page(evil_text)
    assert "<script>alert" not in evil_text
    assert "&lt;script&gt;alert" in evil_text
    scripts = page.inside("script")
    assert [x for x in scripts if not x.startswith("[")] == [scripts[-1]]
    lines = [
        line for x in scripts[:-1] for panel in json.loads(x) for line in panel["lines"]
    ]
    assert any(line["name"].startswith(EVIL) for line in lines)
    # Browsers end a script at less than this parser does.
    values = re.findall(r'application/json">(.*?)</script>', evil_text)
    assert not [one for one in values if "<" in one]
    assert not [tag for tag, attrs in page.found if "alert" in tag]
    for attrs in page.all("a"):
        assert attrs["href"].startswith(("#", "figures/", "tables/"))


def test_a_page_can_be_written_whatever_names_hold(tmp_path):
    run = drawn_run(Method("\udc80\x00", 1), ("\x1b",), 1, 2, "\ud800")
    study = study_of([run])
    write_page(study, tables_of(study), gallery_of(study), tmp_path)


def test_partial_results_are_labelled_as_such(study, text):
    assert "partial or scaled down: not a reproduction of the paper" in text
    assert text.count('<span class="tag">partial</span>') == len(
        gallery_of(study).charts
    )
    assert 'class="num partial"' in text


def test_complete_results_are_not_called_partial():
    whole = drawn_study(("td7",), ("Hopper-v5",), (1,), seeds=5, points=50)
    assert all(cell.complete for cell in whole.cells)
    text = page_html(whole, [], gallery_of(whole))
    assert "not a reproduction" not in text
    assert ">partial<" not in text


def test_figures_that_are_absent_are_named_with_the_reason(study):
    text = page_html(study, [], Gallery((), (("Spectra", "no run has <any>"),)))
    assert "<li>Spectra: no run has &lt;any&gt;.</li>" in text


def test_the_header_says_what_the_report_is_made_of(study):
    made = {"commit": "abc123", "jax": "0.10.2", "python": "3.11.7"}
    first, *others = study.runs
    runs = [first._replace(versions=made), *others]
    runs[1] = runs[1]._replace(versions={**made, "jax": "0.11"}, status="unfinished")
    head = page_html(study_of(runs), [], Gallery((), ())).split("</header>")[0]
    for said in (
        "abc123",
        "python 3.11.7, jax 0.10.2 or 0.11",
        "500,000",
        "10,000,000",
    ):
        assert said in head
    assert "4 finished, 1 unfinished" in head


def test_the_same_study_gives_the_same_page(study, text, tmp_path):
    path = write_page(study, tables_of(study), gallery_of(study), tmp_path)
    assert path == tmp_path / "index.html"
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("agent", "task", "there"),
    [("td7", "Hopper-v5", True), ("td7", "Own-v0", False), ("sac", "Hopper-v5", False)],
)
def test_the_papers_numbers_are_announced_only_where_there_are_some(agent, task, there):
    found = study_of([drawn_run(Method(agent, 1), (task,), 2, 3)])
    assert ("the paper's own numbers beside them" in lede(found)) is there
    names = {table.name for table in tables_of(found)}
    assert ("beside_paper" in names) is there


def test_results_of_an_unknown_utd_have_no_numbers_of_the_paper_beside_them():
    found = study_of([drawn_run(Method("td7", None), ("Hopper-v5",), 2, 3)])
    assert lede(found).startswith(
        "Scores, learning curves and diagnostics, with 95 % intervals. Point at"
    )
