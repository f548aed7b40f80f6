"""Runs in which environments fail and losses blow up; an agent of a few numbers."""

import collections
import functools
import itertools
import json

import fragile
import jax
import numpy as np
import pytest
import slope

from r2r2 import api as start
from r2r2 import resolve, train
from r2r2.api import RunOptions, evaluate_run
from r2r2.envs.errors import Fault
from r2r2.envs.make import episode_seed
from r2r2.storage.evaluations import read_evaluations
from r2r2.storage.events import read_events

TINY = {
    "steps": 60,
    "warmup": 10,
    "utd": 2,
    "eval_every": 20,
    "eval_episodes": 2,
    "log_every": 20,
}
LIMIT = {"agent.discount": 0.9}
FAULTS = ("episode_dropped", "evaluation_repeated", "stopped")


@pytest.fixture(autouse=True)
def small_agent(monkeypatch, request):
    """Compiled hastily, as it runs for a moment; slow tests have real ones."""
    if "slow" in request.keywords:
        yield
        return

    def made(config, spec, utd):
        return slope.slope(*spec, normalises=config.name.startswith("simba"))

    for module in ("run.train", "run.memory", "use.evaluate"):
        monkeypatch.setattr(f"r2r2.{module}.make_agent", made)
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


class Ran:
    """A run that is over, with a look inside."""

    def __init__(self, path, tasks, own=None, every="never", workers=0, **changes):
        env = ",".join(f"fragile:{task}-v0" for task in tasks)
        look = changes.pop("look", lambda ran, progress: None)
        config = resolve(TINY, {"agent": "minphi", "env": env, **changes})
        how = RunOptions(workers=workers, checkpoint_every=every)
        plain = start.Training

        def kept(*arguments):
            self.training = plain(*arguments)
            return self.training

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(start, "Training", kept)
            watch = functools.partial(look, self)
            self.result = train(config, path, env=own, on_progress=watch, options=how)
        self.folder = self.result.folder
        self.events = read_events(self.folder.events)

    def named(self, task, *kinds):
        member = f"fragile.{task}-v0_s0"
        ours = [e for e in self.events if e["member"] == member]
        return [e for e in ours if e["event"] in kinds] if kinds else ours

    def told(self, task, *kinds):
        """What happened to a member and when, but for the clock and its name."""
        events = self.named(task, *kinds)
        return [{k: v for k, v in e.items() if k not in "time member"} for e in events]

    def weights(self, task):
        with np.load(self.folder.weights(f"fragile.{task}-v0_s0")) as arrays:
            return {name: arrays[name] for name in arrays.files}

    def transitions(self, member):
        """Each live row: observation, action, reward, next observation."""
        fleet = self.training.state.fleet
        weights = np.asarray(fleet.learners.priorities.tree.weights)[member]
        live = np.flatnonzero(weights)
        obs, action, reward, _ = (np.asarray(x)[member] for x in fleet._rows)
        return obs[live], action[live, 0], reward[live], obs[live + 1]

    def dead(self, member):
        """The observations of the rows that are never drawn, but for the newest."""
        fleet = self.training.state.fleet
        weights = np.asarray(fleet.learners.priorities.tree.weights)[member]
        rows = np.flatnonzero(weights == 0)
        rows = rows[rows < int(fleet._newest[member])]
        return np.asarray(fleet._rows.obs)[member, rows].tolist()


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])


def number(index):
    """What an observation calls a training episode of seed 0."""
    return episode_seed(0, "train", index) % 997


def check_rows(ran, member, dropped):
    """Every live row is a transition of one episode; none is of what failed."""
    obs, action, reward, after = ran.transitions(member)
    assert len(obs) == TINY["steps"]
    np.testing.assert_array_equal(after - obs, np.tile([0.0, 1.0], (len(obs), 1)))
    np.testing.assert_allclose(reward, after[:, 1] + action, rtol=1e-6)
    of = collections.Counter(obs[:, 0].astype(int).tolist())
    # The step before the one that failed is kept, and that one is not.
    assert of[number(fragile.FATAL)] == (fragile.WHEN - 1 if dropped else of[number(3)])
    assert of[number(fragile.FATAL + 1)] > fragile.WHEN
    last = [number(fragile.FATAL), fragile.WHEN - 1]
    assert (last in ran.dead(member)) == dropped


class Collected:
    """The rewards that statistics were told, by member."""

    def __init__(self, patch):
        self.by = collections.defaultdict(list)
        from r2r2.replay.normalizer import Normalizer

        collect = Normalizer.collect

        def collect_and_note(normaliser, members, reward, ended):
            for place, member in enumerate(members):
                self.by[member].append((float(reward[place]), bool(ended[place])))
            collect(normaliser, members, reward, ended)

        patch.setattr(Normalizer, "collect", collect_and_note)


