"""Runs in which environments fail and losses become non-finite."""

import collections
import functools
import itertools
import json
import warnings

import fragile
import numpy as np
import pytest

from r2r2 import RunFailed, RunOptions, StoppedMembersWarning, api, evaluate_run, resolve, train
from r2r2.envs.make import episode_seed
from r2r2.envs.spec import Fault
from r2r2.storage.evaluations import read_evaluations
from r2r2.storage.events import read_events

SMALL = {"steps": 60, "warmup": 10, "utd": 2, "eval_every": 20, "eval_episodes": 2, "log_every": 20}
BURSTS = {"agent.policy_checkpoints": True}
NORMALIZED = {"agent.normalize": True}
FAULTS = ("episode_dropped", "evaluation_repeated", "stopped")


class Run:
    """A run that has ended, with its training state."""

    def __init__(self, path, tasks, own=None, every="never", workers=0, **changes):
        env = ",".join(f"fragile:{task}-v0" for task in tasks)
        retry = changes.pop("retry", False)
        look = changes.pop("look", lambda run, progress: None)
        config = resolve(SMALL, {"agent": "small_agent:SLOPE", "env": env, **changes})
        options = RunOptions(workers=workers, checkpoint_every=every, retry_failed=retry)
        original = api.Training

        def kept(*arguments):
            self.training = original(*arguments)
            return self.training

        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", StoppedMembersWarning)
            patch.setattr(api, "Training", kept)
            on_progress = functools.partial(look, self)
            try:
                self.result = train(config, path, env=own, on_progress=on_progress, options=options)
            except RunFailed as failure:
                self.result = failure.result
        self.folder = self.result.folder
        self.events = read_events(self.folder.events)

    def select(self, task, *kinds):
        member = f"fragile.{task}-v0_s0"
        ours = [e for e in self.events if e["member"] == member]
        return [e for e in ours if e["event"] in kinds] if kinds else ours

    def history(self, task, *kinds):
        """Return a member's events without times and its name."""
        events = self.select(task, *kinds)
        return [{k: v for k, v in e.items() if k not in "time member"} for e in events]

    def weights(self, task):
        name = f"fragile.{task}-v0_s0"
        trained, stopped = self.folder.weights(name), self.folder.stopped_weights(name)
        assert trained.exists() != stopped.exists() == (name in self.result.stopped)
        with np.load(stopped if stopped.exists() else trained) as arrays:
            return {name: arrays[name] for name in arrays.files}

    def transitions(self, member):
        """Return live rows: observation, action, reward, next observation."""
        fleet = self.training.state.fleet
        weights = np.asarray(fleet.learners.priorities.tree.weights)[member]
        live = np.flatnonzero(weights)
        obs, action, reward, _ = (np.asarray(x)[member] for x in fleet._rows)
        return obs[live], action[live, 0], reward[live], obs[live + 1]

    def dead(self, member):
        """Return the observations of rows that are never sampled, except the newest."""
        fleet = self.training.state.fleet
        weights = np.asarray(fleet.learners.priorities.tree.weights)[member]
        rows = np.flatnonzero(weights == 0)
        rows = rows[rows < int(fleet.opened[member])]
        return np.asarray(fleet._rows.obs)[member, rows].tolist()


def status(run):
    return json.loads((run.folder.path / "manifest.json").read_text())


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])


def number(index):
    """Return how observations name a training episode of seed 0."""
    return episode_seed(0, "train", index) % 997


def check_rows(run, member, dropped):
    """Check that live rows are transitions of one episode, none of a failed step."""
    obs, action, reward, after = run.transitions(member)
    assert len(obs) == SMALL["steps"]
    np.testing.assert_array_equal(after - obs, np.tile([0.0, 1.0], (len(obs), 1)))
    np.testing.assert_allclose(reward, after[:, 1] + action, rtol=1e-6)
    of = collections.Counter(obs[:, 0].astype(int).tolist())
    # The step before the failed one is kept.
    assert of[number(fragile.FATAL)] == (fragile.WHEN - 1 if dropped else of[number(3)])
    assert of[number(fragile.FATAL + 1)] > fragile.WHEN
    last = [number(fragile.FATAL), fragile.WHEN - 1]
    assert (last in run.dead(member)) == dropped


