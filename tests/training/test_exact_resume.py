"""Interrupted runs resume to the bit."""

import json
import shutil
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from interrupted import (
    NEVER,
    OFTEN,
    TINY,
    assert_same,
    checkpoint,
    interrupt,
    killed_after,
    logged,
    tiny,
    train_saving,
)
from runs import select

from r2r2 import UserError, evaluate_run, resolve, train
from r2r2.config.toml_io import to_toml
from r2r2.envs.vector.pool import EnvPool
from r2r2.envs.vector.step_types import EnvFactory
from r2r2.storage.arrays import read_arrays
from r2r2.storage.checkpoints import ENV_STATES
from r2r2.storage.run_folder import create_run
from r2r2.training.acting import make_actors
from r2r2.training.evaluation import EvalEpisodes, Evaluator, eval_slots, load_policies, play_to_end
from r2r2.training.run_config import finalize_config
from r2r2.training.saved_config import find_config, fleet_members
from tensorboard_reader import scalars

FLEET = tiny(seeds="6,7,8")

# Iterations of the loop after which much is incomplete: in warm-up, before a policy
# checkpoint, and with all members busy.
ITERATIONS = (13, 39, 61)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run with a checkpoint after each of these iterations."""
    path = tmp_path_factory.mktemp("whole") / "run"
    with_board = OFTEN._replace(tensorboard=True)
    return train_saving(FLEET, path, ITERATIONS.__contains__, with_board)


def boards(result):
    """Return the TensorBoard scalars of every member."""
    names = result.folder.members
    return {name: sorted(scalars(result.folder.tensorboard / name)) for name in names}


def test_checkpoints_are_taken_when_much_is_incomplete(whole):
    """Otherwise the tests below would show less."""
    warm_up, keep, busy = (checkpoint(whole.folder.path, n) for n in (1, 2, 3))
    arrays, notes = warm_up
    assert not arrays["schedule/warm"].all()
    assert (arrays["fleet/opened"] > 10).all()
    assert notes["journal"]["random"]

    arrays, notes = keep
    assert arrays["schedule/made"].any()
    assert arrays["schedule/owed"].any()
    assert len(set(arrays["rollout/steps"].tolist())) == 3

    arrays, notes = busy
    assert (arrays["fleet/opened"] > FLEET.replay_size).all()
    assert notes["points"]["due"]
    assert notes["points"]["playing"]
    assert any(total for _, *totals in notes["points"]["returns"] for total in totals)
    weights = [weight for *_, weight in notes["points"]["biases"]]
    assert any(weight < 1 for weight in weights)
    assert {len(points) % 2 for points in notes["journal"]["points"]} == {0, 1}
    assert 0 < notes["journal"]["logged"] < arrays["rollout/steps"].mean()


def test_log_has_a_diagnosis_of_every_evaluation(whole):
    events = logged(whole.folder.path)
    evaluations = table(events, "evaluation", *COUNTS)
    assert len(evaluations) == 12
    for kind in ("diagnostics", "spectrum", "value"):
        assert table(events, kind, *COUNTS) == evaluations


@pytest.mark.slow
def test_checkpoints_change_nothing(whole, tmp_path):
    result = train(FLEET, tmp_path / "run", options=NEVER)
    assert_same(result, whole)


@pytest.mark.parametrize(
    "number", [pytest.param(1, marks=pytest.mark.slow), 3], ids=["warm-up", "busy"]
)
def test_resume_is_bit_exact_after_kill(whole, tmp_path, number):
    path, messages = killed_after(whole, tmp_path / "run", number), []
    options = NEVER._replace(tensorboard=True)
    result = train(FLEET, path, options=options, on_message=messages.append)
    assert_same(result, whole)
    assert boards(result) == boards(whole)
    arrays, _ = checkpoint(whole.folder.path, number)
    step = int(arrays["rollout/steps"].min())
    assert messages == [f"{path}: resuming from step {step}"]
    versions = json.loads((path / "versions.json").read_text())
    (entry,) = versions.pop("resumed")
    assert entry == {"step": step, **versions}
    assert {"precision", "device", "jax"} < versions.keys()
    (resumed,) = select(logged(path, without=()), "resumed")
    assert (resumed["checkpoint"], resumed["decision_step"]) == (number, step)


@pytest.mark.slow
def test_resume_with_other_workers_is_bit_exact_after_interrupt(whole, tmp_path):
    """Twice in a row, in the middle of evaluations."""
    path = tmp_path / "run"
    interrupt(FLEET, path, lambda progress: progress.updates.max() >= 20)
    two = OFTEN._replace(workers=2)
    interrupt(FLEET, path, lambda progress: progress.decisions.min() >= 45, options=two)
    _, notes = checkpoint(path, 2)
    assert notes["points"]["playing"]
    assert_same(train(FLEET, path, options=OFTEN), whole)


@pytest.mark.parametrize("number", [1, 3], ids=["warm-up", "busy"])
def test_best_weights_after_a_resume_are_those_of_the_checkpoint(whole, tmp_path, number):
    """Evaluations after the checkpoint are repeated, perhaps with other returns."""
    path = killed_after(whole, tmp_path / "run", number)
    _, notes = checkpoint(path, number)
    interrupt(FLEET, path, lambda progress: True)
    for means, name in zip(notes["journal"]["points"], whole.folder.members, strict=True):
        file = path / name / "best_weights.npz"
        assert file.exists() == bool(means)
        if means:
            best = read_arrays(file)
            assert (best["mean"], best["step"]) == (max(means), 15 * (1 + np.argmax(means)))


def test_best_weights_are_the_policy_of_the_best_evaluation(whole):
    """Their episodes can be repeated with the same returns."""
    config, members = finalize_config(FLEET), fleet_members(FLEET)
    factories = [EnvFactory(member.task, 1) for member in members]
    slots, rows = eval_slots(members, factories, 2), range(len(members))
    with EnvPool(slots, 0, actors=partial(make_actors, config, members)) as pool:
        loaded = load_policies(whole.folder, config, pool.spec, members, "best")
        plan = EvalEpisodes(members, range(len(slots)), 2, "evaluate")
        evaluator = Evaluator(plan, len(members))
        first = [2 * (step // 15 - 1) for step in loaded.steps]
        evaluator.begin(pool, rows, loaded.policies, first)
        returns = play_to_end(evaluator, pool)
    assert [returns[member].mean() for member in rows] == list(loaded.means)
    events = logged(whole.folder.path)
    for name, step, mean in zip(whole.folder.members, loaded.steps, loaded.means, strict=True):
        means = {e["decision_step"]: e["mean"] for e in select(events, "evaluation", name)}
        assert (len(means), mean) == (4, max(means.values()))
        assert means[step] == mean


@pytest.mark.slow
def test_normalized_policies_are_read_from_a_checkpoint(tmp_path):
    """The last checkpoint of a finished run has its final weights and statistics."""
    result = train(tiny("simbav2", seeds="6,7"), tmp_path / "run", options=OFTEN)
    final = evaluate_run(result.folder.path, episodes=2, workers=0)
    path = killed_after(result, tmp_path / "killed", 1)
    for name in result.folder.members:
        (path / name / "weights.npz").unlink()
    saved = evaluate_run(path, episodes=2, workers=0)
    assert saved.policies.description == "checkpoint at step 60 of 60; the run is interrupted"
    assert saved.policies.policies.scales is not None
    np.testing.assert_array_equal(saved.returns, final.returns)


def test_damaged_checkpoint_is_skipped_with_a_message(whole, tmp_path):
    """Resuming from the one before it, which precedes a policy checkpoint, is exact."""
    path, messages = killed_after(whole, tmp_path / "run", 3), []
    file = path / "checkpoints" / "00000003.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    result = train(FLEET, path, options=OFTEN, on_message=messages.append)
    assert_same(result, whole)
    arrays, _ = checkpoint(whole.folder.path, 2)
    step = int(arrays["rollout/steps"].min())
    assert messages == [
        f"{path}: checkpoint 3 is damaged (00000003.npz has a wrong checksum); "
        f"using the one of step {step}",
        f"{path}: resuming from step {step}",
    ]


def test_run_with_only_damaged_checkpoints_does_not_start_again(whole, tmp_path):
    path = killed_after(whole, tmp_path / "run", 3)
    for file in (path / "checkpoints").glob("*[0-9].npz"):
        file.write_bytes(file.read_bytes()[:-1])
    before = {file: file.read_bytes() for file in path.rglob("*.*") if file.is_file()}
    with pytest.raises(UserError) as error:
        train(FLEET, path, options=OFTEN)
    text = str(error.value)
    assert text.startswith(f"{path}: checkpoint 3 is damaged (00000003.npz has ")
    assert "to start again from step 0, use r2r2 train --config RUN/config.toml" in text
    assert before == {file: file.read_bytes() for file in before}


def test_run_without_checkpoints_starts_again(whole, tmp_path):
    path, messages = killed_after(whole, tmp_path / "run", 0), []
    shutil.rmtree(path / "checkpoints")
    interrupt(FLEET, path, lambda progress: True, options=NEVER, on_message=messages.append)
    assert messages == [f"{path}: stopped before its first checkpoint; starting from step 0"]
    # Nothing is left of the first attempt; an episode may have only one step.
    events = logged(path, without=())
    assert {(event["event"], event["decision_step"]) for event in events} <= {("episode", 1)}
    assert not (path / "evaluations.csv").exists()


@pytest.mark.slow
def test_resume_is_bit_exact_if_an_environment_failed_ahead_of_its_rows(tmp_path, monkeypatch):
    """The rows before the failure are delivered first, and then the failure."""
    fields = {"agent": "small_agent:SLOPE", "agent.policy_checkpoints": True, "seeds": "6,7"}
    config = resolve(TINY, fields, {"env": "walks:Breaks", "steps": 50, "env_faults": 100})
    save_states = EnvPool.save_states

    def save_later(pool, slots):
        """Let the worker of the first member play until its environment fails, if it does."""
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline and not pool.streams.has_failed(0):
            time.sleep(0.01)
        return save_states(pool, slots)

    with monkeypatch.context() as patch:
        patch.setattr(EnvPool, "save_states", save_later)
        two = OFTEN._replace(workers=2)
        whole = train_saving(config, tmp_path / "whole", lambda number: number % 9 == 4, two)
    assert len(select(logged(whole.folder.path), "episode_dropped")) > 3
    waiting = {}  # rows before a failure, by checkpoint
    for path in sorted(whole.folder.checkpoints.glob(f"*{ENV_STATES}")):
        arrays = read_arrays(path)
        if "0/stream/fault" in arrays:
            waiting[int(path.name[:8])] = len(arrays["0/stream/reward"])
    assert len(waiting) > 1
    assert max(waiting.values()) > 1
    for number, workers in zip(list(waiting)[-2:], (2, 0), strict=True):
        path = killed_after(whole, tmp_path / str(number), number)
        assert_same(train(config, path, options=NEVER._replace(workers=workers)), whole)


@pytest.mark.slow
def test_episode_restarts_if_its_environment_has_no_saved_state(tmp_path):
    config = tiny(env="walks:Lost", seeds="6,7,8")
    interrupt(config, tmp_path / "run", lambda progress: progress.decisions.min() >= 40)
    arrays, notes = checkpoint(tmp_path / "run", 1)
    result = train(config, tmp_path / "run", options=NEVER)
    events = logged(tmp_path / "run", without=())
    place = events.index(select(events, "resumed")[0])
    dropped, repeated = (
        select(events[place:], kind) for kind in ("episode_dropped", "evaluation_repeated")
    )
    assert len(repeated) == len(notes["points"]["playing"])
    for event in (*dropped, *repeated):
        assert event["why"] == "the environment cannot save its state"
        assert not event["own"]
    names = result.folder.members
    assert [event["member"] for event in dropped] == list(names)
    for member, event in enumerate(dropped):
        assert event["decision_step"] == arrays["rollout/steps"][member]
        assert event["length"] == arrays["rollout/length"][member]
        numbers = [e["episode"] for e in select(events, "episode", names[member])]
        assert event["episode"] not in numbers
    assert not result.stopped
    # The steps of dropped episodes count.
    for name in names:
        ended = select(events, "episode", name) + select(dropped, "episode_dropped", name)
        steps = [event["decision_step"] for event in select(events, "evaluation", name)]
        assert steps == [15, 30, 45, 60]
        assert sum(event["length"] for event in ended) <= 60


COUNTS = ("member", "decision_step", "update_step")


def table(events, kind, *fields):
    """Return fields of events in a fixed order, as members finish at any time."""
    ordered = sorted(select(events, kind), key=lambda e: (e["member"], e["decision_step"]))
    return [[event[name] for name in fields] for event in ordered]


@pytest.mark.slow
def test_more_steps_resume_pending_updates(whole, tmp_path):
    """Members then train in other groups, so results agree only approximately."""
    path, messages = tmp_path / "run", []
    short = train(tiny(seeds="6,7,8", steps=43), path, options=OFTEN)
    (end,) = select(logged(path), "end")
    assert (end["member"], end["updates_not_made"]) == (short.folder.members[1], 46)
    result = train(FLEET, path, options=NEVER, on_message=messages.append)
    assert messages == [f"{path}: resuming from step 43"]
    ours, theirs = logged(path), logged(whole.folder.path)
    ours = [x for x in ours if (x["event"], x["decision_step"]) != ("evaluation", 43)]
    for kind in ("episode", "evaluation", "policy_checkpoint"):
        assert table(ours, kind, *COUNTS) == table(theirs, kind, *COUNTS)
    for kind, value in (("episode", "return"), ("evaluation", "mean")):
        actual = table(ours, kind, value)
        assert actual == pytest.approx(np.array(table(theirs, kind, value)), rel=1e-5)
    np.testing.assert_allclose(result.returns, whole.returns, rtol=1e-5)


def test_checkpoint_of_format_1_resumes(tmp_path):
    """It was saved on another machine, before there were diagnostics.

    Warm-up had other random actions then, but was over. The log has the rest of that run.
    """
    path, messages = tmp_path / "run", []
    shutil.copytree(Path(__file__).parent / "format_1" / "left", path)
    theirs = logged(path)
    _, notes = checkpoint(path, 2)
    assert "collapsed" not in notes
    assert "biases" not in notes["points"]
    train(find_config(path), path, options=NEVER, on_message=messages.append)
    assert messages == [f"{path}: resuming from step 31"]
    ours = logged(path)
    assert ours[:5] == theirs[:5]
    for kind, value in (("episode", "return"), ("evaluation", "mean")):
        assert table(ours, kind, *COUNTS) == table(theirs, kind, *COUNTS)
        actual, expected = (np.array(table(events, kind, value)) for events in (ours, theirs))
        np.testing.assert_allclose(actual, expected, rtol=1e-2)
    later = [x for x in table(theirs, "evaluation", *COUNTS) if x[1] > 30]
    assert table(ours, "value", *COUNTS) == later
    assert len(list(path.glob("*/weights.npz"))) == 3


def make_folder(path, config, finished=False):
    """Create the folder of a run without checkpoints."""
    config = finalize_config(config)
    names = [member.name for member in fleet_members(config)]
    folder = create_run(path, to_toml(config), names, overwrite=False)
    if finished:
        folder.finish()


SMALLER = "steps: expected 60 or more, as in '{}', got 59"
FALLING = "steps: expected 60, as in '{}', got 61; the learning rate of {} depends"
NOTHING = "{}: finished, and has no checkpoint to continue from"


@pytest.mark.parametrize(
    ("agent", "steps", "text", "finished"),
    [
        ("td7+r2r2", 59, SMALLER, False),
        ("td7+r2r2", 59, SMALLER, True),
        ("simbav2", 61, FALLING, False),
        ("simbav2-spl+r2r2", 61, FALLING, True),
        ("td7+r2r2", 61, NOTHING, True),
    ],
)
def test_run_that_cannot_resume_is_refused(tmp_path, agent, steps, text, finished):
    make_folder(tmp_path / "run", tiny(agent), finished)
    with pytest.raises(UserError) as error:
        train(tiny(agent, steps=steps), tmp_path / "run")
    assert str(error.value).startswith(text.format(tmp_path / "run", agent))


def test_resume_with_another_precision_is_refused(tmp_path):
    make_folder(tmp_path / "run", tiny())
    with pytest.raises(UserError, match="precision"):
        train(tiny(precision="mixed"), tmp_path / "run")
