"""Which logs of finished runs end too early."""

import pytest

from r2r2.config.run import RunConfig
from r2r2.report.load import cut_logs
from r2r2.report.study import MemberData
from r2r2.storage.evaluations import Row

CONFIG = RunConfig(steps=450, eval_every=200, eval_average=2, action_repeat=2)


def member(env_steps, stopped=""):
    return MemberData("a_s3", "a", 3, env_steps, 0, {}, (), (), stopped)


@pytest.mark.parametrize(("last", "cut"), [(798, True), (800, False), (900, False)])
def test_a_log_reaches_the_last_evaluation_that_was_due(last, cut):
    # Of 450 decisions, with one evaluation every 100, the last is at 400: 800 steps.
    ends = {("a", 3): f"a log that ends at environment step {last} of 900"}
    assert cut_logs(CONFIG, [], [member(last)]) == (ends if cut else {})


def test_a_stopped_member_is_held_to_its_own_evaluations_only():
    rows = [Row("x", "a", seed, "return", step, 1.0) for seed, step in ((3, 400),)]
    assert cut_logs(CONFIG, rows, [member(400, "a loss was not finite")]) == {}
    assert cut_logs(CONFIG, rows, [member(300, "a loss was not finite")])


def test_another_seeds_evaluations_say_nothing_of_a_log():
    rows = [Row("x", "a", 4, "return", 10**6, 1.0)]
    assert cut_logs(CONFIG, rows, [member(900)]) == {}