class Collected:
    """The rewards that the normalizer has seen, by member."""

    def __init__(self, patch):
        self.by = collections.defaultdict(list)
        from r2r2.replay.normalizer import Normalizer

        collect = Normalizer.collect

        def collect_and_note(normaliser, members, reward, ended):
            for place, member in enumerate(members):
                self.by[member].append((float(reward[place]), bool(ended[place])))
            collect(normaliser, members, reward, ended)

        patch.setattr(Normalizer, "collect", collect_and_note)


def test_failed_environment_costs_its_member_one_episode(tmp_path, monkeypatch):
    collected = Collected(monkeypatch)
    kinds = ["Raises", "BlindObs", "BlindReward", "Misshapen"]
    failing = Run(tmp_path / "failing", ["Calm", *kinds], **NORMALIZED)
    assert not failing.result.stopped
    whys = [
        "RuntimeError: the motor is hot",
        "observation[1]: expected a finite number, got nan",
        "reward: expected a finite number, got inf",
        "observation: expected shape (2,), got (3,)",
    ]
    for place, (kind, why) in enumerate(zip(kinds, whys, strict=True), start=1):
        (dropped,) = failing.select(kind, *FAULTS)
        assert dropped["event"] == "episode_dropped"
        details = [dropped[k] for k in ("episode", "length", "why", "own", "failures")]
        assert details == [fragile.FATAL, fragile.WHEN - 1, why, True, 1]
        check_rows(failing, place, dropped=True)
        ends = [e["episode"] for e in failing.select(kind, "episode")]
        assert ends[: fragile.FATAL + 1] == [0, 1, 2, fragile.FATAL + 1]
        steps = [e["decision_step"] for e in failing.select(kind, "evaluation")]
        assert steps == [20, 40, 60]
        # The kind of failure does not change what is learned.
        same(failing.weights(kind), failing.weights(kinds[0]))
    check_rows(failing, 0, dropped=False)
    _, _, reward, _ = failing.transitions(1)
    rewards = [step for step, _ in collected.by[1]]
    assert [x for x in rewards if x] == pytest.approx(reward[:-1].tolist())
    assert rewards.count(0.0) == 1
    assert collected.by[1][rewards.index(0.0)] == (0.0, True)
    quiet = [f"Quiet{n}" for n in range(4)]
    nobody = Run(tmp_path / "nobody", ["Calm", *quiet], **NORMALIZED)
    same(failing.weights("Calm"), nobody.weights("Calm"))
    kinds = ("episode", "evaluation")
    assert failing.history("Calm", *kinds) == nobody.history("Calm", *kinds)


@pytest.mark.slow
def test_dead_or_hanging_worker_loses_only_its_own_episodes(tmp_path, monkeypatch):
    monkeypatch.setattr("r2r2.envs.vector.pool.available_cores", lambda: 3)
    tasks = ["Calm", "Dies", "Hangs"]  # one worker each
    run = Run(tmp_path / "run", tasks, workers=3, env_timeout=3.0)
    assert not run.result.stopped
    assert not run.select("Calm", *FAULTS)
    check_rows(run, 0, dropped=False)
    whys = {
        "Dies": "worker process killed by signal SIGKILL",
        "Hangs": "no response within 3 seconds; process killed",
    }
    for place, (task, why) in enumerate(whys.items(), start=1):
        (dropped,) = run.select(task, *FAULTS)
        assert dropped["why"].startswith(why)
        assert dropped["own"]
        check_rows(run, place, dropped=True)
    same(run.weights("Dies"), run.weights("Hangs"))


def test_dropped_episode_causes_updates_but_no_assessment(tmp_path):
    run = Run(tmp_path / "run", ["Calm", "Raises"], **BURSTS)
    (dropped,) = run.select("Raises", "episode_dropped")
    assert dropped["decision_step"] > SMALL["warmup"]
    for task in ("Calm", "Raises"):
        episodes = run.select(task, "episode")
        ends = [e["decision_step"] for e in episodes]
        warm = next(end for end in ends if end >= SMALL["warmup"])
        # A burst follows each end: all steps up to the one before have their updates.
        for last, event in itertools.pairwise(episodes):
            assert event["update_step"] == SMALL["utd"] * max(0, last["decision_step"] - warm)
    # The step of the dropped episode lies between two of these.
    gaps = {e["episode"]: e["decision_step"] - e["length"] for e in episodes}
    assert gaps[fragile.FATAL + 1] == dropped["decision_step"]


