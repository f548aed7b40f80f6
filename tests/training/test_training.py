"""The training loop: which members act, what is stored, how many updates are made."""

import collections
import dataclasses

import jax
import numpy as np
import pytest
import toys
from runs import SMALL, assert_same_results, assert_same_weights, prepared, run, select

from r2r2 import resolve, train
from r2r2.api import RunOptions
from r2r2.storage.evaluations import read_evaluations
from r2r2.storage.events import read_events


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run of two members with bursts between assessments."""
    return run(tmp_path_factory.mktemp("plain") / "run", seeds="3,5", utd=3)


def test_warmup_ends_with_an_episode(plain):
    # Episodes of 5, 3, 8 end at 5, 8, 16: the third ends the warm-up of 10.
    episodes = select(plain[1], "episode", "toys.Story-v0_s3")
    assert [e["random"] for e in episodes[:5]] == [True, True, True, False, False]
    assert [e["length"] for e in episodes[:4]] == [5, 3, 8, 5]
    assert [e["return"] for e in episodes[:3]] == [15.0, 6.0, 36.0]
    assert [e["decision_step"] for e in episodes[:3]] == [5, 8, 16]


def test_burst_is_utd_times_the_steps_since_the_last_one(plain):
    # Episodes from step 16 on are assessed; each passes or fails by itself, so the
    # updates at every end are utd x (start - 16).
    for event in select(plain[1], "episode"):
        start = event["decision_step"] - event["length"]
        assert event["update_step"] == 3 * max(0, start - 16)


def test_policies_are_checkpointed_when_they_are_no_worse(plain):
    events = select(plain[1], "policy_checkpoint", "toys.Story-v0_s5")
    # Assessed returns by end: 15 at 21, 6 at 24, 36 at 32, 15 at 37, 6 at 40, ...
    # 15 sets the bar, 6 fails, 36 passes and raises it; only the next 36 reaches it.
    assert [e["decision_step"] for e in events] == [21, 32, 48]


def test_evaluations_are_in_one_table(plain):
    result, events = plain
    rows = read_evaluations(result.folder.evaluations)
    assert collections.Counter((row.seed, row.env_step) for row in rows) == {
        (seed, step): 1 for seed in (3, 5) for step in (20, 40, 60)
    }
    assert {row.env_name for row in rows} == {"toys:Story-v0"}
    assert all(row.exp_name.startswith("small_agent.SLOPE") for row in rows)
    evaluations = select(events, "evaluation", "toys.Story-v0_s5")
    assert [e["decision_step"] for e in evaluations] == [20, 40, 60]
    assert result.returns.shape == (2,)


def test_losses_are_logged_and_finite(plain):
    losses = select(plain[1], "losses")
    assert losses
    assert all(np.isfinite(float(event["loss/critic"])) for event in losses)


def test_burst_pending_at_the_end_is_skipped_and_logged(tmp_path):
    # Episode ends: 5, 8, 16, 21, 24, 32: the run of 32 ends with one.
    _, events = run(tmp_path / "run", steps=32, utd=2)
    (end,) = select(events, "end")
    assert end["updates_not_made"] == 2 * 8
    assert end["update_step"] == 2 * 8


def test_points_may_average_several_evaluations(tmp_path):
    result, events = run(tmp_path / "run", eval_average=2, action_repeat=3)
    evaluations = select(events, "evaluation")
    assert [e["decision_step"] for e in evaluations] == list(range(10, 70, 10))
    rows = read_evaluations(result.folder.evaluations)
    assert [row.env_step for row in rows] == [60, 120, 180]
    means = [e["mean"] for e in evaluations]
    assert rows[1].value == pytest.approx((means[2] + means[3]) / 2)
    # Environment steps count the action repeat: 5, 3 and 8 of them are 2, 1 and 3
    # decisions, with the same returns.
    assert all(e["env_step"] == 3 * e["decision_step"] for e in events)
    episodes = select(events, "episode")[:3]
    assert [(e["length"], e["return"]) for e in episodes] == [(2, 15), (1, 6), (3, 36)]


@pytest.mark.parametrize(
    ("changes", "steps", "points"),
    [
        ({"steps": 15}, [15], [15]),
        ({"steps": 45}, [20, 40, 45], [20, 40, 45]),
        ({"steps": 35, "eval_average": 2}, [10, 20, 30, 35], [20, 35]),
    ],
)
def test_every_run_is_evaluated_at_its_end(tmp_path, changes, steps, points):
    progress = []
    options = RunOptions(workers=0, checkpoint_every="never")
    result = train(
        resolve(SMALL, changes), tmp_path / "run", options=options, on_progress=progress.append
    )
    evaluations = select(read_events(result.folder.events), "evaluation")
    assert [e["decision_step"] for e in evaluations] == steps
    rows = read_evaluations(result.folder.evaluations)
    assert [row.env_step for row in rows] == points
    since = [e["mean"] for e in evaluations if e["decision_step"] > (0, *points)[-2]]
    assert rows[-1].value == pytest.approx(np.mean(since))
    assert (progress[-1].point, progress[-1].returns[0]) == (points[-1], rows[-1].value)
    assert result.returns.tolist() == [rows[-1].value]


@pytest.mark.slow
def test_an_earlier_end_does_not_change_later_results(tmp_path):
    config = resolve(SMALL, {"env": "walks:Walk", "utd": 2, "eval_average": 2})
    often = RunOptions(workers=0, checkpoint_every="7")
    short = train(dataclasses.replace(config, steps=43), tmp_path / "run", options=often)
    before = read_evaluations(short.folder.evaluations)
    assert [row.env_step for row in before] == [20, 40, 43]
    longer = train(config, tmp_path / "run", options=often)
    whole = train(config, tmp_path / "whole", options=often)
    assert_same_weights(longer, whole)
    rows = read_evaluations(longer.folder.evaluations)
    assert rows == [*before, *read_evaluations(whole.folder.evaluations)[2:]]
    events = [read_events(x.folder.events) for x in (longer, whole)]
    means = [
        [x["mean"] for x in select(log, "evaluation") if x["decision_step"] != 43] for log in events
    ]
    assert means[0] == means[1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"steps": 18}, "none came due between the end of warm-up and the last step"),
        ({"random_only": True}, "the run is one of random actions only"),
        ({}, None),
    ],
)
def test_a_run_without_updates_says_so(tmp_path, changes, reason):
    messages, options = [], RunOptions(workers=0, checkpoint_every="never")
    config = resolve(SMALL, changes)
    result = train(config, tmp_path / "run", options=options, on_message=messages.append)
    expected = [f"no updates of toys.Story-v0_s0 were made: {reason}"] if reason else []
    assert messages == expected
    updates = [event["update_step"] for event in read_events(result.folder.events)]
    assert any(updates) == (reason is None)


@pytest.mark.parametrize("checkpoints", [pytest.param(True, marks=pytest.mark.slow), False])
def test_results_depend_on_neither_workers_nor_repetition(tmp_path, checkpoints):
    changes = {"env": "toys:OwnPace-v0", "seeds": 3, "utd": 2, "steps": 120}
    changes["agent.policy_checkpoints"] = checkpoints
    here, _ = run(tmp_path / "here", **changes)
    away, _ = run(tmp_path / "away", workers=2, **changes)
    assert_same_results(here, away)


@pytest.mark.slow
def test_a_single_environment_in_this_process_gives_the_same_as_a_worker(tmp_path):
    changes = {"env": "Pendulum-v1", "steps": 230, "warmup": 200, "eval_every": 230}
    changes |= {"agent.policy_checkpoints": False, "eval_episodes": 1}
    here, _ = run(tmp_path / "here", **changes)
    away, _ = run(tmp_path / "away", workers=2, **changes)
    assert_same_results(here, away)


def test_experience_does_not_depend_on_other_members(tmp_path):
    changes = {"env": "Pendulum-v1", "steps": 420, "random_only": True, "eval_every": 1_000}
    _, together = run(tmp_path / "together", seeds="4,9", **changes)
    _, alone = run(tmp_path / "alone", seeds="9,", **changes)
    ours, theirs, other = (
        [e["return"] for e in select(events, "episode", f"Pendulum-v1_s{seed}")]
        for events, seed in ((together, 9), (alone, 9), (together, 4))
    )
    assert ours == theirs
    assert ours != other


def test_replay_holds_every_transition(tmp_path):
    with prepared(tmp_path / "run", workers=2, seeds=2, utd=2) as (training, _):
        training.run(lambda _: None)
    fleet = training.state.fleet
    for member in (0, 1):
        check_story(fleet, member)


def check_story(fleet, member):
    """Check that the live rows are all transitions of `toys.Story`."""
    weights = np.asarray(fleet.learners.priorities.tree.weights)[member]
    rows = fleet.fetch_rows(member, 0)
    live, obs = np.flatnonzero(weights), rows["obs"]
    assert len(live) == 60
    np.testing.assert_array_equal(obs[live + 1], obs[live] + [[0, 1]])
    np.testing.assert_array_equal(rows["reward"][live], obs[live + 1][:, 1])
    lengths = np.array(toys.Story.lengths)[obs[live][:, 0].astype(int) % 3]
    ends = obs[live + 1][:, 1] == lengths
    terminated = rows["terminated"][live]
    np.testing.assert_array_equal(terminated, ends & (obs[live][:, 0] % 3 == 1))
    # Dead rows are the final observations, and the newest.
    dead = [row for row in range(live.max() + 1) if not weights[row]]
    final = [toys.Story.lengths[int(obs[row][0]) % 3] for row in dead]
    assert [obs[row][1] for row in dead] == final


class Watched:
    """A run of three members at their own pace, examined after every iteration.

    Attributes:
        stale: iteration and member, where a member acted on an old policy.
    """

    def __init__(self, path, **changes):
        values = {"env": "toys:OwnPace-v0", "seeds": 3, "utd": 3, "steps": 90}
        self.calls, self.stale, self.iterations, self.beside = [], [], 0, 0
        with prepared(path, **(values | changes)) as (self.training, folder):
            state = self.training.state
            start_calls = state.fleet.train

            def train_and_count(calls, done, *rest):
                self.calls += [(call, state.rollout.steps.copy()) for call in calls]
                start_calls(calls, done, *rest)

            state.fleet.train = train_and_count
            self.training.run(self.look)
        self.events = read_events(folder.events)

    def look(self, _) -> None:
        self.iterations += 1
        state, collecting = self.training.state, self.training.collecting()
        self.beside += bool(state.evals.busy and collecting)
        trained = state.agent.behavior_policy(state.fleet.states)
        acting = state.fleet.snapshot().policies
        pairs = [*zip(*map(jax.tree.leaves, (acting, trained)), strict=True)]
        for member in collecting:
            if any(not np.array_equal(ours[member], x[member]) for ours, x in pairs):
                self.stale.append((self.iterations, member))


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run in which some member always trains."""
    return Watched(tmp_path_factory.mktemp("watched") / "run", log_every=10)


