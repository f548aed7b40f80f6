"""Scores of seeds, cells, and their shortfalls."""

import dataclasses
import math

import numpy as np
import pytest

from r2r2.config.errors import UserError
from r2r2.config.resolve import default_config, resolve
from r2r2.config.run import DiagnosticsConfig
from r2r2.report.study import describe
from r2r2.stats.scores import (
    Method,
    Override,
    Results,
    Shortfall,
    ShortfallKind,
    make_cells,
    run_results,
)
from r2r2.storage.evaluations import Row

TD7 = Method("td7", 20)


def curve(task="Hopper-v5", seed=0, points=50, gap=10_000, value=float):
    """Return evaluations at even steps; by default the return is the point's number."""
    numbers = range(1, points + 1)
    return [Row("x", task, seed, "return", n * gap, value(n)) for n in numbers]


def curves(task="Hopper-v5", gap=10_000):
    return [row for seed in range(5) for row in curve(task, seed, gap=gap)]


def cell(rows, method=TD7, members=()):
    (only,) = make_cells([Results(method, rows, members)])
    return only


def test_score_is_the_mean_of_the_last_ten_points():
    rows = curve(points=50)
    # 41 to 50, in any order of rows.
    assert cell(rows[::-1]).scores == pytest.approx([45.5])


def test_last_evaluation_is_the_last_point():
    result = cell(curve(points=12)[::-1] + curve(seed=1, points=3))
    assert result.last_returns.tolist() == [12, 3]


@pytest.mark.parametrize(
    ("points", "name"),
    [
        ((10, 50), "mean of the last 10 evaluations"),
        ((0, 10), "mean of the last 10 evaluations"),
        ((9, 10), "mean of the last 9 to 10 evaluations"),
        ((3, 3), "mean of all 3 evaluations"),
        ((1, 4), "mean of all 1 to 4 evaluations"),
        ((1, 1), "mean of all 1 evaluation"),
    ],
)
def test_name_of_a_score_says_what_it_is_the_mean_of(points, name):
    rows = [row for seed, count in enumerate(points) for row in curve(seed=seed, points=count)]
    assert cell(rows).score_name == name


def test_marks_of_a_seed_in_two_folders_are_those_of_the_better_one():
    mark, members = Shortfall(ShortfallKind.STATUS, "interrupted", seed=0), (("Hopper-v5", 0),)
    marked = Results(TD7, curve(points=3), members, {members[0]: (mark,)})
    whole = Results(TD7, curve(), members)
    for results in ([marked, whole], [whole, marked]):
        assert mark not in make_cells(results)[0].shortfalls
    assert mark in make_cells([marked])[0].shortfalls


def test_other_metrics_are_ignored():
    rows = curve(points=12)
    other = [row._replace(metric="effective rank", value=1e9) for row in rows]
    assert cell(rows + other).scores == pytest.approx([7.5])


@pytest.mark.parametrize(("task", "gap"), [("Hopper-v5", 10_000), ("dog-run", 20_000)])
def test_five_full_seeds_are_complete(task, gap):
    result = cell(curves(task, gap))
    assert result.shortfalls == ()
    assert result.complete
    assert [seed.env_steps for seed in result.seeds] == [50 * gap] * 5


def test_more_than_five_seeds_are_complete():
    assert cell(curves() + curve(seed=9)).complete


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (curves()[:150], "3 of 5 seeds"),
        (curves()[:-20], "seed 4 has 300,000 environment steps instead of 500,000"),
        (curves()[:-20], "and 30 points instead of 50"),
        (curves()[:7] + curves()[8:], "seed 0 has 49 points instead of 50"),
        (curves(gap=20_000), "seeds 0 to 4 have 1,000,000 environment steps instead of 500,000"),
        (curves("dog-run"), "seeds 0 to 4 have 500,000 environment steps instead of 1,000,000"),
        ([*curves(), Row("x", "Hopper-v5", 2, "return", 495_000, math.nan)], "of nan"),
    ],
)
def test_shortfalls(rows, text):
    result = cell(rows)
    assert not result.complete
    assert text in describe(result.shortfalls)


