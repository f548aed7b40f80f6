"""The loop: who acts when, what is stored, how many updates are made."""

import collections
import contextlib

import jax
import numpy as np
import pytest

from r2r2 import resolve, train
from r2r2.api import RunOptions, make_pool
from r2r2.storage.evaluations import read_evaluations
from r2r2.storage.events import read_events
from r2r2.storage.run_folder import create_run
from r2r2.training.loop import Training
from r2r2.training.run_config import finalize_config, fleet_members
from r2r2.training.run_log import RunLog

TINY = {
    "agent.width": 8,
    "agent.latent": 8,
    "agent.batch_size": 4,
    "agent.target_period": 10,
    "steps": 60,
    "warmup": 10,
    "eval_every": 20,
    "eval_episodes": 2,
    "log_every": 20,
}


def run(tmp_path, name="run", workers=0, own=None, **changes):
    config = resolve(TINY, {"env": "toys:Story-v0", **changes})
    result = train(
        config, tmp_path / name, env=own, options=RunOptions(workers=workers)
    )
    return result, read_events(result.folder.events)


@contextlib.contextmanager
def prepared(config, path, workers=0):
    """A training that is ready to run, for looking inside."""
    config, how = finalize_config(config), RunOptions(workers=workers)
    members = fleet_members(config)
    folder = create_run(path, "", [member.name for member in members], False)
    with (
        make_pool(config, options=how) as pool,
        RunLog(config, folder, members, "name") as journal,
    ):
        training = Training(config, pool, journal)
        training.begin()
        yield training, folder


