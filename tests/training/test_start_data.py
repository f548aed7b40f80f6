"""Runs that start from recorded transitions or from trained networks."""

import contextlib
import re
import shlex
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interrupted import NEVER, OFTEN, Interrupt, assert_same, killed_after, train_saving
from recorded import save_walks, walk_arrays
from runs import select

from r2r2 import UserError, resolve, save_transitions, train
from r2r2.agents.registry import build_agent, state_shapes
from r2r2.api import make_pool
from r2r2.cli.main import main
from r2r2.cli.train import parse_train
from r2r2.config.toml_io import experiment_name, run_name
from r2r2.envs.vector.pool import try_task
from r2r2.replay.normalizer import initial_statistics, make_normalizer
from r2r2.stats.scores import run_results
from r2r2.storage.arrays import read_arrays
from r2r2.storage.events import read_events
from r2r2.storage.run_folder import create_run
from r2r2.training.fleet import Fleet
from r2r2.training.loop import Training
from r2r2.training.run_config import finalize_config, fleet_members, load_config
from r2r2.training.run_log import RunLog
from r2r2.training.start_data import LEAST_SAMPLES, load_start_data, take_over
from small_fleets import SPEC, small

BASE = {
    "agent": "small_agent:SLOPE",
    "env": "walks:Walk",
    "seeds": 2,
    "steps": 60,
    "warmup": 10,
    "utd": 2,
    "replay_size": 90,
    "eval_every": 30,
    "eval_episodes": 2,
    "log_every": 20,
}
OFFLINE = 300  # updates, more than one call makes


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return save_walks(tmp_path_factory.mktemp("data") / "data.npz")


def config_of(data, **changes):
    return resolve(BASE, {"prefill": data}, changes)


@contextlib.contextmanager
def begun(path, config):
    """Return a training that has begun."""
    config = finalize_config(config)
    members = fleet_members(config)
    folder = create_run(path, "", [member.name for member in members], False)
    with make_pool(config, options=NEVER) as pool, RunLog(config, folder, members, "name") as log:
        start = load_start_data(config, pool.spaces)
        training = Training(config, pool, log, start=start)
        training.begin()
        yield training
        training.close()


def test_data_are_the_first_rows_of_every_replay(tmp_path, data):
    arrays = walk_arrays()
    with begun(tmp_path / "run", config_of(data)) as training:
        fleet = training.state.fleet
        (count,) = set(fleet.opened.tolist())
        weights = np.asarray(fleet.learners.priorities.tree.weights)
        for member in range(2):
            rows = fleet.fetch_rows(member, 0)
            live = np.flatnonzero(weights[member])
            assert set(weights[member, live]) == {1.0}
            for name, ours in (("observations", "obs"), ("rewards", "reward")):
                np.testing.assert_allclose(rows[ours][live], arrays[name], rtol=1e-6)
            next_obs = rows["obs"][live + 1]
            np.testing.assert_allclose(next_obs, arrays["next_observations"], rtol=1e-6)
            np.testing.assert_array_equal(rows["terminated"][live], arrays["terminations"])
            first = training.state.rollout.obs[member]
            np.testing.assert_allclose(rows["obs"][count], first, rtol=1e-6)


def test_actions_are_converted_from_the_range_of_the_task(tmp_path):
    arrays = {
        "observations": np.arange(15.0).reshape(5, 3),
        "actions": np.array([[-2.0], [0.0], [1.0], [2.0], [2.0001]]),
        "rewards": np.arange(5.0),
        "next_observations": np.arange(15.0).reshape(5, 3) + 3,
        "terminations": np.zeros(5, bool),
    }
    save_transitions(tmp_path / "data.npz", **arrays)
    config = config_of(str(tmp_path / "data.npz"), env="Pendulum-v1")
    with begun(tmp_path / "run", config) as training:
        rows = training.state.fleet.fetch_rows(0, 0)
    np.testing.assert_allclose(rows["action"][:5, 0], [-1, 0, 0.5, 1, 1])
    assert len(rows["reward"]) == 7  # five steps, the end, and the first observation


