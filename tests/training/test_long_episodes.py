"""Episodes that never end are reported, and block neither training nor evaluations."""

import numpy as np
import pytest
import toys
from runs import run, select

from r2r2.envs.make import time_limit_of
from r2r2.envs.spec import Member, Spec
from r2r2.envs.vector.pool import TakenRows
from r2r2.envs.vector.step_types import EnvFactory, StepResult
from r2r2.training.evaluation import MAX_EVAL_STEPS, EvalEpisodes, eval_slots
from r2r2.training.rollout import LONG_EPISODE, Rollout

MEMBERS = (Member("short", 0), Member("endless", 0))
WARNING = "env 'endless': an episode has not ended after 10000 decision steps; --max-episode-st"


def step(*ended):
    """Return a step of some slots whose episodes end or not."""
    size, zeros = len(ended), np.zeros((len(ended), 2))
    return StepResult(zeros, np.ones(size), np.zeros(size, bool), np.array(ended), zeros)


def rows(ended):
    """Return one row of each slot; `ended` says by slot whether its episode ends."""
    size, empty = len(ended), np.zeros((len(ended), 0))
    flags = np.zeros(size, bool), np.array([*ended.values()])
    return TakenRows(np.array([*ended]), np.ones(size), *flags, empty, empty, empty, ())


def test_long_training_episode_is_reported_with_its_task():
    rollout, actions = Rollout(MEMBERS, Spec(2, 1)), np.zeros((2, 1))
    members = np.array([0, 1])
    for _ in range(LONG_EPISODE - 1):
        rollout.record(members, actions, step(True, False))
    with pytest.warns(UserWarning, match=WARNING):
        rollout.record(members, actions, step(True, False))


def test_long_evaluation_episode_is_reported_and_counted_when_cut_off():
    episodes = EvalEpisodes(MEMBERS, range(2), 1, "evaluate")
    for member in range(2):
        episodes.begin(member, 0)
    assert [member for member, _ in episodes.record(rows({0: True, 1: False}))] == [0]
    for _ in range(LONG_EPISODE - 2):
        episodes.record(rows({1: False}))
    with pytest.warns(UserWarning, match=WARNING):
        episodes.record(rows({1: False}))
    # A checkpoint in between keeps the count.
    resumed = EvalEpisodes(MEMBERS, range(2), 1, "evaluate")
    resumed.restore(episodes.notes(), np.zeros((1, 2)))
    for _ in range(MAX_EVAL_STEPS - LONG_EPISODE - 1):
        resumed.record(rows({1: False}))
    ((member, returns),) = resumed.record(rows({1: True}))
    assert (member, returns.tolist()) == (1, [MAX_EVAL_STEPS])
    assert [episodes.cut_episodes(0), resumed.cut_episodes(1)] == [0, 1]


def test_only_tasks_without_a_time_limit_are_cut_off_and_only_in_evaluations():
    endless = EnvFactory("endless", 2, toys.Endless)
    factories = [EnvFactory("Pendulum-v1", 2), endless, endless._replace(max_steps=30)]
    slots = eval_slots([*MEMBERS, MEMBERS[1]], factories, 1)
    limits = [time_limit_of(slot.factory.build()) for slot in slots]
    assert limits == [200, 2 * MAX_EVAL_STEPS, 30]
    assert time_limit_of(endless.build()) is None


def test_endless_evaluation_blocks_nobody_and_is_marked(tmp_path, monkeypatch):
    monkeypatch.setattr("r2r2.training.evaluation.MAX_EVAL_STEPS", 50)
    tasks = "toys:Endless-v0,toys:Story-v0"
    changes = {"env": tasks, "agent.policy_checkpoints": False}
    result, events = run(tmp_path / "run", **changes)
    evaluations = [select(events, "evaluation", member.name) for member in result.members]
    assert [[e["decision_step"] for e in x] for x in evaluations] == [[20, 40, 60]] * 2
    assert [[e.get("cut") for e in x] for x in evaluations] == [[2, 2, 2], [None] * 3]
    assert evaluations[0][0]["mean"] == 50 * 51 / 2


def test_max_episode_steps_truncates_training_and_evaluation(tmp_path):
    result, events = run(tmp_path / "run", env="toys:Endless-v0", max_episode_steps=7)
    assert {e["length"] for e in select(events, "episode")} == {7}
    assert [e["mean"] for e in select(events, "evaluation")] == [28.0] * 3
    assert not any("cut" in e for e in events)
    assert "max_episode_steps = 7\n" in (result.folder.path / "config.toml").read_text()