def test_a_failing_environment_costs_its_member_an_episode_and_nobody_else(
    tmp_path, monkeypatch
):
    collected = Collected(monkeypatch)
    kinds = ["Raises", "BlindObs", "BlindReward", "Misshapen"]
    failing = Ran(tmp_path / "failing", ["Calm", *kinds], agent="simbav2", **LIMIT)
    assert not failing.result.stopped
    whys = [
        "RuntimeError: the motor is hot",
        "observation[1]: expected a finite number, got nan",
        "reward: expected a finite number, got inf",
        "observation: expected shape (2,), got (3,)",
    ]
    for place, (kind, why) in enumerate(zip(kinds, whys, strict=True), start=1):
        (dropped,) = failing.named(kind, *FAULTS)
        assert dropped["event"] == "episode_dropped"
        told = [dropped[k] for k in ("episode", "length", "why", "own", "failures")]
        assert told == [fragile.FATAL, fragile.WHEN - 1, why, True, 1]
        check_rows(failing, place, dropped=True)
        ends = [e["episode"] for e in failing.named(kind, "episode")]
        assert ends[: fragile.FATAL + 1] == [0, 1, 2, fragile.FATAL + 1]
        steps = [e["decision_step"] for e in failing.named(kind, "evaluation")]
        assert steps == [20, 40, 60]
        # How it failed makes no difference to what is learnt.
        same(failing.weights(kind), failing.weights(kinds[0]))
    check_rows(failing, 0, dropped=False)
    _, _, reward, _ = failing.transitions(1)
    rewards = [step for step, _ in collected.by[1]]
    assert [x for x in rewards if x] == pytest.approx(reward[:-1].tolist())
    assert rewards.count(0.0) == 1
    assert collected.by[1][rewards.index(0.0)] == (0.0, True)
    quiet = [f"Quiet{n}" for n in range(4)]
    nobody = Ran(tmp_path / "nobody", ["Calm", *quiet], agent="simbav2", **LIMIT)
    same(failing.weights("Calm"), nobody.weights("Calm"))
    kinds = ("episode", "evaluation")
    assert failing.told("Calm", *kinds) == nobody.told("Calm", *kinds)


