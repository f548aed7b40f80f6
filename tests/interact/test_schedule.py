"""Warm-up and what it leads to; bursts are in golden/test_policy_checkpoints.py."""

import numpy as np
import pytest

from r2r2.config.resolve import resolve
from r2r2.interact.rollout import Episode
from r2r2.interact.schedule import Schedule

LENGTH = 4  # of every episode


def owed_after_each_step(agent: str, warmup: int, steps: int, utd: int = 3, **changes):
    """What one member owes after each step, paid at once; and when it was warm."""
    values = {"env": "A-v0", "agent": agent, "warmup": warmup, "utd": utd, **changes}
    schedule = Schedule(resolve(values), size=1)
    owed, warm = [], []
    for step in range(steps):
        warm.append(bool(schedule.warm[0]))
        ended = step % LENGTH == LENGTH - 1
        episodes = [Episode(0, step // LENGTH, LENGTH, 1.0)] if ended else []
        schedule.after_step([0], np.array([step + 1]), episodes)
        owed.append(int(schedule.owed[0]))
        schedule.book([0], owed[-1])
    return owed, warm


@pytest.mark.parametrize("warmup", [0, 1, 6])
def test_minphi_acts_for_itself_from_step_number_warmup_on(warmup):
    owed, warm = owed_after_each_step("minphi", warmup, steps=10)
    assert warm == [False] * warmup + [True] * (10 - warmup)
    assert owed == [0] * warmup + [3] * (10 - warmup)


@pytest.mark.parametrize(("warmup", "end"), [(0, 4), (4, 4), (5, 8)])
def test_td7_finishes_the_episode_first(warmup, end):
    changes = {"agent.policy_checkpoints": False}
    owed, warm = owed_after_each_step("td7", warmup, steps=12, **changes)
    assert warm == [False] * end + [True] * (12 - end)
    assert owed == [0] * end + [3] * (12 - end)


def test_with_policy_checkpoints_a_burst_follows_an_episode():
    owed, _ = owed_after_each_step("td7", warmup=2, steps=12)
    assert owed == [0] * 7 + [12] + [0] * 3 + [12]


def test_a_run_ends_with_its_last_burst_forgiven_and_nothing_else():
    for agent, forgiven in (("td7", 5), ("minphi", 0)):
        schedule = Schedule(resolve({"env": "A-v0", "agent": agent}), size=1)
        schedule.owed[0] = 5
        assert schedule.forgive(0) == forgiven
        assert schedule.owed[0] == 5 - forgiven
