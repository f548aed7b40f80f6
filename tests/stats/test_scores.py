"""Scores of runs, and how a run that is not the paper's is told apart."""

import dataclasses
import math

import numpy as np
import pytest

from r2r2.config.errors import UserError
from r2r2.config.resolve import default_config, resolve
from r2r2.stats.scores import Method, Results, cells_of, results_of
from r2r2.storage.evaluations import Row

TD7 = Method("td7", 20)


def curve(task="Hopper-v5", seed=0, points=50, gap=10_000, value=float):
    """Evaluations at `points` even steps; by default the return is the number."""
    numbers = range(1, points + 1)
    return [Row("x", task, seed, "return", n * gap, value(n)) for n in numbers]


def five(task="Hopper-v5", gap=10_000):
    return [row for seed in range(5) for row in curve(task, seed, gap=gap)]


def cell(rows, method=TD7, members=()):
    (found,) = cells_of([Results(method, rows, members)])
    return found


def test_a_score_is_the_mean_of_the_last_ten_points_by_step():
    rows = curve(points=50)
    # 41 to 50, in whichever order they were written.
    assert cell(rows[::-1]).scores == pytest.approx([45.5])


def test_other_metrics_are_not_returns():
    rows = curve(points=12)
    other = [row._replace(metric="effective rank", value=1e9) for row in rows]
    assert cell(rows + other).scores == pytest.approx([7.5])


@pytest.mark.parametrize(("task", "gap"), [("Hopper-v5", 10_000), ("dog-run", 20_000)])
def test_five_whole_seeds_with_the_papers_settings_are_complete(task, gap):
    found = cell(five(task, gap))
    assert found.shortfalls == ()
    assert found.complete
    assert [seed.env_steps for seed in found.seeds] == [50 * gap] * 5


def test_more_seeds_are_complete_too():
    assert cell(five() + curve(seed=9)).complete


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (five()[:150], "3 of 5 seeds"),
        (five()[:-20], "seed 4 has 300,000 environment steps, not 500,000"),
        (five()[:-20], "seed 4 has 30 points, not 50"),
        (five()[:7] + five()[8:], "seed 0 has 49 points, not 50"),
        (five(gap=20_000), "seed 3 has 1,000,000 environment steps, not 500,000"),
        (five("dog-run"), "seed 0 has 500,000 environment steps, not 1,000,000"),
        (five("Pendulum-v1"), "the paper has no td7 at UTD 20 on Pendulum-v1"),
        ([*five(), Row("x", "Hopper-v5", 2, "return", 495_000, math.nan)], "of nan"),
    ],
)
def test_what_is_not_the_papers_says_so(rows, said):
    found = cell(rows)
    assert not found.complete
    assert said in "; ".join(found.shortfalls)


def test_a_short_curve_is_scored_by_what_it_has():
    assert cell(curve(points=3)).scores == pytest.approx([2.0])


def test_a_seed_that_was_never_evaluated_is_named():
    found = cell(five(), members=(("Hopper-v5", 0), ("Hopper-v5", 7)))
    assert found.shortfalls == ("seed 7 has no evaluation",)
    assert len(found.seeds) == 6
    assert len(found.scores) == 5


def test_a_task_that_was_never_evaluated_is_there():
    wanted = (("Ant-v5", 0), ("Hopper-v5", 0))
    ant, hopper = cells_of([Results(TD7, curve(), wanted)])
    assert (ant.task, hopper.task) == ("Ant-v5", "Hopper-v5")
    assert len(ant.scores) == 0
    assert "seed 0 has no evaluation" in ant.shortfalls


def test_a_score_that_is_not_finite_stays_among_the_scores():
    rows = curve(value=lambda n: math.nan if n == 45 else 1.0)
    np.testing.assert_array_equal(cell(rows).scores, [math.nan])


def test_results_without_settings_are_never_the_papers():
    found = cell(five(), method=Method("td7"))
    assert found.shortfalls == ("settings are not known",)


def test_a_utd_or_an_agent_that_the_paper_does_not_have_says_so():
    found = cell(five(), method=Method("td7", 3))
    assert found.shortfalls == ("the paper has no td7 at UTD 3 on Hopper-v5",)


def test_runs_of_a_method_come_together_and_methods_stay_apart():
    other = Method("td7", 1)
    found = cells_of(
        [
            Results(TD7, curve(seed=1)),
            Results(other, curve(seed=0)),
            Results(TD7, curve(seed=0)),
        ]
    )
    assert [one.method for one in found] == [TD7, other]
    assert [seed.seed for seed in found[0].seeds] == [0, 1]


def test_the_same_file_twice_is_one_and_a_contradiction_is_refused():
    rows = curve(value=lambda n: math.nan if n == 3 else n)
    assert len(cells_of([Results(TD7, rows), Results(TD7, rows)])[0].seeds) == 1
    other = curve(value=lambda n: n + 1.0)
    with pytest.raises(UserError, match="seed 0 of td7, UTD 20 on Hopper-v5 has two"):
        cells_of([Results(TD7, curve()), Results(TD7, other)])


def test_a_runs_settings_are_compared_with_its_agents_own():
    layers = {"agent": "td7+r2r2", "env": "Hopper-v5", "utd": 20, "seeds": 5}
    plain = default_config("td7+r2r2")
    found = results_of(resolve(layers), plain, five())
    assert found.method == Method("td7+r2r2", 20)
    assert found.members == tuple(("Hopper-v5", seed) for seed in range(5))
    assert cells_of([found])[0].complete
    changed = {"steps": 15_000, "lambda-var": 0, "eval_episodes": 5}
    found = results_of(resolve(layers, changed), plain, five())
    assert set(found.method.departures) == {
        "steps is 15000, not 500000",
        "representation.lambda_var is 0.0, not 0.01",
        "eval_episodes is 5, not 10",
    }
    assert set(found.method.departures) <= set(cells_of([found])[0].shortfalls)


def test_what_no_result_depends_on_is_no_departure():
    plain = default_config("td7")
    config = dataclasses.replace(plain, env=("Ant-v5",), log_every=7, env_timeout=1.0)
    assert results_of(config, plain, []).method.departures == ()