@pytest.mark.slow
def test_members_stop_beyond_the_limit_and_others_finish(tmp_path, monkeypatch):
    monkeypatch.setenv(fragile.MARK, str(tmp_path / "mark"))
    tasks = ["Calm", "Judged", "Unjudged", "Stillborn", "Doomed"]
    run = Run(tmp_path / "run", tasks, every="7", env_faults=3)
    # A repeated evaluation has the same result.
    (repeated,) = run.select("Judged", *FAULTS)
    assert repeated["event"] == "evaluation_repeated"
    assert repeated["failures"] == 1
    assert run.history("Judged", "evaluation") == run.history("Calm", "evaluation")
    same(run.weights("Judged"), run.weights("Calm"))
    stopped = {
        "Unjudged": ("evaluation_repeated", 24, "the referee is gone"),
        "Stillborn": ("episode_dropped", 0, "no power"),
        "Doomed": ("episode_dropped", 8, "it fell over"),
    }
    for task, (kind, step, what) in stopped.items():
        name = f"fragile.{task}-v0_s0"
        why = run.result.stopped[name]
        text = f"its environment failed 4 times: RuntimeError: {what}, in {fragile.__file__}, line "
        assert why.startswith(text)
        faults = run.select(task, *FAULTS)
        assert [e["event"] for e in faults] == [kind] * 4 + ["stopped"]
        assert [e["failures"] for e in faults[:4]] == [1, 2, 3, 4]
        # Losses from before may still be logged.
        others = {e["event"] for e in run.select(task)} - set(FAULTS)
        assert not others & {"evaluation", "policy_checkpoint", "end"}
        assert (faults[-1]["decision_step"], faults[-1]["why"]) == (step, why)
        assert run.weights(task)
        report = json.loads(run.folder.report(name).read_text())
        assert (report["why"], report["weights_of_step"]) == (why, step)
        assert report["last_failure"][0].startswith("Traceback")
    assert list(run.result.stopped) == status(run)["stopped"]
    assert (len(run.result.stopped), status(run)["status"]) == (3, "finished")
    assert np.isfinite(run.result.returns[:2]).all()
    rows = collections.Counter(row.env_name for row in read_evaluations(run.folder.evaluations))
    assert rows == {"fragile:Calm-v0": 3, "fragile:Judged-v0": 3}
    # Checkpoints do not wait for stopped members.
    assert max(int(p.stem) for p in run.folder.checkpoints.glob("*.json")) > 1
    more = Run(tmp_path / "run", tasks, every="7", env_faults=3, steps=80)
    assert more.result.stopped == run.result.stopped
    for task in stopped:
        assert more.history(task) == run.history(task)
    steps = [e["decision_step"] for e in more.select("Judged", "evaluation")]
    assert steps == [20, 40, 60, 80]


@pytest.mark.parametrize("changes", [{}, BURSTS])
def test_run_ends_when_all_members_are_stopped(tmp_path, changes):
    tasks = ["Stillborn", "Doomed"]
    run = Run(tmp_path / "run", tasks, every="7", env_faults=20, **changes)
    assert list(run.result.stopped) == status(run)["members"] == status(run)["stopped"]
    assert status(run)["status"] == "failed"
    assert not list(run.folder.path.glob("*/weights.npz"))
    assert np.isnan(run.result.returns).all()
    assert not run.folder.evaluations.exists()
    assert [e["failures"] for e in run.select("Stillborn", FAULTS[0])][-1] == 21


def test_member_without_allowed_failures_stops_at_the_first(tmp_path):
    run = Run(tmp_path / "run", ["Calm", "Raises"], env_faults=0)
    assert list(run.result.stopped) == ["fragile.Raises-v0_s0"]


def test_retry_makes_the_evaluation_in_which_a_member_was_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv(fragile.MARK, str(tmp_path / "mark"))
    tasks, name = ["Calm", "Judged"], "fragile.Judged-v0_s0"
    run = Run(tmp_path / "run", tasks, every="7", env_faults=0)
    assert list(run.result.stopped) == [name]
    assert run.select("Judged", "evaluation") == []
    again = Run(tmp_path / "run", tasks, every="7", env_faults=0, retry=True)
    assert not again.result.stopped
    steps = [e["decision_step"] for e in again.select("Judged", "evaluation")]
    assert steps == [20, 40, 60]


