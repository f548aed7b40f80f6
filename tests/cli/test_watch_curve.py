import numpy as np
import pytest

from r2r2.cli.watch_view import Size, render_curve
from r2r2.report.charts import learning_curves
from r2r2.storage.evaluations import Row


def curve(*seeds, every=10):
    """Return a curve with the given returns of each seed."""
    rows = [
        Row("td7", "walk", seed, "return", every * number, value)
        for seed, values in enumerate(seeds)
        for number, value in enumerate(values)
    ]
    (result,) = learning_curves(rows)
    return result


def draw(result, width=30, height=8, last=0, ascii_only=True):
    rows = render_curve(result, last, Size(width, height, ascii_only))
    return [row.plain for row in rows]


def test_mean_is_a_line_inside_the_range():
    assert draw(curve([0.0, 60.0], [40.0, 100.0]), width=15, height=8) == [
        "100|         ..",
        "   |      ...**",
        "   |  ...****..",
        "   |..***....",
        "   |**....",
        "  0|..",
        "   |-----------",
        "    0        10",
    ]


def test_braille_has_eight_dots_per_character():
    rows = draw(curve([0.0, 7.0]), width=7, height=4, ascii_only=False)
    assert rows == ["7┤  ⢀⠤⠊", "0┤⡠⠒⠁", " └─────", "  0  10"]


def test_future_part_of_the_axis_is_empty():
    rows = draw(curve([1.0] * 6), width=40, last=100)
    (line,) = [row for row in rows if "*" in row]
    assert line.index("*") == rows[0].index("|") + 1
    assert 0.45 < line.count("*") / rows[-2].count("-") < 0.55
    assert rows[-1].split() == ["0", "100", "env", "steps"]


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("width", [14, 40, 100])
@pytest.mark.parametrize("height", [4, 9])
def test_curve_fits_into_the_size(ascii_only, width, height):
    rng = np.random.default_rng(0)
    result = curve(*rng.normal(scale=1e5, size=(3, 40)))
    rows = draw(result, width, height, 500, ascii_only)
    assert len(rows) == height
    assert max(map(len, rows)) <= width
    assert all(row.isascii() for row in rows) == ascii_only


def test_axis_shows_the_extreme_returns():
    rows = draw(curve([-3.0, 5.0, 1.0], [2.0, 2.0, 12.0]), height=9)
    assert rows[0].startswith(" 12|")
    assert rows[3].startswith("4.5|")
    assert rows[6].startswith(" -3|")


def test_steep_line_has_no_gaps():
    rows = draw(curve([0.0, 0.0, 100.0, 100.0]), width=20, height=20)[:-2]
    assert all("*" in row for row in rows)


def test_single_point_is_one_dot():
    rows = draw(curve([5.0]), last=100)
    assert sum(row.count("*") for row in rows) == 1


def test_constant_returns_are_drawn():
    for level in (0.0, -7.0, 1e300):
        assert any("*" in row for row in draw(curve([level] * 4)))


def test_huge_returns_are_drawn():
    rows = draw(curve([-1.7e308, 1.7e308]))
    assert rows[0].startswith(" 1e+300|")


def test_axis_is_extended_beyond_the_last_step():
    assert draw(curve([1.0] * 6), last=20)[-1].split()[1] == "50"