def test_members_act_on_their_newest_policy(watched):
    assert watched.iterations > 90
    assert watched.stale == []


def test_losses_are_logged_while_some_member_always_trains(watched):
    logged = {e["decision_step"] for e in select(watched.events, "losses")}
    assert len(logged) >= 6


def test_training_continues_beside_evaluations(watched):
    assert watched.beside > 20


def test_members_keep_separate_counts(watched):
    for seed in range(3):
        member = f"toys.OwnPace-v0_s{seed}"
        episodes = select(watched.events, "episode", member)
        warm = next(e for e in episodes if e["decision_step"] >= 10)["decision_step"]
        for event in episodes:
            start = event["decision_step"] - event["length"]
            assert event["update_step"] == 3 * max(0, start - warm)
        steps = [e["decision_step"] for e in select(watched.events, "evaluation", member)]
        assert steps == [20, 40, 60, 80, 90]


@pytest.mark.parametrize("member", [0, 2])
def test_member_of_a_fleet_learns_the_same_as_alone(watched, tmp_path, member):
    changes = {"env": "toys:OwnPace-v0", "seeds": f"{member},", "utd": 3, "steps": 90}
    with prepared(tmp_path / "run", **changes) as (training, _):
        training.run(lambda _: None)
    fleet, alone = watched.training.state, training.state
    assert fleet.schedule.done[member] == alone.schedule.done[0] > 100
    states = (jax.tree.leaves(x.fleet.states) for x in (fleet, alone))
    for ours, theirs in zip(*states, strict=True):
        np.testing.assert_allclose(ours[member], theirs[0], rtol=1e-4, atol=1e-6)


