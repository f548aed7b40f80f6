"""Fleets as wholes: beside a member alone, in workers, on environments of one's own."""

import gymnasium
import jax
import numpy as np
import pytest
import toys
from test_training import TINY, named, prepared, run

from r2r2 import UserError, evaluate_run, resolve
from r2r2 import api as start
from r2r2.api import train
from r2r2.storage.evaluations import read_evaluations


def assert_same_runs(first, second):
    """Weights and evaluations of two results, to the bit."""
    for name in first.folder.members:
        ours, theirs = (np.load(r.folder.weights(name)) for r in (first, second))
        for key in ours.files:
            np.testing.assert_array_equal(ours[key], theirs[key])
    tables = [r.folder.evaluations.read_text() for r in (first, second)]
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("seeds", "checkpoints"),
    [(1, False), pytest.param(3, True, marks=pytest.mark.slow)],
)
def test_workers_change_nothing(tmp_path, seeds, checkpoints):
    changes = {"env": "toys:OwnPace-v0", "seeds": seeds, "utd": 2, "steps": 120}
    changes["agent.policy_checkpoints"] = checkpoints
    here, _ = run(tmp_path, "here", **changes)
    away, _ = run(tmp_path, "away", workers=2, **changes)
    assert_same_runs(here, away)


@pytest.mark.slow
@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_member_of_a_fleet_learns_what_it_would_alone(tmp_path, checkpoints):
    """Bursts of 8 to 116 updates, in float64; the data hardly hang on the actions."""
    values = {
        "env": "toys:OwnPace-v0",
        "utd": 4,
        "steps": 110,
        "agent.policy_checkpoints": checkpoints,
    }
    with jax.enable_x64(True):
        found = {}
        for seeds in ("3,4,5", "3,", "5,"):
            config = resolve(TINY, values, {"seeds": seeds})
            with prepared(config, tmp_path / seeds) as (training, _):
                training.run(lambda _: None)
            found[seeds] = training
        fleet = found["3,4,5"]
        for place, seeds in ((0, "3,"), (2, "5,")):
            alone = found[seeds]
            assert fleet._schedule.made[place] == alone._schedule.made[0] > 200
            for ours, theirs in zip(
                jax.tree.leaves(fleet._fleet.states),
                jax.tree.leaves(alone._fleet.states),
                strict=True,
            ):
                np.testing.assert_allclose(ours[place], theirs[0], 1e-7, 1e-9)


def test_training_goes_on_beside_an_evaluation(tmp_path):
    """Every evaluation is of its own step, yet nobody waits for its end."""
    config = resolve(TINY, {"env": "toys:OwnPace-v0", "seeds": 2, "steps": 60})
    turns = beside = 0

    def look(_):
        nonlocal turns, beside
        turns += 1
        if training.state.evals.busy and training.collecting():
            beside += 1

    with prepared(config, tmp_path / "run") as (training, _):
        training.run(look)
    # Three evaluations of each member, of episodes of 2 to 29 steps.
    assert beside > 20


