"""The HTML page of a report."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from example_study import HOSTILE, example_run, example_study

from r2r2.report.comparison_tables import all_tables
from r2r2.report.figures import ChartSet, make_charts
from r2r2.report.page import introduction, page_html, write_page
from r2r2.report.study import make_study
from r2r2.stats.scores import Method, Override

VOID = {"meta", "link", "path", "circle", "rect", "br"}


class Page(HTMLParser):
    """Elements with their attributes and texts; fails if they are not nested."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    def inside(self, tag):
        return [data for name, data in self.texts if name == tag]


def page_of(study):
    return page_html(study, all_tables(study), make_charts(study))


@pytest.fixture(scope="module")
def study():
    agents = "td7", "td7+r2r2"
    return example_study(agents, ("Hopper-v5",), (1, 20), seeds=2, points=4)


@pytest.fixture(scope="module")
def text(study):
    return page_of(study)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


@pytest.fixture(scope="module")
def hostile_text():
    """Return a page of runs in which every name is an attack."""
    run = example_run(
        Method(HOSTILE, 1, (Override(HOSTILE, HOSTILE, HOSTILE),)), (HOSTILE,), 2, 3, HOSTILE
    )
    more = example_run(Method("td7", 1, file=HOSTILE), (HOSTILE,), 2, 3, "b")
    members = tuple(m._replace(name=HOSTILE, stopped=HOSTILE) for m in run.members)
    bad = run._replace(members=members, versions={"commit": HOSTILE, "device": HOSTILE})
    return page_of(make_study([bad, more]))


def test_the_page_is_valid_and_complete(page, study):
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    wanted = {"summary", "figures", "tables", "missing", "runs"}
    wanted |= {f"figure-{chart.name}" for chart in make_charts(study).charts}
    wanted |= {f"table-{table.name}" for table in all_tables(study)}
    assert wanted <= set(ids)
    links = {a["href"][1:] for a in page.all("a") if a["href"].startswith("#")}
    assert links <= set(ids)


