"""`r2r2 theory`: from chains, and runs, to tables and a page."""

import csv
import functools
import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from r2r2.cli import theory as command
from r2r2.experiments.run_report import find_sources, load_study
from r2r2.report import figures
from r2r2.theory.chains import examples
from r2r2.theory.experiments import run_experiments
from synthetic_runs import flat, make_run

# Columns of the table in docs/theory.md.
DOCUMENTED = ("constant mode in the span", "constant mode's share of Z", "effective rank")
FIGURES = {
    *("flows", "angles", "weights-share", "weights-deviation"),
    *("sphere", "sphere-flows", "sphere-weights"),
}


@functools.cache
def short_flows():
    return run_experiments(examples(), end=8.0, starts=2)


@pytest.fixture(autouse=True)
def brief(request, monkeypatch):
    """Flows are short and simulated once, and figures are empty files, except in slow tests."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr(command, "run_experiments", lambda chains, report: short_flows())
        nothing = dict.fromkeys(figures.FORMATS, b"")
        monkeypatch.setattr(figures, "render_chart", lambda chart: nothing)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """TD7 with and without R2R2 on the paper's task of the effective ranks, at UTD 1 and 20."""
    folder = tmp_path_factory.mktemp("made") / "runs"
    for utd in (1, 20):
        for agent in ("td7", "td7+r2r2"):
            make_run(
                folder / f"{agent}{utd}", flat(10.0), agent=agent, utd=utd, env="humanoid-stand"
            )
    return folder