def test_an_evaluation_is_of_the_policy_checkpoint_as_of_its_step(tmp_path):
    """Whatever training does to it while its episodes are still played."""
    config = resolve(TINY, {"env": "toys:OwnPace-v0", "seeds": 2, "steps": 60})
    with prepared(config, tmp_path / "run") as (training, _):
        points, expected, used = training.state.evals, {}, {}
        begin = points._evaluator.begin

        def begin_and_keep(pool, members, evaluated, first):
            for member, number in zip(members, first, strict=True):
                leaves = jax.tree.leaves(evaluated.policies)
                expected[member, number] = [np.array(x[member]) for x in leaves]
            return begin(pool, members, evaluated, first)

        def look(_):
            policies = points._evaluator._policies
            for member in points._evaluator.busy:
                number = 2 * (int(points._started[member]) - 1)
                leaves = [np.array(x[member]) for x in jax.tree.leaves(policies)]
                used[member, number] = leaves

        points._evaluator.begin = begin_and_keep
        training.run(look)
    assert len(used) == 6
    for key, leaves in used.items():
        for ours, theirs in zip(leaves, expected[key], strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.fixture(scope="module")
def by_id(tmp_path_factory):
    return run(tmp_path_factory.mktemp("by_id"), seeds=2)


@pytest.mark.parametrize(
    ("own", "workers"), [(toys.Story, 2), (lambda: toys.Story(), 0)]
)
def test_a_class_or_a_function_is_trained_like_its_id(tmp_path, by_id, own, workers):
    theirs, expected = by_id
    ours, events = run(tmp_path, "own", workers, own, env="story", seeds=2)
    key = ("event", "decision_step", "update_step")
    assert [[e[k] for k in key] for e in events] == [
        [e[k] for k in key] for e in expected
    ]
    assert [member.name for member in ours.members] == ["story_s0", "story_s1"]
    np.testing.assert_array_equal(ours.returns, theirs.returns)
    found = evaluate_run(ours.folder.path, episodes=3, env=own, workers=workers)
    np.testing.assert_array_equal(found.returns, [[15, 15, 15]] * 2)


class Robot(toys.Story):
    """There is one of it, and it is its owner's to close."""

    def __init__(self):
        super().__init__()
        self.closed = False

    def close(self):
        self.closed = True


@pytest.mark.parametrize("checkpoints", [True, False])
def test_one_environment_serves_training_and_evaluation(tmp_path, checkpoints):
    robot = Robot()
    config = resolve(
        TINY, {"env": "robot", "utd": 2, "agent.policy_checkpoints": checkpoints}
    )
    result = train(config, tmp_path / "run", env=robot)
    assert not robot.closed
    rows = read_evaluations(result.folder.evaluations)
    assert [row.env_step for row in rows] == [20, 40, 60]


@pytest.fixture(scope="module")
def on_one_robot(tmp_path_factory):
    """What is told of a run on an environment that was lent, and its fleet."""
    found = []

    class Kept(start.Training):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            found.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "Training", Kept)
        _, events = run(tmp_path_factory.mktemp("robot"), own=Robot(), env="robot")
    return events, found[0].state.fleet


def test_an_episode_is_not_cut_by_an_evaluation_on_the_same_environment(on_one_robot):
    """Its resets count the episodes: evaluations come between those of training."""
    events, _ = on_one_robot
    # Training plays episodes 0, 1, 2, 3 to step 21; then 4 and 5 are the evaluation
    # that was due at 20, and training goes on with 6.
    lengths = [e["length"] for e in named(events, "episode")]
    assert lengths[:5] == [5, 3, 8, 5, 5]
    evaluations = named(events, "evaluation")
    assert [e["mean"] for e in evaluations[:1]] == [(6 + 36) / 2]
    assert [e["decision_step"] for e in evaluations] == [20, 40, 60]


def test_what_is_stored_from_one_environment_is_what_happened(on_one_robot):
    _, fleet = on_one_robot
    live = np.flatnonzero(np.asarray(fleet.learners.priorities.tree.weights)[0])
    obs = np.asarray(fleet._rows.obs[0])
    assert len(live) == 60
    np.testing.assert_array_equal(obs[live + 1], obs[live] + [[0, 1]])


@pytest.mark.parametrize("checkpoints", [True, False])
def test_one_environment_gives_what_many_do(tmp_path, checkpoints):
    """Bursts, during which nobody collects, included; starts are seeds' alone."""
    changes = {"env": "pace", "utd": 3, "agent.policy_checkpoints": checkpoints}
    _, lent = run(tmp_path, "lent", 0, toys.OwnPace(), **changes)
    _, made = run(tmp_path, "made", 0, toys.OwnPace, **changes)
    for kind, field in (("episode", "length"), ("evaluation", "mean")):
        ours, theirs = (named(events, kind) for events in (lent, made))
        assert [e[field] for e in ours] == [e[field] for e in theirs]


@pytest.mark.parametrize(
    ("values", "own", "sentence"),
    [
        ({"seeds": 2}, Robot(), "seeds: expected one seed for an environment"),
        ({"env": "a,b"}, Robot, "env: expected one name for an environment"),
        ({}, 7, "env: expected a gymnasium.Env, its class"),
        ({}, dict, "env 'arm': expected a gymnasium.Env, got {}"),
    ],
)
def test_what_is_no_environment_is_refused(tmp_path, values, own, sentence):
    config = resolve(TINY, {"env": "arm"}, values)
    with pytest.raises(UserError) as refusal:
        train(config, tmp_path / "run", env=own)
    assert str(refusal.value).startswith(sentence)
    assert not (tmp_path / "run").exists()


def test_a_class_is_named_on_the_command_line_as_an_id_is(tmp_path):
    result, _ = run(tmp_path, env="toys:Story")
    assert isinstance(toys.Story(), gymnasium.Env)
    assert [member.name for member in result.members] == ["toys.Story_s0"]