def named(events, kind, member=None):
    wanted = [event for event in events if event["event"] == kind]
    return [e for e in wanted if member is None or e["member"] == member]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What is told of a run of one member."""
    return run(tmp_path_factory.mktemp("plain"))[1]


def test_warm_up_ends_with_the_first_episode_that_ends_at_or_after_it(plain):
    # Episodes of 5, 3, 8 end at 5, 8, 16: the third ends the warm-up of 10.
    episodes = named(plain, "episode")
    assert [e["random"] for e in episodes[:5]] == [True, True, True, False, False]
    assert [e["length"] for e in episodes[:4]] == [5, 3, 8, 5]
    assert [e["return"] for e in episodes[:3]] == [15.0, 6.0, 36.0]
    assert [e["decision_step"] for e in episodes[:3]] == [5, 8, 16]


@pytest.mark.parametrize("utd", [3, 4])
def test_bursts_are_the_steps_since_the_last_one_times_utd(tmp_path, utd):
    _, events = run(tmp_path, utd=utd)
    # Assessed are the episodes from step 16 on; each is long enough to be kept or
    # dropped by itself, so at every end the updates made are utd x (end - 16) ...
    for event in named(events, "episode"):
        start = event["decision_step"] - event["length"]
        assert event["update_step"] == utd * max(0, start - 16)
    # ... but for a burst still owed at the last step, which is said.
    last = named(events, "episode")[-1]
    if last["decision_step"] == 60:
        assert named(events, "end")[0]["updates_not_made"] == utd * last["length"]


def test_a_burst_owed_at_the_end_is_not_made_and_the_log_says_how_many(tmp_path):
    # Episode ends: 5, 8, 16, 21, 24, 32: the run of 32 ends with one.
    _, events = run(tmp_path, steps=32, utd=2)
    (end,) = named(events, "end")
    assert end["updates_not_made"] == 2 * 8
    assert end["update_step"] == 2 * 8


def test_without_policy_checkpoints_every_step_is_followed_by_its_updates(tmp_path):
    _, events = run(tmp_path, utd=3, **{"agent.policy_checkpoints": False})
    assert not named(events, "policy_checkpoint")
    assert not named(events, "end")
    # Trained on are steps 17 to 60.
    evaluations = named(events, "evaluation")
    assert [e["update_step"] for e in evaluations] == [3 * 4, 3 * 24, 3 * 44]


def test_policies_are_kept_when_they_are_no_worse(plain):
    kept = [e["decision_step"] for e in named(plain, "policy_checkpoint")]
    # Assessed returns by end: 15 at 21, 6 at 24, 36 at 32, 15 at 37, 6 at 40, ...
    # 15 sets the bar, 6 falls below, 36 passes and raises it, nothing reaches it but
    # the next 36, at 48.
    assert kept == [21, 32, 48]


def test_evaluations_come_at_their_steps_into_one_long_table(tmp_path):
    result, events = run(tmp_path, seeds="3,5")
    rows = read_evaluations(result.folder.evaluations)
    assert collections.Counter(rows_at(rows)) == {
        (seed, step): 1 for seed in (3, 5) for step in (20, 40, 60)
    }
    assert {row.env_name for row in rows} == {"toys:Story-v0"}
    assert {row.exp_name.split("_")[0] for row in rows} == {"td7+r2r2"}
    assert "action_repeat" not in rows[0].exp_name
    assert [
        e["decision_step"] for e in named(events, "evaluation", "toys.Story-v0_s5")
    ] == [
        20,
        40,
        60,
    ]
    assert result.returns.shape == (2,)


def rows_at(rows):
    return [(row.seed, row.env_step) for row in rows]


def test_a_point_may_average_several_evaluations(tmp_path):
    result, events = run(tmp_path, eval_average=2)
    assert [e["decision_step"] for e in named(events, "evaluation")] == list(
        range(10, 70, 10)
    )
    rows = read_evaluations(result.folder.evaluations)
    assert [row.env_step for row in rows] == [20, 40, 60]
    means = [e["mean"] for e in named(events, "evaluation")]
    assert rows[1].value == pytest.approx((means[2] + means[3]) / 2)


def test_env_steps_count_the_action_repeat(tmp_path):
    _, events = run(tmp_path, action_repeat=3, steps=40)
    assert all(e["env_step"] == 3 * e["decision_step"] for e in events)
    # 5, 3 and 8 environment steps are 2, 1 and 3 decisions; the sums are the same.
    episodes = named(events, "episode")[:3]
    assert [(e["length"], e["return"]) for e in episodes] == [(2, 15), (1, 6), (3, 36)]


@pytest.mark.slow
@pytest.mark.parametrize("checkpoints", [True, False])
def test_the_same_run_again_is_the_same_to_the_bit(tmp_path, checkpoints):
    changes = {"env": "toys:OwnPace-v0", "seeds": 3, "utd": 2}
    changes["agent.policy_checkpoints"] = checkpoints
    first, _ = run(tmp_path, "first", **changes)
    again, _ = run(tmp_path, "again", **changes)
    for name in first.folder.members:
        ours, theirs = (np.load(r.folder.weights(name)) for r in (first, again))
        for key in ours.files:
            np.testing.assert_array_equal(ours[key], theirs[key])
    tables = [r.folder.evaluations.read_text() for r in (first, again)]
    assert tables[0] == tables[1]


@pytest.mark.slow
def test_members_out_of_step_each_keep_their_own_account(tmp_path):
    _, events = run(tmp_path, env="toys:OwnPace-v0", seeds=4, utd=3, steps=150)
    for seed in range(4):
        member = f"toys.OwnPace-v0_s{seed}"
        episodes = named(events, "episode", member)
        warm = next(e for e in episodes if e["decision_step"] >= 10)["decision_step"]
        for event in episodes:
            start = event["decision_step"] - event["length"]
            assert event["update_step"] == 3 * max(0, start - warm)
        steps = [e["decision_step"] for e in named(events, "evaluation", member)]
        assert steps == list(range(20, 160, 20))


def test_a_members_experience_is_its_own(tmp_path):
    """Its random actions, resets and episodes do not change with its neighbours."""
    changes = {"env": "Pendulum-v1", "steps": 420, "warmup": 1_000, "eval_every": 1_000}
    _, together = run(tmp_path, "together", seeds="4,9", **changes)
    _, alone = run(tmp_path, "alone", seeds="9,", **changes)
    ours = named(together, "episode", "Pendulum-v1_s9")
    theirs = named(alone, "episode", "Pendulum-v1_s9")
    assert [e["return"] for e in ours] == [e["return"] for e in theirs]
    neighbour = named(together, "episode", "Pendulum-v1_s4")
    assert [e["return"] for e in ours] != [e["return"] for e in neighbour]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_stored_is_what_happened(tmp_path, workers):
    """Every live row of the ring is a transition of the story, and none is missing."""
    config = resolve(TINY, {"env": "toys:Story-v0", "seeds": 2, "utd": 2})
    with prepared(config, tmp_path / "run", workers) as (training, _):
        training.run(lambda _: None)
    fleet = training.state.fleet
    weights, rows = np.asarray(fleet.learners.priorities.tree.weights), fleet._rows
    for member in (0, 1):
        live = np.flatnonzero(weights[member])
        obs = np.asarray(rows.obs[member])
        assert len(live) == 60
        np.testing.assert_array_equal(obs[live + 1], obs[live] + [[0, 1]])
        reward = np.asarray(rows.reward[member])[live]
        np.testing.assert_array_equal(reward, obs[live + 1][:, 1])
        lengths = np.array([5, 3, 8])[obs[live][:, 0].astype(int) % 3]
        ends = obs[live + 1][:, 1] == lengths
        terminated = np.asarray(rows.terminated[member])[live]
        np.testing.assert_array_equal(terminated, ends & (obs[live][:, 0] % 3 == 1))
        # Dead rows are the final observations, and the newest.
        dead = [row for row in range(live.max() + 1) if not weights[member, row]]
        assert [obs[row][1] for row in dead] == [
            (5, 3, 8)[int(obs[row][0]) % 3] for row in dead
        ]


class Watched:
    """A run of three members at their own pace, looked at after every turn.

    Attributes:
        stale: turn and member, where somebody acted on other than it had learnt.
    """

    def __init__(self, tmp_path, **changes):
        values = {
            "env": "toys:OwnPace-v0",
            "seeds": 3,
            "utd": 3,
            "steps": 90,
            **changes,
        }
        self.calls, self.stale, self.turns = [], [], 0
        config = resolve(TINY, values)
        with prepared(config, tmp_path / "run") as (self.training, folder):
            train_call = self.training.state.fleet.train

            def train_and_count(call, made, scales):
                self.calls.append((call, self.training.state.rollout.steps.copy()))
                train_call(call, made, scales)

            self.training.state.fleet.train = train_and_count
            self.training.run(self.look)
        self.events = read_events(folder.events)

    def look(self, _) -> None:
        self.turns += 1
        training, fleet = self.training, self.training.state.fleet
        trained = fleet._agent.behavior_policy(fleet.states)
        pairs = [*zip(*map(jax.tree.leaves, (fleet._policies, trained)), strict=True)]
        for member in training.collecting():
            if any(not np.array_equal(ours[member], x[member]) for ours, x in pairs):
                self.stale.append((self.turns, member))


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run in which somebody always trains."""
    return Watched(tmp_path_factory.mktemp("watched"), log_every=10)