def table(folder, name):
    with (folder / "tables" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_needs_no_runs(cli, workdir):
    completed = cli("theory")
    assert (completed.code, completed.err) == (0, "")
    assert "6 tables and 7 figures in 'theory'; open theory/index.html" in completed.out
    assert "grid world" in completed.out
    page = (workdir / "theory" / "index.html").read_text()
    assert "No runs were given" in html.unescape(page)
    shown = set(re.findall(r'<figure id="figure-([^"]+)"', page))
    assert shown == FIGURES
    for name in FIGURES:
        assert {f"{name}.{x}" for x in ("svg", "png", "pdf", "csv")} <= {
            path.name for path in (workdir / "theory" / "figures").iterdir()
        }
    assert json.loads((workdir / "theory" / "report.json").read_text())["page"] == "theory"


def test_links_of_the_page_exist(cli, workdir):
    cli("theory", "--out", "out")
    page = (workdir / "out" / "index.html").read_text()
    links = set(re.findall(r'href="((?:figures|tables)/[^"]+)"', page))
    assert len(links) == 7 * 4 + 6 * 3
    assert all((workdir / "out" / link).is_file() for link in links)
    assert not re.search(r'(src|href)="https?:', page)


def test_residuals_are_below_the_stated_bounds(cli, workdir):
    cli("theory")
    bounds, *chains = table(workdir / "theory", "lemmas")
    assert len(chains) == 9
    names = [name for name in bounds if name.endswith(": value") and bounds[name]]
    assert len(names) == 7
    for chain in chains:
        assert all(float(chain[name]) <= float(bounds[name]) for name in names)
        largest = max(float(chain[name]) for name in names)
        assert float(chain["largest residual: value"]) == largest
        assert chain["all hold"] == "yes"


def test_runs_are_shown_base_beside_r2r2_with_the_published_ranks(cli, workdir, runs):
    completed = cli("theory", runs)
    assert completed.code == 0
    assert "7 tables and 12 figures" in completed.out
    rows = table(workdir / "theory", "practice")
    assert [(row["method"], row["UTD"]) for row in rows] == [
        *(("td7", "1"), ("td7+r2r2", "1"), ("td7", "20"), ("td7+r2r2", "20"))
    ]
    published = [row["effective rank (paper): value"] for row in rows]
    assert published == ["76.5", "65.0", "", ""]
    page = html.unescape((workdir / "theory" / "index.html").read_text())
    assert "4,096 of the first 40,960 replay rows" in page


def test_the_share_is_one_minus_the_squared_spread(cli, workdir, runs):
    cli("theory", runs / "td71")
    lines = (runs / "td71" / "events.jsonl").read_text().splitlines()
    found = [x for x in map(json.loads, lines) if x["event"] == "diagnostics"]
    spreads = {x["member"]: x["spread"] for x in found}  # the last of each
    first, *papers = table(workdir / "theory", "practice")
    expected = np.mean([1 - x**2 for x in spreads.values()])
    assert float(first["share of the constant mode: mean"]) == pytest.approx(expected)
    assert [row["method"] for row in papers] == ["td7+r2r2 (paper only)"]


def test_the_first_direction_is_that_of_the_squared_singular_values(cli, workdir, runs):
    cli("theory", runs / "td71")
    study = load_study(find_sources([runs / "td71"]))
    spectra = [m.spectra[-1].singular_values for m in study.members_by_seed().values()]
    first, *_ = table(workdir / "theory", "practice")
    expected = np.mean([s[0] ** 2 / np.sum(s**2) for s in spectra])
    assert float(first["share of the first direction: mean"]) == pytest.approx(expected)


def test_equal_inputs_give_equal_pages(cli, workdir, runs):
    cli("theory", runs, "--out", "a")
    short_flows.cache_clear()
    cli("theory", runs, "--out", "b")
    a, b = workdir / "a", workdir / "b"
    files = sorted(path.relative_to(a) for path in a.rglob("*") if path.is_file())
    assert files
    assert all((a / name).read_bytes() == (b / name).read_bytes() for name in files)


def test_an_earlier_page_is_replaced_and_nothing_else(cli, rejected, workdir, runs):
    assert cli("theory").code == 0
    (workdir / "theory" / "index.html").write_text("old")
    assert cli("theory").code == 0
    assert "constant mode" in (workdir / "theory" / "index.html").read_text()
    (workdir / "theory" / "notes.txt").write_text("mine")
    assert "also contains 'notes.txt'" in rejected("theory")
    (workdir / "other").mkdir()
    (workdir / "other" / "mine").write_text("mine")
    assert "not empty and not a report" in rejected("theory", "--out", "other")
    assert cli("report", runs, "--out", "compared").code == 0
    assert "the page of 'r2r2 report'" in rejected("theory", "--out", "compared")


def test_a_report_does_not_replace_the_page(cli, rejected, workdir, runs):
    assert cli("theory").code == 0
    before = (workdir / "theory" / "index.html").read_bytes()
    sentence = rejected("report", runs, "--out", "theory")
    assert sentence.startswith("theory: contains the page of 'r2r2 theory', which would be")
    assert (workdir / "theory" / "index.html").read_bytes() == before


def test_bad_input_is_one_sentence(rejected, workdir, tmp_path):
    assert "nowhere" in rejected("theory", "nowhere")
    (workdir / "results.csv").write_text("exp_name\n")
    sentence = rejected("theory", "results.csv")
    assert sentence == "results.csv: expected a run folder, got a file"
    (workdir / "empty").mkdir()
    assert "empty: no runs in this folder" in rejected("theory", "empty")
    assert "--uot: unknown option; did you mean '--out'?" in rejected("theory", "--uot", "x")
    assert "--out: value missing" in rejected("theory", "--out")


def test_runs_without_an_encoder_are_refused(rejected, tmp_path):
    run = make_run(tmp_path / "simba", flat(1.0), agent="simbav2", points=2)
    assert "simba: no diagnostics; expected a run of an agent with an encoder" in rejected(
        "theory", run
    )


@pytest.mark.slow
def test_the_whole_command(cli, workdir, short_run):
    completed = cli("theory", short_run)
    assert completed.code == 0
    rows = {row["loss"]: row for row in table(workdir / "theory", "variants")}
    shares = {name: row["constant mode's share of Z: median"] for name, row in rows.items()}
    assert float(shares["without stop-gradient"]) > 0.999
    assert float(shares["zero-centred latents"]) < 1e-9
    assert 0.2 < float(shares["R2R2"]) < 0.35
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text()
    for name, row in rows.items():
        measured = [float(row[f"{x}: median"]) for x in DOCUMENTED]
        texts = [f"{x:.3f}".rstrip("0").rstrip(".") for x in measured]
        assert_shown(f"| {name} | {' | '.join(texts)} |", page)
    for chain, *cells in shown_rows(workdir / "theory", "assumptions"):
        trace, reached = cells[4], cells[6]
        row = next(x for x in page.splitlines() if x.startswith(f"| {chain} |"))
        assert_shown(f" | {trace} | {reached} |", row)
    for cells in shown_rows(workdir / "theory", "sweeps"):
        assert_shown(f"| {' | '.join(cells)} |", page)
    check_the_sphere(workdir / "theory", " ".join(page.split()))
    assert (workdir / "theory" / "figures" / "flows.png").read_bytes().startswith(b"\x89PNG")


def shown_rows(folder, name):
    """Return the cells of a table as its readers see them."""
    lines = (folder / "tables" / f"{name}.md").read_text().splitlines()
    _, _, *rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    return rows


def assert_shown(text, page):
    """The page has this text; the last decimals may differ by 1, as between processors."""
    number = r"\d+(?:\.\d+)?"
    pattern = f"({number})".join(map(re.escape, re.split(number, text)))
    expected = re.findall(number, text)
    for match in re.finditer(pattern, page):
        units = [10.0 ** -len(x.partition(".")[2]) if "." in x else 0.0 for x in match.groups()]
        pairs = zip(map(float, match.groups()), map(float, expected), units, strict=True)
        if all(abs(a - b) < 1.01 * unit + 1e-9 for a, b, unit in pairs):
            return
    raise AssertionError(f"not in docs/theory.md: {text}")


def test_texts_are_compared_up_to_the_last_decimal():
    assert_shown("| a | 0.25 (3 of 5) |", "| a | 0.26 (3 of 5) |")
    for other in ("| a | 0.27 (3 of 5) |", "| a | 0.25 (2 of 5) |", "| b | 0.25 (3 of 5) |"):
        with pytest.raises(AssertionError, match=r"not in docs/theory\.md"):
            assert_shown("| a | 0.25 (3 of 5) |", other)


def check_the_sphere(folder, page):
    """Compare the medians and ranges in docs/theory.md with those of the figures."""

    def text(name, panel, line, x, digits):
        path = folder / "figures" / f"{name}.csv"
        rows = list(csv.reader(path.read_text().splitlines()[1:]))
        row = next(r for r in rows if r[:2] == [panel, line] and float(r[2]) == x)
        middle, low, high = (f"{float(value):.{digits}f}" for value in row[3:6])
        return f"{middle} ({low} to {high})"

    share, rank = "constant mode's share of Z", "effective rank"
    paper, met = "v_th = 1 (the paper's)", "v_th = 0.75/sqrt(d)"
    hinge = "lambda_Var = 0.01"
    none = [text("sphere-weights", x, "no hinge", 0.01, 2) for x in (share, rank)]
    assert_shown(f"falls from {none[0]} without a hinge", page)
    assert_shown(f"and {none[1]} without a hinge", page)
    assert_shown(f"to {text('sphere', share, hinge, 2.0, 3)} with v_th = 1", page)
    assert_shown(f"share is {text('sphere', share, hinge, 0.75, 2)}.", page)
    assert_shown(f"rank is {text('sphere', rank, hinge, 0.75, 2)},", page)
    assert_shown(f"against {text('sphere', rank, hinge, 2.0, 2)} with", page)
    for weight in (0.01, 0.1, 1.0, 3.0):
        cells = (
            text("sphere-weights", share, paper, weight, 3),
            text("sphere-weights", rank, paper, weight, 2),
            text("sphere-weights", share, met, weight, 3),
        )
        assert_shown(f"| {weight:g} | {' | '.join(cells)} |", page)