def test_score_of_a_short_curve_is_the_mean_of_all_points():
    assert cell(curve(points=3)).scores == pytest.approx([2.0])


def test_seed_without_evaluation_is_a_shortfall():
    result = cell(curves(), members=(("Hopper-v5", 0), ("Hopper-v5", 7)))
    assert describe(result.shortfalls) == "seed 7 has no evaluation"
    assert len(result.seeds) == 6
    assert len(result.scores) == 5


def test_task_without_evaluation_has_a_cell():
    wanted = (("Ant-v5", 0), ("Hopper-v5", 0))
    ant, hopper = make_cells([Results(TD7, curve(), wanted)])
    assert (ant.task, hopper.task) == ("Ant-v5", "Hopper-v5")
    assert len(ant.scores) == 0
    assert "seed 0 has no evaluation" in describe(ant.shortfalls)


def test_non_finite_score_is_kept():
    rows = curve(value=lambda n: math.nan if n == 45 else 1.0)
    np.testing.assert_array_equal(cell(rows).scores, [math.nan])


def test_results_of_unknown_settings_are_incomplete():
    result = cell(curves(), method=Method("td7"))
    assert describe(result.shortfalls) == "settings unknown (from an unknown source)"


def test_a_task_that_is_not_in_the_paper_lacks_nothing_of_the_paper():
    short = Method("td7", 3, (Override("warmup", "5", "25000"),))
    result = cell(curves("Pendulum-v1")[:7], method=short)
    assert result.complete
    assert not result.in_paper
    again = cell(curves("Pendulum-v1")[:7], method=short._replace(run="a"))
    assert "another run with the same settings" in describe(again.shortfalls)


def test_utd_that_is_not_in_the_paper_is_a_shortfall():
    result = cell(curves(), method=Method("td7", 3))
    assert describe(result.shortfalls) == "not in the paper: td7 at UTD 3"


def test_runs_of_one_method_are_combined():
    other = Method("td7", 1)
    result = make_cells(
        [Results(TD7, curve(seed=1)), Results(other, curve(seed=0)), Results(TD7, curve(seed=0))]
    )
    assert [one.method for one in result] == [TD7, other]
    assert [seed.seed for seed in result[0].seeds] == [0, 1]


def test_duplicate_rows_are_merged_and_contradictions_rejected():
    rows = curve(value=lambda n: math.nan if n == 3 else n)
    assert len(make_cells([Results(TD7, rows), Results(TD7, rows)])[0].seeds) == 1
    other = curve(value=lambda n: n + 1.0)
    with pytest.raises(UserError, match="seed 0 of td7, UTD 20 on Hopper-v5: expected one"):
        make_cells([Results(TD7, curve()), Results(TD7, other)])


def test_overrides_are_settings_that_differ_from_the_default():
    layers = {"agent": "td7+r2r2", "env": "Hopper-v5", "utd": 20, "seeds": 5}
    plain = default_config("td7+r2r2")
    result = run_results(resolve(layers), plain, curves())
    assert result.method == Method("td7+r2r2", 20)
    assert result.members == tuple(("Hopper-v5", seed) for seed in range(5))
    assert make_cells([result])[0].complete
    changed = {"steps": 30_000, "lambda-var": 0, "eval_episodes": 5}
    result = run_results(resolve(layers, changed), plain, curves())
    assert set(result.method.overrides) == {
        Override("steps", "30000", "500000"),
        Override("representation.lambda_var", "0.0", "0.01"),
        Override("eval_episodes", "5", "10"),
    }
    shortfalls = describe(make_cells([result])[0].shortfalls)
    assert all(str(override) in shortfalls for override in result.method.overrides)


def test_fields_without_influence_are_not_overrides():
    plain = default_config("td7")
    probe = DiagnosticsConfig(probe_batch=64)
    changes = {"log_every": 7, "precision": "tf32", "diagnostics": probe}
    config = dataclasses.replace(plain, env=("Ant-v5",), **changes)
    assert run_results(config, plain, [], "tf32").method == Method("td7", 1, precision="tf32")
