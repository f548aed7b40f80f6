"""Learning curves of seeds, and their picture."""

import os
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_hex

from r2r2.config.errors import UserError
from r2r2.report.charts import learning_curves
from r2r2.report.figures import curve_figure, draw_curve
from r2r2.storage.evaluations import Row


def rows(env_name, seed, points, exp_name="demo", metric="return"):
    return [Row(exp_name, env_name, seed, metric, x, y) for x, y in points.items()]


TWO_SEEDS = [
    *rows("Hopper-v5", 0, {0: 0.0, 1000: 10.0, 2000: 20.0}),
    *rows("Hopper-v5", 1, {0: 20.0, 1000: 50.0, 2000: 80.0}),
]


def draw(rows, reference=None):
    """Draw, and return the axes and the texts of the legend."""
    figure = curve_figure(learning_curves(rows), "title", reference or {})
    figure.draw_without_rendering()
    (axes,) = figure.axes
    (legend,) = [*figure.legends, *filter(None, [axes.get_legend()])]
    return axes, [text.get_text() for text in legend.get_texts()]


def bold(axes):
    return [line for line in axes.lines if line.get_linewidth() > 2]


def test_seeds_are_interpolated_in_their_common_range():
    # Seed 0 has 0, 100, 200; seed 1 has 50, 150, 250, all on y = x and y = x + 100.
    # Both cover 50 to 200: at 50, 100, 150, 200.
    first = rows("a", 0, {0: 0.0, 100: 100.0, 200: 200.0})
    second = rows("a", 1, {50: 150.0, 150: 250.0, 250: 350.0})
    (curve,) = learning_curves(first + second)
    np.testing.assert_array_equal(curve.steps, [50, 100, 150, 200])
    expected = [[50, 100, 150, 200], [150, 200, 250, 300]]
    np.testing.assert_array_equal(curve.returns, expected)
    np.testing.assert_array_equal(curve.seeds[1][0], [50, 150, 250])


def test_rows_are_sorted_and_other_metrics_ignored():
    shuffled = [TWO_SEEDS[i] for i in (4, 1, 3, 5, 0, 2)]
    other = rows("Hopper-v5", 0, {500: 1e9}, metric="effective_rank")
    (curve,) = learning_curves(other + shuffled)
    np.testing.assert_array_equal(curve.returns, [[0, 10, 20], [20, 50, 80]])


def test_names_include_the_experiment_if_there_are_several():
    one, other = rows("a", 0, {0: 1.0}), rows("a", 0, {0: 2.0}, exp_name="other")
    assert [curve.name for curve in learning_curves(one)] == ["a"]
    names = [curve.name for curve in learning_curves(one + other)]
    assert names == ["a, demo", "a, other"]


def test_several_seeds_have_thin_lines_a_bold_mean_and_a_band():
    axes, legend = draw(TWO_SEEDS)
    (mean,) = bold(axes)
    np.testing.assert_array_equal(mean.get_ydata(), [10, 30, 50])
    np.testing.assert_array_equal(mean.get_xdata(), [0, 1000, 2000])
    thin = [line.get_ydata().tolist() for line in axes.lines if line is not mean]
    assert thin == [[0, 10, 20], [20, 50, 80]]
    (band,) = axes.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert {(1000, 10), (1000, 50), (2000, 20), (2000, 80)} <= corners
    assert legend[0] == "Hopper-v5 (2 seeds)"
    assert legend[1:] == ["mean over seeds", "one seed", "min to max over seeds"]


def test_one_seed_is_one_bold_line():
    axes, legend = draw(TWO_SEEDS[:3])
    assert axes.lines[:] == bold(axes)
    assert not axes.collections
    assert legend == ["Hopper-v5 (1 seed)"]


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_single_point_has_a_marker(seeds):
    points = [row for s in range(seeds) for row in rows("a", s, {1000: 5.0 + s})]
    axes, _ = draw(points)
    assert [line.get_marker() for line in bold(axes)] == ["o"]