def test_a_worker_that_dies_or_hangs_takes_its_own_episodes_alone(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("r2r2.envs.vector.pool.available_cores", lambda: 3)
    tasks = ["Calm", "Dies", "Hangs"]  # each in the worker of its place
    ran = Ran(tmp_path / "run", tasks, workers=3, env_timeout=3.0)
    assert not ran.result.stopped
    assert not ran.named("Calm", *FAULTS)
    check_rows(ran, 0, dropped=False)
    whys = {
        "Dies": "worker process killed by signal SIGKILL",
        "Hangs": "no response within 3 seconds; process killed",
    }
    for place, (task, why) in enumerate(whys.items(), start=1):
        (dropped,) = ran.named(task, *FAULTS)
        assert (dropped["why"], dropped["own"]) == (why, True)
        check_rows(ran, place, dropped=True)
    same(ran.weights("Dies"), ran.weights("Hangs"))


def test_a_dropped_episode_is_trained_on_and_not_assessed(tmp_path):
    ran = Ran(tmp_path / "run", ["Calm", "Raises"], agent="td7")
    (dropped,) = ran.named("Raises", "episode_dropped")
    assert dropped["decision_step"] > TINY["warmup"]
    for task in ("Calm", "Raises"):
        episodes = ran.named(task, "episode")
        ends = [e["decision_step"] for e in episodes]
        warm = next(end for end in ends if end >= TINY["warmup"])
        # A burst follows each end: all steps up to the one before are paid for.
        for last, event in itertools.pairwise(episodes):
            assert event["update_step"] == TINY["utd"] * max(
                0, last["decision_step"] - warm
            )
    # The step of the episode that was dropped lies between two of these.
    gaps = {e["episode"]: e["decision_step"] - e["length"] for e in episodes}
    assert gaps[fragile.FATAL + 1] == dropped["decision_step"]


def test_members_stop_beyond_the_limit_and_the_others_finish(tmp_path, monkeypatch):
    monkeypatch.setenv(fragile.MARK, str(tmp_path / "mark"))
    tasks = ["Calm", "Judged", "Unjudged", "Stillborn", "Doomed"]
    ran = Ran(tmp_path / "run", tasks, every="7", env_faults=3)
    # An evaluation that was disturbed comes to what it would have.
    (repeated,) = ran.named("Judged", *FAULTS)
    assert repeated["event"] == "evaluation_repeated"
    assert repeated["failures"] == 1
    assert ran.told("Judged", "evaluation") == ran.told("Calm", "evaluation")
    same(ran.weights("Judged"), ran.weights("Calm"))
    stopped = {
        "Unjudged": ("evaluation_repeated", 24, "the referee is gone"),
        "Stillborn": ("episode_dropped", 0, "no power"),
        "Doomed": ("episode_dropped", 8, "it fell over"),
    }
    for task, (kind, step, what) in stopped.items():
        why = f"its environment failed 4 times: RuntimeError: {what}"
        name = f"fragile.{task}-v0_s0"
        assert ran.result.stopped[name] == why
        faults = ran.named(task, *FAULTS)
        assert [e["event"] for e in faults] == [kind] * 4 + ["stopped"]
        assert [e["failures"] for e in faults[:4]] == [1, 2, 3, 4]
        # What it learnt before may still be told.
        assert {e["event"] for e in ran.named(task)} <= {"losses", "episode", *FAULTS}
        assert (faults[-1]["decision_step"], faults[-1]["why"]) == (step, why)
        assert ran.folder.weights(name).exists()
        report = json.loads(ran.folder.report(name).read_text())
        assert report["why"] == why
        assert report["last_failure"][0].startswith("Traceback")
    assert len(ran.result.stopped) == 3
    assert np.isfinite(ran.result.returns[:2]).all()
    rows = collections.Counter(
        row.env_name for row in read_evaluations(ran.folder.evaluations)
    )
    assert rows == {"fragile:Calm-v0": 3, "fragile:Judged-v0": 3}
    # Besides the last one there were others: nobody waits for who was stopped.
    assert max(int(p.stem) for p in ran.folder.checkpoints.glob("*.json")) > 1
    more = Ran(tmp_path / "run", tasks, every="7", env_faults=3, steps=80)
    assert more.result.stopped == ran.result.stopped
    for task in stopped:
        assert more.told(task) == ran.told(task)
    steps = [e["decision_step"] for e in more.named("Judged", "evaluation")]
    assert steps == [20, 40, 60, 80]


@pytest.mark.parametrize("agent", ["minphi", "td7"])
def test_a_run_of_which_all_are_stopped_ends(tmp_path, agent):
    tasks = ["Stillborn", "Doomed"]
    ran = Ran(tmp_path / "run", tasks, every="7", env_faults=20, agent=agent)
    assert len(ran.result.stopped) == 2
    assert np.isnan(ran.result.returns).all()
    assert not ran.folder.evaluations.exists()
    assert [e["failures"] for e in ran.named("Stillborn", FAULTS[0])][-1] == 21


def test_a_member_without_a_single_failure_to_spare_stops_at_the_first(tmp_path):
    ran = Ran(tmp_path / "run", ["Calm", "Raises"], env_faults=0)
    assert list(ran.result.stopped) == ["fragile.Raises-v0_s0"]


def test_a_stopped_member_goes_on_when_more_failures_are_allowed(tmp_path):
    tasks = ["Calm", "Raises"]
    assert Ran(tmp_path / "run", tasks, every="7", env_faults=0).result.stopped
    more = Ran(tmp_path / "run", tasks, every="7", env_faults=9)
    assert not more.result.stopped
    assert more.training.state.rollout.steps.tolist() == [60, 60]
    assert not more.folder.report("fragile.Raises-v0_s0").exists()


def test_what_was_lost_with_another_is_told_and_does_not_count(tmp_path):
    def lose(ran, progress):
        if (progress.decisions == 15).all():
            ran.training._recovery.recover(
                Fault(0, "lost with another", own_failure=False)
            )

    ran = Ran(tmp_path / "run", ["Calm"], look=lose, env_faults=0)
    assert not ran.result.stopped
    dropped = ran.named("Calm", *FAULTS)
    assert {e["event"] for e in dropped} == {"episode_dropped"}
    assert {(e["own"], e["failures"]) for e in dropped} == {(False, 0)}


def test_a_loss_that_is_not_finite_stops_its_member_alone(tmp_path):
    rich = Ran(tmp_path / "rich", ["Calm", "Rich"], every="3")
    name = "fragile.Rich-v0_s0"
    assert rich.result.stopped == {name: "a loss was not finite"}
    (stopped,) = rich.named("Rich", *FAULTS)
    assert rich.named("Rich", "episode", "evaluation", "stopped")[-1] == stopped
    report = json.loads(rich.folder.report(name).read_text())
    assert report["why"] == "a loss was not finite"
    assert report["batch"]["reward"]["max"] == pytest.approx(3e38)
    assert set(report["batch"]) == {"obs", "action", "reward", "next_obs", "terminated"}
    assert 0 < report["weights_of_step"] < stopped["decision_step"]
    learnt = rich.weights("Rich")
    assert all(np.isfinite(x).all() for x in learnt.values())
    trained_on = max(0, report["weights_of_step"] - TINY["warmup"])
    # Those of its last step may have been owed yet.
    assert 0 <= TINY["utd"] * trained_on - learnt["state/updates"] <= TINY["utd"]
    found = evaluate_run(rich.folder.path, 2, "fragile:Rich-v0:0", workers=0)
    assert np.isfinite(found.returns).all()
    calm = Ran(tmp_path / "calm", ["Calm", "Quiet0"])
    same(rich.weights("Calm"), calm.weights("Calm"))
    assert rich.told("Calm", "evaluation") == calm.told("Calm", "evaluation")
    more = Ran(tmp_path / "rich", ["Calm", "Rich"], every="3", steps=70)
    assert more.result.stopped == rich.result.stopped
    same(more.weights("Rich"), learnt)
    assert more.weights("Calm")["state/updates"] == TINY["utd"] * (70 - 10)


def test_without_a_checkpoint_nothing_is_kept_of_a_member_that_blew_up(tmp_path):
    rich = Ran(tmp_path / "rich", ["Calm", "Rich"], agent="td7")
    name = "fragile.Rich-v0_s0"
    report = json.loads(rich.folder.report(name).read_text())
    assert report["weights_of_step"] is None
    assert not rich.folder.weights(name).exists()
    assert rich.folder.weights("fragile.Calm-v0_s0").exists()


def test_an_environment_that_is_lent_fails_as_one_of_many_does(tmp_path):
    tasks = ["Balks"]
    lent = Ran(tmp_path / "lent", tasks, fragile.Balks())
    made = Ran(tmp_path / "made", tasks, fragile.Balks)
    # The step whose end it could not begin after, then the one it could not begin.
    dropped = [(e["episode"], e["length"]) for e in made.named("Balks", *FAULTS)]
    assert [episode for episode, _ in dropped] == [fragile.FATAL - 1, fragile.FATAL]
    for kind in ("episode", "episode_dropped"):
        assert lent.told("Balks", kind) == made.told("Balks", kind)
    same(lent.weights("Balks"), made.weights("Balks"))


@pytest.mark.parametrize("agent", ["minphi", "td7"])
def test_a_member_may_be_stopped_by_an_evaluation_on_what_is_lent(tmp_path, agent):
    """Of those that wait for the end of an episode, the first is its last."""
    changes = {"eval_average": 10, "agent": agent, "env_faults": 2}
    ran = Ran(tmp_path / "run", ["Unjudged"], fragile.Unjudged(), **changes)
    (why,) = ran.result.stopped.values()
    assert why == "its environment failed 3 times: RuntimeError: the referee is gone"
    faults = [e["event"] for e in ran.named("Unjudged", *FAULTS)]
    assert faults == ["evaluation_repeated"] * 3 + ["stopped"]


def test_who_has_made_its_last_step_begins_no_episode_any_more(tmp_path):
    """Though its environment is lost while it is still evaluated."""

    busy = []

    def lose(ran, progress):
        if (progress.decisions == TINY["steps"]).all():
            busy.append(ran.training.state.evals.busy)
            ran.training._recovery.recover(Fault(0, "it was lost", own_failure=False))

    ran = Ran(tmp_path / "run", ["Calm"], look=lose)
    assert any(busy)
    assert not ran.named("Calm", *FAULTS)
    assert len(ran.named("Calm", "evaluation")) == 3


@pytest.mark.slow
@pytest.mark.parametrize("bursts", [True, False])
@pytest.mark.parametrize("neighbour", ["Raises", "Rich"])
def test_td7_learns_the_same_to_the_bit_beside_a_neighbour_that_fails(
    tmp_path, neighbour, bursts
):
    """Though the groups in which members are updated are others then."""
    sizes = {"width": 8, "latent": 8, "batch_size": 4, "target_period": 10}
    changes = {f"agent.{name}": size for name, size in sizes.items()}
    changes |= {"agent": "td7+r2r2", "agent.policy_checkpoints": bursts}
    tasks = ["Calm", "Quiet0"]
    beside = Ran(tmp_path / "beside", [*tasks, neighbour], every="5", **changes)
    calm = Ran(tmp_path / "calm", [*tasks, "Quiet1"], **changes)
    assert bool(beside.result.stopped) == (neighbour == "Rich")
    for task in tasks:
        same(beside.weights(task), calm.weights(task))
        assert beside.told(task, "evaluation") == calm.told(task, "evaluation")