def test_who_acts_acts_on_what_it_has_learnt(watched):
    assert watched.turns > 90
    assert watched.stale == []


def test_losses_are_logged_also_when_somebody_always_trains(watched):
    logged = {e["decision_step"] for e in named(watched.events, "losses")}
    assert len(logged) >= 6


@pytest.mark.slow
def test_who_learns_after_every_step_acts_on_it_too(tmp_path):
    watched = Watched(tmp_path, **{"agent.policy_checkpoints": False})
    assert watched.turns > 90
    assert watched.stale == []


def test_without_policy_checkpoints_members_stay_in_lockstep(tmp_path):
    """Also those whose warm-up ended at different steps; all in one call."""
    changes = {"agent.policy_checkpoints": False, "utd": 4, "warmup": 20}
    watched = Watched(tmp_path, **changes)
    for call, steps in watched.calls:
        assert len(set(steps.tolist())) == 1
        assert call.updates == 4
    assert {len(call.members) for call, _ in watched.calls[-30:]} == {3}
    assert watched.stale == []


def test_several_tasks_of_equal_sizes_are_one_fleet(tmp_path):
    result, _ = run(tmp_path, env="toys:Story-v0,toys:OwnPace-v0", seeds="1,")
    names = [member.name for member in result.members]
    assert names == ["toys.Story-v0_s1", "toys.OwnPace-v0_s1"]
    rows = read_evaluations(result.folder.evaluations)
    tasks = collections.Counter(row.env_name for row in rows)
    assert tasks == {"toys:Story-v0": 3, "toys:OwnPace-v0": 3}


def test_losses_are_logged_and_finite(plain):
    losses = named(plain, "losses")
    assert losses
    for name in ("loss/critic", "loss/encoder", "representation/redundancy"):
        assert all(np.isfinite(float(event[name])) for event in losses)