def test_seeds_without_common_range_have_no_mean():
    axes, _ = draw([*rows("a", 0, {0: 1.0, 1: 2.0}), *rows("a", 1, {5: 1.0, 6: 2.0})])
    (mean,) = bold(axes)
    assert mean.get_xdata().size == 0
    assert len(axes.lines) == 3


def test_tasks_have_different_colors_and_a_long_legend_is_beside_the_axes():
    tasks = [row for i in range(11) for row in rows(f"task-{i}", 0, {0: i, 9: i + 1.0})]
    axes, legend = draw(tasks)
    assert len({to_hex(line.get_color()) for line in bold(axes)}) == 11
    assert legend == [f"task-{i} (1 seed)" for i in range(11)]
    (outside,) = axes.figure.legends
    assert outside.get_window_extent().x0 >= axes.get_window_extent().x1
    few, _ = draw(tasks[:4])
    assert few.get_legend() is not None


def test_references_are_dashed_lines():
    axes, legend = draw(TWO_SEEDS, {"random policy": -3.5, "expert": 300.0})
    dashed = {line.get_label(): line for line in axes.lines if line.is_dashed()}
    assert list(dashed["random policy"].get_ydata()) == [-3.5, -3.5]
    assert {"random policy", "expert"} <= set(legend)


@pytest.mark.parametrize("value", [-3.5, 83.5, 300.0])
def test_a_reference_is_not_hidden_by_the_frame(value):
    # The returns end at 0 and 80, the frame at -4 and 84.
    axes, _ = draw(TWO_SEEDS, {"reference": value})
    low, high = axes.get_ylim()
    assert low + 2 < value < high - 2


def test_axes_have_labels_with_grouped_thousands():
    axes, _ = draw(rows("a", 0, {0: 0.0, 1_000_000: 0.5}))
    assert axes.get_title(loc="left") == "title"
    assert axes.get_xlabel() == "environment steps"
    assert axes.get_ylabel() == "episode return"
    texts = {text.get_text() for text in axes.get_xticklabels()}
    assert "1,000,000" in texts
    assert "0.5" in {text.get_text() for text in axes.get_yticklabels()}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e30])
def test_extreme_values_are_drawn_without_a_warning(value):
    draw([*TWO_SEEDS, *rows("Hopper-v5", 2, {0: value, 2000: 1.0})])
    draw(TWO_SEEDS, {"reference": value})


def test_names_are_not_parsed_as_formulas(tmp_path):
    draw_curve(rows("$x_{$", 0, {0: 1.0}), tmp_path / "a.png", "$\\bad{$", {"$_$": 1.0})


def test_the_file_is_written_atomically_with_a_fixed_size(tmp_path, monkeypatch):
    path = tmp_path / "curve.png"
    draw_curve(TWO_SEEDS, path, "title")
    picture = matplotlib.image.imread(path)
    assert picture.shape == (675, 1200, 4)
    assert picture[..., :3].std() > 0.05
    old = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        draw_curve(TWO_SEEDS[:3], path, "another")
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["curve.png"]


def test_equal_rows_give_equal_pictures(tmp_path):
    for name in ("a", "b"):
        draw_curve(TWO_SEEDS, tmp_path / name, "title", {"random policy": 1.0})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("none", [[], rows("a", 0, {0: 1.0}, metric="effective_rank")])
def test_drawing_without_returns_is_an_error(tmp_path, none):
    with pytest.raises(UserError, match="nothing to draw; expected metric 'return'"):
        draw_curve(none, tmp_path / "curve.png", "title")
    assert not os.listdir(tmp_path)


def test_imports_are_lazy_and_drawing_needs_no_pyplot(tmp_path):
    code = f"""
import sys
from pathlib import Path
import r2r2.report.figures, r2r2.report.page
from r2r2.report.figures import draw_curve
from r2r2.storage.evaluations import Row
assert not {{"jax", "matplotlib"}} & set(sys.modules)
draw_curve([Row("a", "b", 0, "return", 0, 1.0)], Path({str(tmp_path)!r}, "a.png"), "")
assert not {{"jax", "matplotlib.pyplot"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
