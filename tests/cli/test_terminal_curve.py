"""Curves in characters."""

import numpy as np
import pytest

from r2r2.cli.terminal_curve import Size, draw_in_text
from r2r2.report.learning_curve import learning_curves
from r2r2.storage.evaluations import Row


def curve(*seeds, every=10):
    """A curve from each seed's returns."""
    rows = [
        Row("td7", "walk", seed, "return", every * number, value)
        for seed, values in enumerate(seeds)
        for number, value in enumerate(values)
    ]
    (found,) = learning_curves(rows)
    return found


def drawn(found, width=30, height=8, last=0, ascii_only=True):
    rows = draw_in_text(found, last, Size(width, height, ascii_only))
    return [row.plain for row in rows]


def test_the_mean_is_a_line_and_the_range_is_around_it():
    assert drawn(curve([0.0, 60.0], [40.0, 100.0]), width=15, height=8) == [
        "100|         ..",
        "   |      ...**",
        "   |  ...****..",
        "   |..***....",
        "   |**....",
        "  0|..",
        "   |-----------",
        "    0        10",
    ]


def test_in_braille_there_are_eight_dots_to_a_character():
    rows = drawn(curve([0.0, 7.0]), width=7, height=4, ascii_only=False)
    # From the lowest dot of the lower row on the left to the highest on the right.
    assert rows == ["7┤  ⢀⠤⠊", "0┤⡠⠒⠁", " └─────", "  0  10"]


def test_the_part_of_the_run_that_is_to_come_is_empty():
    rows = drawn(curve([1.0] * 6), width=40, last=100)
    (line,) = [row for row in rows if "*" in row]
    assert line.index("*") == rows[0].index("|") + 1
    assert 0.45 < line.count("*") / rows[-2].count("-") < 0.55
    assert rows[-1].split() == ["0", "100", "env", "steps"]


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("width", [14, 40, 100])
@pytest.mark.parametrize("height", [4, 9])
def test_no_row_is_wider_and_there_are_no_more_than_there_is_room_for(
    ascii_only, width, height
):
    rng = np.random.default_rng(0)
    found = curve(*rng.normal(scale=1e5, size=(3, 40)))
    rows = drawn(found, width, height, 500, ascii_only)
    assert len(rows) == height
    assert max(map(len, rows)) <= width
    assert all(row.isascii() for row in rows) == ascii_only


def test_the_highest_and_the_lowest_return_are_beside_the_axis():
    rows = drawn(curve([-3.0, 5.0, 1.0], [2.0, 2.0, 12.0]), height=9)
    assert rows[0].startswith(" 12|")
    assert rows[3].startswith("4.5|")
    assert rows[6].startswith(" -3|")


def test_a_steep_line_has_no_gaps():
    rows = drawn(curve([0.0, 0.0, 100.0, 100.0]), width=20, height=20)[:-2]
    assert all("*" in row for row in rows)


def test_one_point_is_one_dot():
    rows = drawn(curve([5.0]), last=100)
    assert sum(row.count("*") for row in rows) == 1


def test_returns_that_are_all_the_same_are_drawn():
    for level in (0.0, -7.0, 1e300):
        assert any("*" in row for row in drawn(curve([level] * 4)))


def test_returns_beyond_what_can_be_subtracted_are_drawn():
    rows = drawn(curve([-1.7e308, 1.7e308]))
    assert rows[0].startswith(" 1e+300|")


def test_a_run_that_went_further_than_it_was_to_go_is_drawn_whole():
    assert drawn(curve([1.0] * 6), last=20)[-1].split()[1] == "50"