def test_tables_and_figures_are_numbered_in_order(text):
    for kind in ("Table", "Figure"):
        numbers = [int(number) for number in re.findall(rf">{kind} (\d+)\.<", text)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > 5


def test_the_page_loads_nothing_from_the_network(text, hostile_text):
    for page in (text, hostile_text):
        assert "http:" not in page
        assert "https:" not in page
        assert "@import" not in page
        assert "url(" not in page
        parsed = Page(page)
        assert not {"img", "iframe", "object", "embed"} & {t for t, _ in parsed.elements}
        assert not [a for _, a in parsed.elements if "src" in a or "style" in a]
        assert not [a for _, attrs in parsed.elements for a in attrs if a[:2] == "on"]
        assert parsed.all("link") == [{"rel": "icon", "href": "data:,"}]


def test_downloads_link_to_the_files_of_the_report(page, study):
    links = {a["href"] for a in page.all("a") if not a["href"].startswith("#")}
    figures = {
        f"figures/{chart.name}.{end}"
        for chart in make_charts(study).charts
        for end in ("svg", "png", "pdf", "csv")
    }
    tables = {
        f"tables/{table.name}.{end}" for table in all_tables(study) for end in ("csv", "md", "tex")
    }
    assert links == figures | tables


def test_the_policy_allows_only_the_style_and_script_of_the_page(text):
    policy = re.search(r'Security-Policy" content="([^"]*)"', text)[1]
    for kind, tag in (("style-src", "style"), ("script-src", "script")):
        inside = text.split(f"<{tag}>")[1].split(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_every_point_of_every_figure_is_shown_on_hover(page, study):
    charts = make_charts(study).charts
    hover = [json.loads(one) for one in page.inside("script") if one.startswith("[")]
    assert len(hover) == len(charts)
    for panels, chart in zip(hover, charts, strict=True):
        for data, panel in zip(panels, chart.panels, strict=True):
            values = [value for line in data["lines"] for value in line["values"]]
            points = [p for line in panel.lines for p in line.points]
            assert len(values) == len(points) > 0
            assert all(0 <= value[0] < len(data["at"]) for value in values)
            names = {line["name"] for line in data["lines"]}
            assert names == {line.name for line in panel.lines}


def test_hover_shows_exact_values(page, study):
    charts = [chart.name for chart in make_charts(study).charts]
    hover = [json.loads(one) for one in page.inside("script") if one.startswith("[")]
    (panel,) = hover[charts.index("score-by-utd-tasks")]
    assert panel["title"] == "Hopper-v5"
    ours, published = panel["lines"][:2]
    mean = study.cell(Method("td7", 1), "Hopper-v5").scores.mean()
    index, _, _, value, interval, detail = ours["values"][0]
    assert (ours["name"], detail, value) == ("td7", "2 seeds", f"{mean:.2f}")
    assert re.fullmatch(r"[\d.]+ to [\d.]+", interval)
    assert panel["at"][index][1] == "1"
    # The paper's raw_scores.csv: Hopper-v5, td7, UTD 20.
    assert (published["name"], published["hollow"]) == ("td7 (paper)", True)
    assert published["values"][1][3] == "3,281.9"


def test_figures_are_accessible(page):
    charts = [a for a in page.all("svg") if a.get("role") == "img"]
    hits = [a for a in page.all("div") if a.get("class") == "hit"]
    assert len(charts) == len(hits) > 0
    assert all(a["tabindex"] == "0" and a["aria-label"] for a in hits)
    assert len(page.inside("title")) == len(charts) + 1
    assert len(page.inside("desc")) == len(charts)
    assert all(re.search(r"Last values: .+\.$", text) for text in page.inside("desc"))


def test_names_never_become_markup(hostile_text):
    page = Page(hostile_text)
    assert "<script>alert" not in hostile_text
    assert "&lt;script&gt;alert" in hostile_text
    scripts = page.inside("script")
    assert [x for x in scripts if not x.startswith("[")] == [scripts[-1]]
    lines = [line for x in scripts[:-1] for panel in json.loads(x) for line in panel["lines"]]
    assert any(line["name"].startswith(HOSTILE) for line in lines)
    # Browsers accept more than this parser as the end of a script.
    values = re.findall(r'application/json">(.*?)</script>', hostile_text)
    assert not [one for one in values if "<" in one]
    assert not [tag for tag, attrs in page.elements if "alert" in tag]
    for attrs in page.all("a"):
        assert attrs["href"].startswith(("#", "figures/", "tables/"))


def test_names_may_contain_any_characters(tmp_path):
    run = example_run(Method("\udc80\x00", 1), ("\x1b",), 1, 2, "\ud800")
    study = make_study([run])
    write_page(study, all_tables(study), make_charts(study), tmp_path)


def test_partial_results_are_labelled(study, text):
    assert "partial or scaled down: not a reproduction of the paper" in text
    assert text.count('<span class="tag">partial</span>') == len(make_charts(study).charts)
    assert 'class="num partial"' in text


def test_complete_results_are_not_labelled_partial():
    complete = example_study(("td7",), ("Hopper-v5",), (1,), seeds=5, points=50)
    assert all(cell.complete for cell in complete.cells)
    text = page_html(complete, [], make_charts(complete))
    assert "not a reproduction" not in text
    assert ">partial<" not in text


def test_missing_figures_are_listed_with_reasons(study):
    text = page_html(study, [], ChartSet((), (("Spectra", "no run has <any>"),)))
    assert "<li>Spectra: no run has &lt;any&gt;.</li>" in text


def test_the_header_shows_runs_and_versions(study):
    made = {"commit": "abc123", "jax": "0.10.2", "python": "3.11.7"}
    first, *others = study.runs
    runs = [first._replace(versions=made), *others]
    runs[1] = runs[1]._replace(versions={**made, "jax": "0.11"}, status="unfinished")
    head = page_html(make_study(runs), [], ChartSet((), ())).split("</header>")[0]
    for text in ("abc123", "python 3.11.7, jax 0.10.2 or 0.11", "500,000", "10,000,000"):
        assert text in head
    assert "4 finished, 1 unfinished" in head


def test_equal_studies_give_equal_pages(study, text, tmp_path):
    path = write_page(study, all_tables(study), make_charts(study), tmp_path)
    assert path == tmp_path / "index.html"
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("agent", "task", "expected"),
    [("td7", "Hopper-v5", True), ("td7", "Own-v0", False), ("sac", "Hopper-v5", False)],
)
def test_published_numbers_are_mentioned_only_if_there_are_any(agent, task, expected):
    example = make_study([example_run(Method(agent, 1), (task,), 2, 3)])
    assert ("next to the paper's numbers" in introduction(example)) is expected
    names = {table.name for table in all_tables(example)}
    assert ("beside_paper" in names) is expected


def test_results_with_unknown_utd_have_no_published_numbers():
    example = make_study([example_run(Method("td7", None), ("Hopper-v5",), 2, 3)])
    assert introduction(example).startswith(
        "Scores, learning curves and diagnostics, with 95 % intervals. Hover"
    )


@pytest.mark.parametrize(
    ("files", "counted"), [(1, "1 finished, 1 file"), (2, "1 finished, 2 files")]
)
def test_a_file_of_several_methods_is_counted_once(files, counted):
    runs = [example_run(Method("td7", 1), seeds=2, points=2)]
    for file in range(files):
        for agent in ("sac", "td3"):
            run = example_run(Method(f"{agent}-{file}", 1), seeds=2, points=2)
            runs.append(run._replace(status="file", path=f"{file}.csv", members=(), timing=None))
    study = make_study(runs)
    assert counted in Page(page_html(study, [], ChartSet([], []))).inside("dd")
