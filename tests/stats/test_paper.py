"""The paper's numbers, and how far its aggregates follow from its tables."""

import functools

import numpy as np
import pytest

from r2r2.config.agents import AGENTS
from r2r2.config.errors import UserError
from r2r2.config.run import RunConfig
from r2r2.envs.suites import ACTION_REPEAT, PAPER_TASKS
from r2r2.stats import paper, scores
from r2r2.stats.aggregates import iqm, mean_score
from r2r2.stats.bootstrap import interval
from r2r2.stats.paper import CellKey, MeanStd
from r2r2.stats.suites import normalise_scores

TABLES = (paper.raw_scores(), paper.normalized_scores())
MEANS = [one for one in paper.aggregates() if one.statistic == "mean"]
IQMS = [one for one in paper.aggregates() if one.statistic == "iqm"]


def suite_seeds(one):
    """Return five scores per task with the table's mean and deviation."""
    table = paper.normalized_scores()
    tasks = paper.tasks(one.suite)
    return {t: paper.synthetic_seeds(table[CellKey(t, one.agent, one.utd)]) for t in tasks}


@functools.cache
def width_ratios(resampling):
    """Return the ratios of published interval widths to ours of synthetic seeds."""
    result = []
    for one in MEANS:
        rng = np.random.default_rng(0)
        low, high = interval(mean_score, suite_seeds(one), rng, resampling, 1000)
        result.append((one.high - one.low) / (high - low))
    return np.array(result)


def test_every_agent_has_every_task_at_every_utd():
    wanted = {CellKey(t, a, u) for t in PAPER_TASKS for a in AGENTS for u in (1, 10, 20)}
    for table in TABLES:
        assert set(table) == wanted


def test_tasks_and_steps_match_the_environments():
    repeat = {t: ACTION_REPEAT[task.suite] for t, task in PAPER_TASKS.items()}
    assert set(paper.tasks()) == set(repeat)
    for task, times in repeat.items():
        assert scores.ACTION_REPEAT[paper.find_suite(task)] == times
    assert [len(paper.tasks(suite)) for suite in paper.SUITES] == [4, 7]
    config = RunConfig()
    assert config.steps == scores.DECISION_STEPS == scores.POINTS * config.eval_every


def test_published_numbers():
    assert len(MEANS) == 81
    assert len(IQMS) == 27
    (one,) = [x for x in MEANS if x[:4] == ("dmc-hard", "mean", "td7+r2r2", 20)]
    assert (one.value, one.low, one.high, one.in_main_table) == (1.32, 1.14, 1.51, True)
    assert not any(x.in_main_table for x in IQMS)
    assert paper.raw_scores()[CellKey("dog-trot", "td7", 20)] == MeanStd(206.7, 40.1)
    assert [time.seconds for time in paper.training_times()] == [0.417, 0.465, 0.21, 0.235, 0.241]
    assert {time.task for time in paper.training_times()} == {"Humanoid-v5"}


def test_unknown_suite_is_rejected():
    with pytest.raises(UserError, match=r"suite: expected one of gym-mujoco, .* got 'atari'"):
        paper.tasks("atari")


def test_published_means_follow_from_the_normalized_table():
    off = [abs(mean_score(suite_seeds(one)) - one.value) for one in MEANS]
    # Half a unit of the last digit in the table and in the aggregate.
    assert max(off) < 0.01
    assert np.mean(np.array(off) < 0.005001) > 0.9


def test_normalized_table_follows_from_the_raw_table():
    for which, printed in paper.normalized_scores().items():
        base = CellKey(which.task, paper.BASES[which.agent], 1)
        raw, level = paper.raw_scores()[which], paper.raw_scores()[base].mean
        # All that could have been rounded to what is printed, to one digit.
        ends = [
            (normalise_scores(raw.mean + a, level + b), (raw.std + a) / (level + b))
            for a in (-0.05, 0.05)
            for b in (-0.05, 0.05)
        ]
        for place, number in enumerate(printed):
            low, high = np.min(ends, axis=0)[place], np.max(ends, axis=0)[place]
            # To three digits first, and then to two.
            assert low - 0.0055 <= number <= high + 0.0055, which


def test_published_intervals_of_means_are_pooled():
    pooled, stratified = width_ratios("pooled"), width_ratios("stratified")
    assert np.median(pooled) == pytest.approx(1.01, abs=0.03)
    assert np.quantile(pooled, [0.1, 0.9]) == pytest.approx([0.95, 1.05], abs=0.04)
    assert np.median(stratified) == pytest.approx(1.95, abs=0.1)
    assert stratified.max() > 5


def test_published_iqms_are_near_those_of_synthetic_seeds():
    off = [abs(iqm(suite_seeds(one)) - one.value) for one in IQMS]
    assert max(off) < 0.05
    assert np.median(off) < 0.011


def test_synthetic_seeds_have_the_given_mean_and_deviation():
    result = paper.synthetic_seeds(MeanStd(3.0, 0.5))
    assert len(result) == 5
    assert result.mean() == pytest.approx(3.0)
    assert result.std(ddof=1) == pytest.approx(0.5)