@pytest.mark.slow
def test_stopped_member_resumes_when_more_failures_are_allowed(tmp_path):
    tasks = ["Calm", "Raises"]
    assert Run(tmp_path / "run", tasks, every="7", env_faults=0).result.stopped
    more = Run(tmp_path / "run", tasks, every="7", env_faults=9)
    assert not more.result.stopped
    assert more.training.state.rollout.steps.tolist() == [60, 60]
    assert not more.folder.report("fragile.Raises-v0_s0").exists()


@pytest.mark.slow
@pytest.mark.parametrize("neighbour", ["Calm", "Stillborn"])
def test_stopped_member_is_retried_without_changing_the_others(tmp_path, monkeypatch, neighbour):
    monkeypatch.setenv(fragile.MARK, str(tmp_path / "repaired"))
    tasks, name = [neighbour, "Broken"], "fragile.Broken-v0_s0"
    broken = Run(tmp_path / "run", tasks, every="9", env_faults=2)
    assert name in broken.result.stopped
    kinds = ("episode", "evaluation")
    weights, history = broken.weights(neighbour), broken.history(neighbour, *kinds)
    (tmp_path / "repaired").touch()
    retried = Run(tmp_path / "run", tasks, every="9", env_faults=2, retry=True)
    assert name not in retried.result.stopped
    # The other one failed again, or had nothing left to do.
    assert status(retried)["status"] == "finished"
    assert (list(retried.result.stopped) == []) == (neighbour == "Calm")
    if neighbour == "Calm":
        same(retried.weights(neighbour), weights)
        assert retried.history(neighbour, *kinds) == history
    steps = [e["decision_step"] for e in retried.select("Broken", "evaluation")]
    assert steps == [20, 40, 60]
    assert not retried.folder.report(name).exists()
    assert not retried.folder.stopped_weights(name).exists()


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_environment_that_interrupts_or_exits_has_failed(tmp_path, workers, capfd):
    run = Run(tmp_path / "run", ["Interrupts", "Exits"], workers=workers)
    assert not run.result.stopped
    for task, why in (("Interrupts", "KeyboardInterrupt"), ("Exits", "SystemExit: 3")):
        (dropped,) = run.select(task, *FAULTS)
        assert (dropped["event"], dropped["why"]) == ("episode_dropped", why)
    assert capfd.readouterr() == ("", "")


def test_fault_of_another_slot_is_logged_but_not_counted(tmp_path):
    def lose(run, progress):
        if (progress.decisions == 15).all():
            run.training._recovery.recover(Fault(0, "lost with another", own_failure=False))

    run = Run(tmp_path / "run", ["Calm"], look=lose, env_faults=0)
    assert not run.result.stopped
    dropped = run.select("Calm", *FAULTS)
    assert {e["event"] for e in dropped} == {"episode_dropped"}
    assert {(e["own"], e["failures"]) for e in dropped} == {(False, 0)}


def test_nonfinite_loss_stops_only_its_member(tmp_path):
    rich = Run(tmp_path / "rich", ["Calm", "Rich"], every="3")
    name = "fragile.Rich-v0_s0"
    assert rich.result.stopped == {name: "a loss was not finite"}
    (stopped,) = rich.select("Rich", *FAULTS)
    assert rich.select("Rich", "episode", "evaluation", "stopped")[-1] == stopped
    report = json.loads(rich.folder.report(name).read_text())
    assert report["why"] == "a loss was not finite"
    assert report["batch"]["reward"]["max"] == pytest.approx(3e38)
    assert set(report["batch"]) == {"obs", "action", "reward", "next_obs", "terminated"}
    # Equal if the checkpoint lies between the last step and its updates.
    assert 0 < report["weights_of_step"] <= stopped["decision_step"]
    learnt = rich.weights("Rich")
    assert all(np.isfinite(x).all() for x in learnt.values())
    trained_on = max(0, report["weights_of_step"] - SMALL["warmup"])
    # The updates of its last step may have been pending.
    assert 0 <= SMALL["utd"] * trained_on - learnt["state/updates"] <= SMALL["utd"]
    with pytest.warns(StoppedMembersWarning, match="not a trained policy"):
        evaluation = evaluate_run(rich.folder.path, 2, "fragile:Rich-v0:0", workers=0)
    assert np.isfinite(evaluation.returns).all()
    with pytest.warns(StoppedMembersWarning, match=f"{name}: left out; the member was stopped: a"):
        evaluation = evaluate_run(rich.folder.path, 2, workers=0)
    assert [member.name for member in evaluation.members] == ["fragile.Calm-v0_s0"]
    calm = Run(tmp_path / "calm", ["Calm", "Quiet0"])
    same(rich.weights("Calm"), calm.weights("Calm"))
    assert rich.history("Calm", "evaluation") == calm.history("Calm", "evaluation")
    more = Run(tmp_path / "rich", ["Calm", "Rich"], every="3", steps=70)
    assert more.result.stopped == rich.result.stopped
    same(more.weights("Rich"), learnt)
    assert more.weights("Calm")["state/updates"] == SMALL["utd"] * (70 - 10)