@pytest.mark.slow
def test_oldest_rows_are_overwritten_without_mix_and_kept_with_it(tmp_path, data):
    old = {}
    for mix in (0.0, 0.5):
        with begun(tmp_path / f"run{mix}", config_of(data, mix=mix, replay_size=70)) as training:
            fleet = training.state.fleet
            old = jax.device_get(fleet.data(None).offline)
            training.run(lambda progress: None)
            new = jax.device_get(fleet.data(None).offline)
            assert (fleet.opened >= 70).any() == (mix == 0)
            if mix:
                jax.tree.map(np.testing.assert_array_equal, old, new)
                live = np.asarray(fleet.learners.priorities.offline.weights)
                assert (live > 0).sum(axis=1).tolist() == [50, 50]
                assert (live > 1).any()  # priorities of data are updated, too
                np.testing.assert_allclose(
                    np.sort(new.rows.reward[live[0, : len(new.rows.reward)] > 0]),
                    np.sort(walk_arrays()["rewards"]),
                    rtol=1e-6,
                )
            else:
                rows = fleet.fetch_rows(0, 0)
                assert not np.isin(walk_arrays()["rewards"][:3], rows["reward"]).any()


def stop_at(config, path, when):
    """Train until `when(progress)` holds."""

    def on_progress(progress):
        if when(progress):
            raise Interrupt

    with pytest.raises(Interrupt):
        train(config, path, options=OFTEN, on_progress=on_progress)


VARIANTS = {
    "policy checkpoints": {"agent.policy_checkpoints": True, "mix": 0.0},
    "mixed policy checkpoints": {"agent.policy_checkpoints": True, "mix": 0.5},
    "mixed lockstep": {"agent.normalize": True, "mix": 0.25},
}


@pytest.mark.parametrize(
    "changes",
    [
        x if "mixed policy" in name else pytest.param(x, marks=pytest.mark.slow)
        for name, x in VARIANTS.items()
    ],
    ids=VARIANTS,
)
def test_resume_is_exact_in_offline_updates_and_later(tmp_path, data, changes):
    config = config_of(data, prefill_only_updates=OFFLINE, **changes)
    whole = train(config, tmp_path / "whole", options=NEVER)
    path = tmp_path / "run"
    stop_at(config, path, lambda progress: progress.updates.min() >= 250)
    saved = read_arrays(path / "checkpoints" / "00000001.npz")
    assert saved["schedule/made"].tolist() == [250, 250]
    assert saved["schedule/owed"].tolist() == [50, 50]
    assert not saved["rollout/steps"].any()
    stop_at(config, path, lambda progress: progress.decisions.min() >= 25)
    assert_same(train(config, path, options=NEVER), whole)
    events = read_events(whole.folder.events)
    for name in whole.folder.members:
        (event,) = select(events, "offline_updates", name)
        assert (event["decision_step"], event["update_step"]) == (0, OFFLINE)
        assert select(events, "losses", name)[0]["update_step"] == OFFLINE
        kept = select(events, "policy_checkpoint", name)
        assert bool(kept) == ("agent.policy_checkpoints" in changes)
        assert not kept or kept[0]["update_step"] == OFFLINE


@pytest.mark.slow
def test_resume_is_exact_after_a_kill_in_offline_updates(tmp_path, data):
    config = config_of(data, prefill_only_updates=OFFLINE)
    whole = train_saving(config, tmp_path / "whole", {1}.__contains__)
    path, messages = killed_after(whole, tmp_path / "run", 1), []
    assert read_arrays(path / "checkpoints" / "00000001.npz")["schedule/owed"].all()
    result = train(config, path, options=NEVER, on_message=messages.append)
    assert messages == [f"{path}: resuming from step 0"]
    assert_same(result, whole)


def test_offline_updates_come_before_the_first_step_and_are_reported(tmp_path, data):
    seen = []
    config = config_of(data, prefill_only_updates=OFFLINE, warmup=0, steps=4)
    result = train(config, tmp_path / "run", options=NEVER, on_progress=seen.append)
    counts = [(x.offline, int(x.decisions.max()), int(x.updates.min())) for x in seen[1:4]]
    assert counts == [(OFFLINE, 0, 250), (0, 0, OFFLINE), (0, 1, OFFLINE)]
    assert seen[-1].updates.tolist() == [OFFLINE + 8] * 2
    assert not result.random  # without warm-up, no step is random


