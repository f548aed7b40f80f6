import csv
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from drawn import EVIL, drawn_run
from matplotlib.figure import Figure

from r2r2.report import figures
from r2r2.report.charts import Axis, Chart, Line, Panel
from r2r2.report.figures import drawn, write_figures
from r2r2.report.learning_curve import COLOURS
from r2r2.report.palette import Style
from r2r2.report.study import study_of
from r2r2.stats.scores import Method

MAGIC = {"png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-"}
SVG = "{http://www.w3.org/2000/svg}svg"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Figures of one run that has evaluations and times, and no diagnostics."""
    folder = tmp_path_factory.mktemp("report") / "figures"
    run = drawn_run(Method("td7", 1), ("Hopper-v5",), 2, 4)
    return folder, write_figures(study_of([run._replace(members=())]), folder)


def line(name="td7", colour=0, dash="solid", **fields):
    return Line(
        name, Style(colour, dash), np.arange(3.0), np.array([1.0, 4.0, 2.0]), **fields
    )


def chart(*lines, rows=False):
    axes = Axis("steps"), Axis("return")
    return Chart("one", "One", "", *axes, (Panel("dog-run", lines),), rows)


@pytest.fixture
def axes_of(monkeypatch):
    """Draws a chart and gives the axes that were drawn on."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))

    def axes(chart):
        drawn(chart)
        return figures[-1].axes[0]

    return axes


def test_every_figure_that_has_data_is_written_and_none_else(written):
    folder, gallery = written
    charts = [chart.name for chart in gallery.charts]
    assert charts == ["aggregate", "curves-utd-1", "profiles", "timing"]
    names = {f"{name}.{end}" for name in charts for end in ("csv", "svg", *MAGIC)}
    assert {path.name for path in folder.iterdir()} == names
    assert [title for title, _ in gallery.absent] == [
        "Score against UTD",
        "Score against UTD, task by task",
        "Ablations",
        "Spectra of the representation",
        "Effective rank",
    ]


def test_files_are_what_their_endings_say(written):
    folder, gallery = written
    for chart in gallery.charts:
        for ending, magic in MAGIC.items():
            content = (folder / f"{chart.name}.{ending}").read_bytes()
            assert content.startswith(magic)
        svg = ElementTree.parse(folder / f"{chart.name}.svg").getroot()
        assert svg.tag == SVG
        links = [v for x in svg.iter() for k, v in x.attrib.items() if "href" in k]
        assert all(link.startswith("#") for link in links)


def test_csv_files_hold_every_point(written):
    folder, gallery = written
    for chart in gallery.charts:
        points = sum(len(one.x) for panel in chart.panels for one in panel.lines)
        with (folder / f"{chart.name}.csv").open() as file:
            rows = list(csv.reader(file))
        assert len(rows) == points + 1
        assert {len(row) for row in rows} == {7}


def test_the_same_chart_gives_the_same_bytes():
    one = chart(line(low=np.zeros(3), high=np.full(3, 5.0)), line("other", 1))
    first, second = drawn(one), drawn(one)
    assert first == second
    assert b"<dc:date>" not in first["svg"]
    assert b"CreationDate" not in first["pdf"]


def test_a_method_has_its_colour_and_its_base_is_dashed(axes_of):
    axes = axes_of(chart(line("td7", dash="dashed"), line("td7+r2r2")))
    assert {one.get_color() for one in axes.lines} == {COLOURS[0]}
    assert [one.get_linestyle() for one in axes.lines] == ["--", "-"]


def test_seeds_are_thin_and_intervals_are_drawn(axes_of):
    seed = np.arange(3.0), np.array([0.0, 3.0, 1.0])
    axes = axes_of(
        chart(line(low=np.zeros(3), high=np.full(3, 5.0), each=(seed, seed)))
    )
    assert [one.get_linewidth() for one in axes.lines] == [0.5, 0.5, 1.6]
    (band,) = axes.collections
    assert band.get_paths()[0].get_extents().ymax == 5.0


def test_the_papers_marks_are_hollow_and_not_joined(axes_of):
    axes = axes_of(chart(line("td7 (paper)", mark="hollow", joined=False)))
    (one,) = axes.lines
    assert one.get_markerfacecolor() == "white"
    assert one.get_linewidth() == 0


def test_what_is_partial_is_said_in_the_picture(axes_of):
    axes = axes_of(chart(line())._replace(notes=("no reproduction: td7",)))
    (text,) = axes.figure.texts
    assert text.get_text() == "no reproduction: td7"


def test_names_are_no_markup_in_svg_files():
    evil = chart(line(EVIL), line("$x_{$", 1))
    evil = evil._replace(panels=(evil.panels[0]._replace(title=EVIL + "-->"),))
    root = ElementTree.fromstring(drawn(evil)["svg"])
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))


def test_names_of_any_script_and_any_length_are_drawn():
    rows = chart(line("a" * 300), line("\N{CJK UNIFIED IDEOGRAPH-6C34}", 1), rows=True)
    for one in (rows, rows._replace(rows=False)):
        assert drawn(one)["png"].startswith(MAGIC["png"])


def test_a_run_without_any_evaluation_gives_no_figure_but_says_why(tmp_path):
    run = drawn_run(Method("td7", 1), ("Hopper-v5",), 1, 3)
    bare = run._replace(members=(), timing=None, results=run.results._replace(rows=()))
    gallery = write_figures(study_of([bare]), tmp_path)
    assert gallery.charts == ()
    assert len(gallery.absent) == 9
    assert all(why for _, why in gallery.absent)
    assert list(tmp_path.iterdir()) == []


def test_matplotlib_is_imported_only_when_something_is_drawn():
    code = "import sys, r2r2.report.figures, r2r2.report.page as p; print(sorted("
    code += "{'matplotlib', 'jax'} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_titles_are_set_in_lines_that_a_panel_beside_others_has_room_for(monkeypatch):
    title, seen = "UTD 1, relative to sac, UTD 1, from theirs.csv", []
    monkeypatch.setattr(figures, "dress", lambda axes, said, size: seen.append(said))
    alone = chart(line())
    panel = alone.panels[0]._replace(title=title)
    drawn(alone._replace(panels=(panel, panel)))
    assert seen == ["UTD 1, relative to sac, UTD 1,\nfrom theirs.csv"] * 2
    drawn(alone._replace(panels=(panel,)))
    assert seen[2] == title