def test_members_stay_in_lockstep_without_policy_checkpoints(tmp_path):
    changes = {"agent.policy_checkpoints": False, "utd": 4, "warmup": 20}
    watched = Watched(tmp_path / "run", **changes)
    for call, steps in watched.calls:
        assert len(set(steps.tolist())) == 1
        assert call.updates == 4
    assert {len(call.members) for call, _ in watched.calls} == {3}
    assert watched.stale == []
    assert not select(watched.events, "policy_checkpoint")
    assert not select(watched.events, "end")
    # Steps from 21 on cause updates, which come before the evaluation of the step.
    evaluations = select(watched.events, "evaluation", "toys.OwnPace-v0_s0")
    updates = [e["update_step"] for e in evaluations]
    assert updates == [0, 4 * 20, 4 * 40, 4 * 60, 4 * 70]


def test_evaluation_uses_the_policy_checkpoint_of_its_step(tmp_path):
    """Training may continue while the evaluation's episodes are still running."""
    changes = {"env": "toys:OwnPace-v0", "seeds": 2, "utd": 3}
    with prepared(tmp_path / "run", **changes) as (training, _):
        evals, expected, used = training.state.evals, {}, {}
        start = evals.start

        def start_and_copy(policies):
            for member, counts in evals.startable.items():
                expected[member, counts] = np.array(policies.policies[member])
            return start(policies)

        def look(_):
            saved = evals.saved()
            for member, *counts in saved.notes["counts"]:
                policy = saved.policies[0].policies[member]
                used[member, tuple(counts)] = np.array(policy)

        evals.start = start_and_copy
        training.run(look)
    assert len(used) == 6
    for key, policy in used.items():
        np.testing.assert_array_equal(policy, expected[key])


def test_several_tasks_are_one_fleet(tmp_path):
    env = "toys:Story-v0,toys:OwnPace-v0"
    result, _ = run(tmp_path / "run", None, env=env, seeds="1,")
    names = [member.name for member in result.members]
    assert names == ["toys.Story-v0_s1", "toys.OwnPace-v0_s1"]
    rows = read_evaluations(result.folder.evaluations)
    tasks = collections.Counter(row.env_name for row in rows)
    assert tasks == {"toys:Story-v0": 3, "toys:OwnPace-v0": 3}
