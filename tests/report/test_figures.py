"""Figures as files, drawn by matplotlib."""

import csv
from xml.etree import ElementTree

import numpy as np
import pytest
from example_study import HOSTILE, example_run

from r2r2.report.charts import COLORS, Axis, Chart, Line, Note, NoteKind, Panel, Style
from r2r2.report.figures import draw_chart, render_chart, write_figures
from r2r2.report.study import make_study
from r2r2.stats.scores import Method

MAGIC = {"png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-"}
SVG = "{http://www.w3.org/2000/svg}svg"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Figures of one run that has evaluations and times, and no diagnostics."""
    folder = tmp_path_factory.mktemp("report") / "figures"
    run = example_run(Method("td7", 1), ("Hopper-v5",), 2, 4)
    return folder, write_figures(make_study([run._replace(members=())]), folder)


def line(name="td7", color=0, dash="solid", **fields):
    x, y = np.arange(3.0), np.array([1.0, 4.0, 2.0])
    return Line(name, Style(color, dash), x, y, **fields)


def chart(*lines, rows=False):
    axes = Axis("steps"), Axis("return")
    return Chart("one", "One", "", *axes, (Panel("dog-run", lines),), rows)


def draw(chart):
    """Return the first axes of a chart."""
    return draw_chart(chart).axes[0]


def test_only_figures_with_data_are_written(written):
    folder, chart_set = written
    charts = [chart.name for chart in chart_set.charts]
    assert charts == ["aggregate-mean", "aggregate-iqm", "curves-utd-1", "profiles", "timing"]
    names = {f"{name}.{end}" for name in charts for end in ("csv", "svg", *MAGIC)}
    assert {path.name for path in folder.iterdir()} == names
    assert [title for title, _ in chart_set.missing] == [
        "Score against UTD",
        "Score against UTD, task by task",
        "Ablations",
        "Spectra of the representation",
        "Effective rank",
    ]


def test_files_have_the_format_of_their_extension(written):
    folder, chart_set = written
    for chart in chart_set.charts:
        for extension, magic in MAGIC.items():
            content = (folder / f"{chart.name}.{extension}").read_bytes()
            assert content.startswith(magic)
        svg = ElementTree.parse(folder / f"{chart.name}.svg").getroot()
        assert svg.tag == SVG
        links = [v for x in svg.iter() for k, v in x.attrib.items() if "href" in k]
        assert all(link.startswith("#") for link in links)


def test_csv_files_have_every_point(written):
    folder, chart_set = written
    for chart in chart_set.charts:
        points = sum(len(one.x) for panel in chart.panels for one in panel.lines)
        with (folder / f"{chart.name}.csv").open() as file:
            rows = list(csv.reader(file))
        assert len(rows) == points + 1
        assert {len(row) for row in rows} == {7}


def test_equal_charts_give_equal_bytes():
    one = chart(line(low=np.zeros(3), high=np.full(3, 5.0)), line("other", 1))
    first, second = render_chart(one), render_chart(one)
    assert first == second
    assert b"<dc:date>" not in first["svg"]
    assert b"CreationDate" not in first["pdf"]


def test_base_agents_are_dashed_in_the_same_color():
    axes = draw(chart(line("td7", dash="dashed"), line("td7+r2r2")))
    assert {one.get_color() for one in axes.lines} == {COLORS[0]}
    assert [one.get_linestyle() for one in axes.lines] == ["--", "-"]


def test_seeds_are_thin_lines_and_intervals_a_band():
    seed = np.arange(3.0), np.array([0.0, 3.0, 1.0])
    axes = draw(chart(line(low=np.zeros(3), high=np.full(3, 5.0), seeds=(seed, seed))))
    assert [one.get_linewidth() for one in axes.lines] == [0.5, 0.5, 1.6]
    (band,) = axes.collections
    assert band.get_paths()[0].get_extents().ymax == 5.0


def test_published_numbers_are_hollow_and_not_connected():
    axes = draw(chart(line("td7 (paper)", marker="hollow", connected=False)))
    (one,) = axes.lines
    assert one.get_markerfacecolor() == "white"
    assert one.get_linewidth() == 0


def test_notes_are_written_in_the_picture():
    notes = Note(NoteKind.PARTIAL, ("td7",)), Note(NoteKind.UNKNOWN_UTD, ("mine",))
    (text,) = draw_chart(chart(line())._replace(notes=notes)).texts
    assert text.get_text() == "\n".join(note.text for note in notes)


def test_names_are_not_markup_in_svg_files():
    hostile = chart(line(HOSTILE), line("$x_{$", 1))
    hostile = hostile._replace(panels=(hostile.panels[0]._replace(title=HOSTILE + "-->"),))
    root = ElementTree.fromstring(render_chart(hostile)["svg"])
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))


def test_long_names_and_letters_without_glyphs_are_drawn():
    rows = chart(line("a" * 300), line("\N{CJK UNIFIED IDEOGRAPH-6C34}", 1), rows=True)
    for one in (rows, rows._replace(rows=False)):
        assert render_chart(one)["png"].startswith(MAGIC["png"])


def test_a_run_without_evaluations_has_no_figures_but_reasons(tmp_path):
    run = example_run(Method("td7", 1), ("Hopper-v5",), 1, 3)
    bare = run._replace(members=(), timing=None, results=run.results._replace(rows=()))
    chart_set = write_figures(make_study([bare]), tmp_path)
    assert chart_set.charts == ()
    assert len(chart_set.missing) == 9
    assert all(reason for _, reason in chart_set.missing)
    assert list(tmp_path.iterdir()) == []


def test_titles_are_wrapped_only_beside_other_panels():
    title = "UTD 1, relative to sac, UTD 1, from theirs.csv"
    one = chart(line())
    panel = one.panels[0]._replace(title=title)
    wrapped = [
        axes.get_title(loc="left") for axes in draw_chart(one._replace(panels=(panel, panel))).axes
    ]
    assert wrapped == ["UTD 1, relative to sac, UTD 1,\nfrom theirs.csv"] * 2
    assert draw(one._replace(panels=(panel,))).get_title(loc="left") == title


def test_both_axes_can_be_logarithmic():
    values = line()._replace(x=np.array([0.1, 1.0, 100.0]))
    plain = chart(values)
    log = plain._replace(x=plain.x._replace(log=True), y=plain.y._replace(log=True))
    assert (draw(plain).get_xscale(), draw(plain).get_yscale()) == ("linear", "linear")
    axes = draw(log)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [text.get_text() for text in axes.get_xticklabels()] == ["10⁻¹", "1", "10", "10²"]