def test_policy_is_checkpointed_after_offline_updates_and_acts_at_once(tmp_path, data):
    changes = {"agent.policy_checkpoints": True, "warmup": 0}
    with begun(tmp_path / "run", config_of(data, prefill_only_updates=8, **changes)) as training:
        state = training.state
        assert state.schedule.warm.all()
        first = np.asarray(state.fleet.states.actor)
        while state.schedule.pending.any():
            assert training.collecting() == []
            training._start_updates(alone=True)
            training._finish_updates()
        trained = state.fleet.states
        assert (np.asarray(trained.actor) != first).any()
        np.testing.assert_array_equal(trained.checkpoint, trained.actor)
        np.testing.assert_array_equal(state.fleet.policies, trained.actor)
    with begun(tmp_path / "no-data", resolve(BASE, changes)) as training:
        assert not training.state.schedule.warm.any()  # the first episode is random, as released


def test_steps_in_one_call_equal_separate_calls_with_mixed_batches(tmp_path, monkeypatch, data):
    config = config_of(data, mix=0.5, **{"agent.normalize": True})
    separate = train(config, tmp_path / "separate", options=NEVER)
    calls, update_and_act, init = [], Fleet.update_and_act, Fleet.__init__

    def counted(self, updates, *rest):
        calls.append(updates)
        return update_and_act(self, updates, *rest)

    def fusing(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.fuses_steps = True

    monkeypatch.setattr(Fleet, "update_and_act", counted)
    monkeypatch.setattr(Fleet, "__init__", fusing)
    fused = train(config, tmp_path / "fused", options=NEVER)
    assert calls == [2] * 49  # the first call also stores the steps of the warm-up
    for name in fused.folder.members:
        ours, theirs = (read_arrays(x.folder.weights(name)) for x in (fused, separate))
        for key, array in ours.items():
            np.testing.assert_allclose(array, theirs[key], rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.slow
def test_member_does_not_depend_on_its_fleet(tmp_path, data):
    changes = {"mix": 0.5, "prefill_only_updates": 8, "agent.normalize": True}
    both = train(config_of(data, **changes), tmp_path / "both", options=NEVER)
    alone = train(config_of(data, seeds="1,", **changes), tmp_path / "alone", options=NEVER)
    ours, theirs = (read_arrays(x.folder.weights("walks.Walk_s1")) for x in (both, alone))
    for key, array in ours.items():
        np.testing.assert_allclose(array, theirs[key], rtol=1e-4, atol=1e-6, err_msg=key)


def test_normalizer_learns_from_data_as_if_it_had_been_collected(tmp_path, data):
    arrays, config = walk_arrays(), config_of(data, **{"agent.normalize": True})
    ended = arrays["terminations"] | arrays["truncations"]
    expected = make_normalizer(config.agent, initial_statistics(2, 3))
    rewards, ends = np.zeros(2), np.zeros(2, bool)
    with begun(tmp_path / "run", config) as training:
        state = training.state
        for obs, reward, end in zip(arrays["observations"], arrays["rewards"], ended, strict=True):
            expected.observe([0, 1], np.stack([obs, obs]), rewards, ends)
            rewards, ends = np.full(2, reward), np.full(2, end)
        expected.observe([0, 1], state.rollout.obs, rewards, np.ones(2, bool))
        state.normalizer.observe(
            [0, 1], state.rollout.obs, state.rollout.reward, state.rollout.ended
        )
        ours, theirs = state.normalizer.statistics, expected.statistics
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


def test_members_that_act_beside_updates_train_on_data_before_their_first_step(
    tmp_path, monkeypatch, data
):
    """As beside an accelerator, where steps are taken as they come."""
    init = Fleet.__init__

    def asynchronous(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.async_updates = self.accelerated = True

    monkeypatch.setattr(Fleet, "__init__", asynchronous)
    changes = {"agent.policy_checkpoints": True, "prefill_only_updates": OFFLINE, "mix": 0.5}
    result = train(config_of(data, **changes), tmp_path / "run", options=NEVER)
    events = read_events(result.folder.events)
    for name in result.folder.members:
        own = [e for e in events if e["member"] == name and e["event"] != "time"]
        assert [e["event"] for e in own[:3]] == ["offline_updates", "policy_checkpoint", "losses"]
        assert {e["update_step"] for e in own[:3]} == {OFFLINE}
        assert max(e["update_step"] for e in own) > OFFLINE


# The config


INVALID = {
    "mix without data": ({"mix": 0.5}, "prefill: expected data in prefill with mix 0.5, got none"),
    "updates without data": (
        {"prefill_only_updates": 5},
        "prefill: expected data in prefill with prefill_only_updates 5, got none",
    ),
    "all": ({"prefill": "x", "mix": 1.0}, "mix: expected a number >= 0 and < 1, got 1.0"),
    "no row": (
        {"prefill": "x", "mix": 0.01},
        "mix: expected a share of at least 1 and at most 3 rows of a batch of 4, got 0.01",
    ),
    "random": (
        {"prefill": "x", "prefill_only_updates": 5, "random_only": True},
        "prefill_only_updates: expected 0 with random_only, which makes no updates",
    ),
    "too many": (
        {"prefill": "x", "prefill_only_updates": 2**31 - 1},
        "prefill_only_updates: expected at most 2147483527, got 2147483647",
    ),
    "checksum": (
        {"prefill": "x", "prefill_sha256": "12"},
        "prefill_sha256: expected 64 hexadecimal digits, or nothing (automatic), got '12'",
    ),
    "checksum alone": (
        {"init_from_sha256": "0" * 64},
        "init_from: expected a run with init_from_sha256, got none",
    ),
    "null": ({"prefill": "a\0b"}, r"prefill: expected a path, got 'a\x00b'"),
}


@pytest.mark.parametrize(("changes", "sentence"), INVALID.values(), ids=INVALID)
def test_contradicting_fields_are_refused(changes, sentence):
    with pytest.raises(UserError) as error:
        resolve(BASE, changes)
    assert str(error.value) == sentence


def test_config_records_where_the_data_are_and_what_they_contain(tmp_path, data, monkeypatch):
    shutil.copy(data, tmp_path / "copy.npz")
    monkeypatch.chdir(tmp_path)
    ours, theirs = (finalize_config(config_of(path)) for path in ("copy.npz", data))
    assert ours.prefill == str(tmp_path / "copy.npz")
    assert len(ours.prefill_sha256) == 64
    assert run_name(ours) == run_name(theirs) != run_name(finalize_config(resolve(BASE)))
    plain, digits = finalize_config(resolve(BASE)), theirs.prefill_sha256[:8]
    assert experiment_name(theirs, plain) == f"small_agent.SLOPE_prefill={digits}_utd2"
    assert [str(x) for x in run_results(theirs, plain, []).method.overrides] == [
        f"prefill_sha256={digits} (default none)"  # never called a reproduction
    ]


def test_bad_file_ends_the_command_with_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arrays = {name: x for name, x in walk_arrays().items() if name != "rewards"}
    np.savez("data.npz", **arrays)
    options = ["--agent", BASE["agent"], "--env", BASE["env"], "--warmup", "5", "--steps", "9"]
    assert main(["train", *options, "--prefill", "data.npz", "--workers", "0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"r2r2: error: {tmp_path}/data.npz: no array 'rewards'; expected ")
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


@pytest.mark.slow
def test_run_resumes_elsewhere_with_moved_data_but_not_with_changed_data(
    tmp_path, data, monkeypatch, capsys
):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    path, file = tmp_path / "run", tmp_path / "here" / "data.npz"
    shutil.copy(data, file)
    whole = train(config_of(data), tmp_path / "whole", options=NEVER)
    monkeypatch.chdir(tmp_path / "here")
    stop_at(config_of("data.npz"), path, lambda progress: progress.decisions.min() >= 30)
    monkeypatch.chdir(tmp_path / "there")
    before = (path / "config.toml").read_bytes()
    save_walks(file, seed=9)
    assert main(["train", "--resume", str(path)]) == 2
    error = capsys.readouterr().err
    assert f"--prefill: {file}: expected the data with the SHA-256 " in error
    file.unlink()
    assert main(["train", "--resume", str(path)]) == 2
    assert f"{file}: does not exist" in capsys.readouterr().err
    assert (path / "config.toml").read_bytes() == before
    assert main(["train", "--resume", str(path), "--prefill", data, "--workers", "0"]) == 0
    for name in whole.folder.members:
        ours, theirs = (read_arrays(x / name / "weights.npz") for x in (path, whole.folder.path))
        for key, array in ours.items():
            np.testing.assert_array_equal(array, theirs[key])


REFUSED = {
    "shape": ({}, {"env": "Pendulum-v1"}, "array 'actions': expected shape [50, 1]"),
    "few": ({}, {"agent.batch_size": 64}, "expected at least 64 transitions"),
    "many": ({}, {"replay_size": 50}, "expected fewer rows than replay_size, 50, got "),
    "bounds": (
        {"actions": np.full((50, 2), 1.5)},
        {},
        "array 'actions': expected values from -1 to 1, the range of the task, got 1.5 at [0, 0]",
    ),
}


@pytest.mark.parametrize(("arrays", "changes", "sentence"), REFUSED.values(), ids=REFUSED)
def test_data_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path, arrays, changes, sentence
):
    file = save_walks(tmp_path / "data.npz", **arrays)
    with pytest.raises(UserError) as error:
        train(config_of(file, **changes), tmp_path / "run", options=NEVER)
    assert str(error.value).startswith(f"{file}: {sentence}")
    assert not (tmp_path / "run").exists()


def test_tasks_with_different_action_bounds_are_refused(tmp_path, data):
    config = config_of(data, env="walks:Walk,walks:Wide")
    with pytest.raises(UserError, match="env: expected tasks with equal action bounds for data"):
        train(config, tmp_path / "run", options=NEVER)


# Trained networks


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A finished run of two members with normalized observations."""
    config = resolve(BASE, {"agent.normalize": True})
    return train(config, tmp_path_factory.mktemp("source") / "run", options=OFTEN)


def test_members_start_from_the_networks_of_a_trained_one(tmp_path, source):
    path = source.folder.path
    saved = read_arrays(source.folder.weights("walks.Walk_s1"))
    config = resolve(BASE, {"agent.normalize": True, "init_from": f"{path}:walks:Walk:1"})
    with begun(tmp_path / "run", config) as training:
        state = training.state
        assert state.config.init_from == f"{path}:walks:Walk:1"
        for member in range(2):
            for name in ("value", "actor", "checkpoint", "encoder"):
                ours = np.asarray(getattr(state.fleet.states, name))[member]
                np.testing.assert_array_equal(ours, saved[f"state/{name}"])
        np.testing.assert_array_equal(state.fleet.policies, state.fleet.states.actor)
        assert saved["state/updates"] == 100
        assert not np.asarray(state.fleet.states.updates).any()  # counters start again
        for name, scale in state.normalizer.scales()._asdict().items():
            for member in range(2):
                np.testing.assert_allclose(scale[member], saved[f"scales/{name}"], rtol=1e-7)
        assert state.normalizer.statistics.obs.samples.tolist() == [LEAST_SAMPLES] * 2


@pytest.mark.slow
def test_run_from_trained_networks_resumes_when_the_other_run_is_gone(tmp_path, source):
    other = tmp_path / "other"
    shutil.copytree(source.folder.path, other)
    config = resolve(BASE, {"agent.normalize": True, "init_from": f"{other}:walks.Walk_s0"})
    whole = train(config, tmp_path / "whole", options=NEVER)
    stop_at(config, tmp_path / "run", lambda progress: progress.decisions.min() >= 30)
    shutil.rmtree(other)
    saved = load_config(whole.folder)
    assert saved.init_from == f"{other}:walks:Walk:0"
    assert_same(train(saved, tmp_path / "run", options=NEVER), whole)
    plain = train(resolve(BASE, {"agent.normalize": True}), tmp_path / "plain", options=NEVER)
    ours, theirs = (read_arrays(x.folder.weights("walks.Walk_s0")) for x in (whole, plain))
    assert (ours["state/actor"] != theirs["state/actor"]).any()


@pytest.mark.slow
def test_unfinished_run_gives_the_networks_of_its_checkpoint(tmp_path):
    config = resolve(BASE, {"seeds": 1})
    stop_at(config, tmp_path / "part", lambda progress: progress.decisions.min() >= 30)
    saved = read_arrays(tmp_path / "part" / "checkpoints" / "00000001.npz")
    new = resolve(BASE, {"init_from": str(tmp_path / "part")})
    with begun(tmp_path / "run", new) as training:
        ours = np.asarray(training.state.fleet.states.actor)
    np.testing.assert_array_equal(ours[1], saved["fleet/learners/state/actor"][0])


def test_sources_that_do_not_fit_are_refused(tmp_path, source):
    run = str(source.folder.path)

    def refused(text, **changes):
        fields = {"agent.normalize": True, "init_from": text, **changes}
        with pytest.raises(UserError) as error:
            train(resolve(BASE, fields), tmp_path / "new", options=NEVER)
        assert not (tmp_path / "new").exists()
        return str(error.value)

    text = refused(run)
    assert text == (
        f"init_from: expected one of {run}:walks:Walk:0, {run}:walks:Walk:1, got a run with "
        "several members"
    )
    assert "init_from: expected RUN or RUN:TASK:SEED with" in refused(str(tmp_path / "none"))
    assert "did you mean 'walks:Walk:1'?" in refused(f"{run}:walks:Walk:7")
    assert "array 'state/value': expected" in refused(f"{run}:walks:Walk:0", env="toys:Story-v0")
    text = refused(f"{run}:walks:Walk:0", **{"agent.normalize": False})
    assert "unexpected array 'scales/" in text
    other = {"agent": "td7", "agent.normalize": None}
    fields = {k: v for k, v in (BASE | other | {"init_from": f"{run}:walks:Walk:0"}).items() if v}
    with pytest.raises(UserError, match="expected a run of an agent of the same kind as td7, got"):
        train(resolve(fields), tmp_path / "new", options=NEVER)
    wrong = {"init_from_sha256": "0" * 64}
    assert "expected the weights with the SHA-256 0000" in refused(f"{run}:walks:Walk:0", **wrong)


def test_optimizers_start_again_with_the_networks_of_another_member():
    shapes = state_shapes(build_agent(small("simbav2-spl+r2r2"), SPEC, 1))
    fresh = jax.tree.map(lambda x: jnp.zeros((2, *x.shape), x.dtype), shapes)
    new = take_over(fresh, jax.tree.map(lambda x: np.ones(x.shape, x.dtype), shapes))
    base = new.base
    optimizers = new.encoder_adam, base.actor_adam, base.critic_adam, base.temperature_adam
    for leaf in jax.tree.leaves((optimizers, base.horizon)):
        assert (np.asarray(leaf) == 0).all()
    networks = new.encoder, new.model_target, base.actor, base.critic_target, base.log_temperature
    for leaf in jax.tree.leaves(networks):
        assert leaf.shape[0] == 2
        assert (np.asarray(leaf) == 1).all()


# The documentation


DOCS = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def test_examples_of_the_documentation_run(tmp_path, monkeypatch):
    """The Python code runs, and the commands load its file; the slow tests train."""
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", DOCS, flags=re.DOTALL)
    assert len(code) == 2
    exec("\n".join(code), {})
    commands = re.findall(r"^r2r2 train (.*--prefill pendulum.*)$", DOCS, flags=re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        config = finalize_config(parse_train(shlex.split(command)).config)
        spaces = {"Pendulum-v1": try_task("Pendulum-v1", None, 60.0).spaces}
        start = load_start_data(config, spaces)
        assert start.row_count == 2_000 + 10  # ten episodes of 200 steps


@pytest.mark.slow
def test_commands_with_trained_networks_in_the_documentation_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^r2r2 train (.*--init-from.*)$", DOCS, flags=re.MULTILINE)
    assert len(commands) == 2
    small = ["--steps", "40", "--eval-every", "40", "--eval-episodes", "1", "--workers", "0"]
    small += ["--agent", "small_agent:SLOPE"]
    task = ["--env", "Pendulum-v1", "--warmup", "10"]
    assert main(["train", *task, *small, "--out", "runs/first"]) == 0
    assert main(["train", *task, *small, "--seeds", "3,4", "--out", "runs/fleet"]) == 0
    for command in commands:
        assert main(["train", *shlex.split(command), *small]) == 0