def test_no_weights_are_saved_of_a_nonfinite_member_without_checkpoint(tmp_path):
    rich = Run(tmp_path / "rich", ["Calm", "Rich"], **BURSTS)
    name = "fragile.Rich-v0_s0"
    report = json.loads(rich.folder.report(name).read_text())
    assert report["weights_of_step"] is None
    assert not rich.folder.weights(name).exists()
    assert not rich.folder.stopped_weights(name).exists()
    assert rich.folder.weights("fragile.Calm-v0_s0").exists()


@pytest.mark.slow
def test_shared_environment_recovers_like_separate_ones(tmp_path):
    tasks = ["Balks"]
    lent = Run(tmp_path / "lent", tasks, fragile.Balks())
    made = Run(tmp_path / "made", tasks, fragile.Balks)
    # First the episode after which the reset failed, then the one that failed.
    dropped = [(e["episode"], e["length"]) for e in made.select("Balks", *FAULTS)]
    assert [episode for episode, _ in dropped] == [fragile.FATAL - 1, fragile.FATAL]
    for kind in ("episode", "episode_dropped"):
        assert lent.history("Balks", kind) == made.history("Balks", kind)
    same(lent.weights("Balks"), made.weights("Balks"))


@pytest.mark.parametrize("changes", [{}, BURSTS])
def test_evaluation_in_a_shared_environment_may_stop_the_member(tmp_path, changes):
    """The first of several deferred evaluations is the last."""
    changes = {"eval_average": 10, "env_faults": 2, **changes}
    run = Run(tmp_path / "run", ["Unjudged"], fragile.Unjudged(), **changes)
    (why,) = run.result.stopped.values()
    assert why.startswith("its environment failed 3 times: RuntimeError: the referee is gone, in ")
    faults = [e["event"] for e in run.select("Unjudged", *FAULTS)]
    assert faults == ["evaluation_repeated"] * 3 + ["stopped"]


def test_no_episode_begins_after_the_last_step(tmp_path):
    """Even if the environment fails while the member is still evaluated."""

    busy = []

    def lose(run, progress):
        if (progress.decisions == SMALL["steps"]).all():
            busy.append(run.training.state.evals.busy)
            run.training._recovery.recover(Fault(0, "it was lost", own_failure=False))

    run = Run(tmp_path / "run", ["Calm"], look=lose)
    assert any(busy)
    assert not run.select("Calm", *FAULTS)
    assert len(run.select("Calm", "evaluation")) == 3


@pytest.mark.slow
@pytest.mark.parametrize("bursts", [True, False])
@pytest.mark.parametrize("neighbour", ["Raises", "Rich"])
def test_td7_is_bit_exact_beside_a_failing_member(tmp_path, neighbour, bursts):
    """Although members are then updated in other groups."""
    sizes = {"width": 8, "latent": 8, "batch_size": 4, "target_period": 10}
    changes = {f"agent.{name}": size for name, size in sizes.items()}
    changes |= {"agent": "td7+r2r2", "agent.policy_checkpoints": bursts}
    tasks = ["Calm", "Quiet0"]
    beside = Run(tmp_path / "beside", [*tasks, neighbour], every="5", **changes)
    calm = Run(tmp_path / "calm", [*tasks, "Quiet1"], **changes)
    assert bool(beside.result.stopped) == (neighbour == "Rich")
    for task in tasks:
        same(beside.weights(task), calm.weights(task))
        assert beside.history(task, "evaluation") == calm.history(task, "evaluation")
