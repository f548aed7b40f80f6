"""Runs on a user's own environment: a class, a function, or one instance."""

import os

import numpy as np
import pytest
import toys
from runs import SMALL, run, select
from test_training import check_story

from r2r2 import UserError, api, evaluate_run, resolve, train
from r2r2.api import RunOptions
from r2r2.storage.evaluations import read_evaluations
from r2r2.storage.run_folder import read_manifest


@pytest.fixture(scope="module")
def by_id(tmp_path_factory):
    """A run on an environment that is named by its id."""
    return run(tmp_path_factory.mktemp("by_id") / "run", seeds=2)


@pytest.mark.parametrize(("own", "workers"), [(toys.Story, 2), (lambda: toys.Story(), 0)])
def test_class_or_function_trains_like_an_id(tmp_path, by_id, own, workers):
    theirs, expected = by_id
    ours, events = run(tmp_path / "run", own, workers, env="story", seeds=2)
    keys = ("event", "decision_step", "update_step")
    assert [[e[k] for k in keys] for e in events] == [[e[k] for k in keys] for e in expected]
    assert [member.name for member in ours.members] == ["story_s0", "story_s1"]
    np.testing.assert_array_equal(ours.returns, theirs.returns)
    evaluation = evaluate_run(ours.folder.path, episodes=3, env=own, workers=workers)
    np.testing.assert_array_equal(evaluation.returns, [[15, 15, 15]] * 2)


class Robot(toys.Story):
    """A single environment instance, which only its owner closes."""

    def __init__(self):
        super().__init__()
        self.closed = False

    def close(self):
        self.closed = True


@pytest.fixture(scope="module", params=[True, False])
def on_one_robot(tmp_path_factory, request):
    """A run on one instance, with its events and its fleet."""
    trainings, robot = [], Robot()

    class Kept(api.Training):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            trainings.append(self)

    path = tmp_path_factory.mktemp("robot") / "run"
    changes = {"env": "robot", "utd": 2, "agent.policy_checkpoints": request.param}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "Training", Kept)
        result, events = run(path, robot, **changes)
    assert not robot.closed
    return result, events, trainings[0].state.fleet


def test_one_environment_serves_training_and_evaluation(on_one_robot):
    """Its resets count episodes: evaluations run between those of training."""
    result, events, fleet = on_one_robot
    # Training plays episodes 0, 1, 2, 3 to step 21; 4 and 5 are the evaluation that
    # was due at 20, and training continues with 6.
    lengths = [e["length"] for e in select(events, "episode")]
    assert lengths[:5] == [5, 3, 8, 5, 5]
    evaluations = select(events, "evaluation")
    assert evaluations[0]["mean"] == (6 + 36) / 2
    assert [e["decision_step"] for e in evaluations] == [20, 40, 60]
    rows = read_evaluations(result.folder.evaluations)
    assert [row.env_step for row in rows] == [20, 40, 60]
    check_story(fleet, 0)


@pytest.mark.parametrize("checkpoints", [pytest.param(True, marks=pytest.mark.slow), False])
def test_one_environment_gives_the_same_as_several(tmp_path, checkpoints):
    """The starts of episodes depend on their seeds alone."""
    changes = {"env": "pace", "utd": 3, "agent.policy_checkpoints": checkpoints}
    _, shared = run(tmp_path / "shared", toys.OwnPace(), **changes)
    _, separate = run(tmp_path / "separate", toys.OwnPace, **changes)
    for kind, field in (("episode", "length"), ("evaluation", "mean")):
        ours, theirs = (select(events, kind) for events in (shared, separate))
        assert [e[field] for e in ours] == [e[field] for e in theirs]


@pytest.mark.parametrize(
    ("values", "own", "text"),
    [
        ({"seeds": 2}, Robot(), "seeds: expected one seed for an environment"),
        ({"env": "a,b"}, Robot, "env: expected one name for an environment"),
        ({}, 7, "env: expected a gymnasium.Env, its class"),
        ({}, dict, "env 'arm': expected a gymnasium.Env, got {}"),
    ],
)
def test_invalid_environment_is_refused(tmp_path, values, own, text):
    config = resolve(SMALL, {"env": "arm"}, values)
    with pytest.raises(UserError) as error:
        train(config, tmp_path / "run", env=own)
    assert str(error.value).startswith(text)
    assert not (tmp_path / "run").exists()


class Unclosable(toys.Story):
    """Fails when it is closed, but not in a trial."""

    used = 0

    def step(self, action):
        self.used += 1
        return super().step(action)

    def close(self):
        if self.used > 3:
            raise RuntimeError("the door is stuck")


def test_failure_to_close_does_not_lose_the_run(tmp_path):
    with pytest.warns(UserWarning, match="env 'arm': close failed: RuntimeError: the door"):
        result, _ = run(tmp_path / "run", Unclosable, env="arm")
    assert np.isfinite(result.returns).all()
    assert read_manifest(result.folder.path).status == "finished"


@pytest.mark.slow
def test_workers_report_what_they_cannot_close_and_that_fewer_are_used(tmp_path, capfd):
    messages, options = [], RunOptions(workers=999, checkpoint_every="never")
    config = resolve(SMALL, {"env": "arm", "steps": 20})
    result = train(
        config, tmp_path / "run", env=Unclosable, options=options, on_message=messages.append
    )
    assert result.folder.weights("arm_s0").exists()
    used = min(len(os.sched_getaffinity(0)), 3)
    limit = "at most one per core and one per environment"
    assert f"workers: using {used} of 999; {limit}" in messages
    warning = "r2r2: warning: env 'arm': close failed: RuntimeError: the door is stuck\n"
    assert warning in capfd.readouterr().err


def test_class_is_named_like_an_id(tmp_path):
    result, _ = run(tmp_path / "run", env="toys:Story", steps=20)
    assert [member.name for member in result.members] == ["toys.Story_s0"]
