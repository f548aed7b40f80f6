"""A run that was left goes on as if nothing had happened."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from interrupted import (
    NEVER,
    OFTEN,
    assert_same,
    checkpoint,
    killed_after,
    leave,
    logged,
    tiny,
    train_saving,
)
from test_training import named

from r2r2 import UserError, train
from r2r2.config.toml_io import to_toml
from r2r2.storage.run_folder import create_run
from r2r2.training.run_config import finalize_config, find_config, fleet_members
from tensorboard_reader import scalars

FLEET = tiny(seeds="6,7,8")

# Turns of the loop after which much of what a run is made of is half done.
IN_WARM_UP, ABOUT_TO_KEEP, ALL_BUSY = 13, 39, 61
TURNS = (IN_WARM_UP, ABOUT_TO_KEEP, ALL_BUSY)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody interrupted, with a checkpoint of each of these turns."""
    path = tmp_path_factory.mktemp("whole") / "run"
    with_board = OFTEN._replace(tensorboard=True)
    return train_saving(FLEET, path, TURNS.__contains__, with_board)


def boards(result):
    """What TensorBoard shows of every member; of the run only that it went on."""
    names = result.folder.members
    return {name: sorted(scalars(result.folder.tensorboard / name)) for name in names}


def test_checkpoints_were_taken_when_much_was_half_done(whole):
    """Or the tests below would show less than they say."""
    warm_up, keep, busy = (checkpoint(whole.folder.path, n) for n in (1, 2, 3))
    arrays, notes = warm_up
    assert not arrays["schedule/warm"].all()
    assert len(arrays["fleet/waiting/members"]) > 10
    assert notes["journal"]["random"]

    arrays, notes = keep
    assert arrays["schedule/made"][arrays["fleet/kept"]].any()
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


def test_what_is_compared_below_holds_a_diagnosis_of_every_evaluation(whole):
    events = logged(whole.folder.path)
    evaluations = made(events, "evaluation", *COUNTS)
    assert len(evaluations) == 12
    for kind in ("diagnostics", "spectrum", "value"):
        assert made(events, kind, *COUNTS) == evaluations


@pytest.mark.slow
def test_checkpoints_change_nothing(whole, tmp_path):
    result = train(FLEET, tmp_path / "run", options=NEVER)
    assert_same(result, whole)


@pytest.mark.parametrize("number", [1, 3, 4], ids=["warm-up", "busy", "end"])
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(whole, tmp_path, number):
    path, said = killed_after(whole, tmp_path / "run", number), []
    how = NEVER._replace(tensorboard=True)
    result = train(FLEET, path, options=how, on_message=said.append)
    assert_same(result, whole)
    assert boards(result) == boards(whole)
    arrays, _ = checkpoint(whole.folder.path, number)
    step = int(arrays["rollout/steps"].min())
    assert said == [f"{path}: resuming from step {step}"]
    (resumed,) = named(logged(path, without=()), "resumed")
    assert (resumed["checkpoint"], resumed["decision_step"]) == (number, step)


@pytest.mark.slow
def test_other_workers_go_on_with_what_is_left(whole, tmp_path):
    """Also in the middle of evaluations, twice in a row; by a signal, not a kill."""
    path = tmp_path / "run"
    leave(FLEET, path, lambda progress: progress.updates.max() >= 20)
    two = OFTEN._replace(workers=2)
    leave(FLEET, path, lambda progress: progress.decisions.min() >= 45, options=two)
    _, notes = checkpoint(path, 2)
    assert notes["points"]["playing"]
    assert_same(train(FLEET, path, options=OFTEN), whole)


def test_a_damaged_checkpoint_is_passed_over_with_a_sentence(whole, tmp_path):
    """And the one before it, about to keep a policy, ends as if nothing had been."""
    path, said = killed_after(whole, tmp_path / "run", 3), []
    file = path / "checkpoints" / "00000003.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    result = train(FLEET, path, options=OFTEN, on_message=said.append)
    assert_same(result, whole)
    arrays, _ = checkpoint(whole.folder.path, 2)
    step = int(arrays["rollout/steps"].min())
    assert said == [
        f"{path}: checkpoint 3 is damaged (00000003.npz has a wrong checksum); "
        f"using the one of step {step}",
        f"{path}: resuming from step {step}",
    ]


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_again(whole, tmp_path):
    path = killed_after(whole, tmp_path / "run", 3)
    for file in (path / "checkpoints").glob("*[0-9].npz"):
        file.write_bytes(file.read_bytes()[:-1])
    before = {file: file.read_bytes() for file in path.rglob("*.*") if file.is_file()}
    with pytest.raises(UserError) as refusal:
        train(FLEET, path, options=OFTEN)
    said = str(refusal.value)
    assert said.startswith(f"{path}: checkpoint 3 is damaged (00000003.npz has ")
    assert "--overwrite starts again from step 0" in said
    assert before == {file: file.read_bytes() for file in before}


def test_a_run_left_before_its_first_checkpoint_begins_again(whole, tmp_path):
    path, said = killed_after(whole, tmp_path / "run", 0), []
    shutil.rmtree(path / "checkpoints")
    leave(FLEET, path, lambda progress: True, options=NEVER, on_message=said.append)
    assert said == [
        f"{path}: stopped before its first checkpoint; starting from step 0"
    ]
    # Nothing is left of the first attempt, and nothing happened in the first step.
    assert logged(path, without=()) == []
    assert not (path / "evaluations.csv").exists()


@pytest.mark.slow
def test_without_a_state_an_episode_begins_again_and_the_log_says_so(tmp_path):
    config = tiny(env="walks:Lost", seeds="6,7,8")
    leave(config, tmp_path / "run", lambda progress: progress.decisions.min() >= 40)
    arrays, notes = checkpoint(tmp_path / "run", 1)
    result = train(config, tmp_path / "run", options=NEVER)
    events = logged(tmp_path / "run", without=())
    place = events.index(named(events, "resumed")[0])
    dropped, repeated = (
        named(events[place:], kind)
        for kind in ("episode_dropped", "evaluation_repeated")
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
        numbers = [e["episode"] for e in named(events, "episode", names[member])]
        assert event["episode"] not in numbers
    assert not result.stopped
    # No step is lost: those of the dropped episode are made, and there are 60.
    for name in names:
        own = named(events, "episode", name) + named(dropped, "episode_dropped", name)
        steps = [event["decision_step"] for event in named(events, "evaluation", name)]
        assert steps == [15, 30, 45, 60]
        assert sum(event["length"] for event in own) <= 60


COUNTS = ("member", "decision_step", "update_step")


def made(events, kind, *fields):
    """What a log says of these fields, by member: members end at different times."""
    found = sorted(named(events, kind), key=lambda e: (e["member"], e["decision_step"]))
    return [[event[name] for name in fields] for event in found]


@pytest.mark.slow
def test_more_steps_go_on_with_what_was_owed_at_the_end(whole, tmp_path):
    """Who trains with whom is another then: bits are those of one member only."""
    path, said = tmp_path / "run", []
    short = train(tiny(seeds="6,7,8", steps=43), path, options=OFTEN)
    (end,) = named(logged(path), "end")
    assert (end["member"], end["updates_not_made"]) == (short.folder.members[1], 46)
    result = train(FLEET, path, options=NEVER, on_message=said.append)
    assert said == [f"{path}: resuming from step 43"]
    ours, theirs = logged(path), logged(whole.folder.path)
    for kind in ("episode", "evaluation", "policy_checkpoint"):
        assert made(ours, kind, *COUNTS) == made(theirs, kind, *COUNTS)
    for kind, value in (("episode", "return"), ("evaluation", "mean")):
        found = made(ours, kind, value)
        assert found == pytest.approx(np.array(made(theirs, kind, value)), rel=1e-5)
    np.testing.assert_allclose(result.returns, whole.returns, rtol=1e-5)


def test_a_checkpoint_of_format_1_is_gone_on_from(whole, tmp_path):
    """Of the same run, on a machine whose last bits may be others.

    It was not diagnosed yet: that begins with its next evaluations.
    """
    path, said = tmp_path / "run", []
    shutil.copytree(Path(__file__).parent / "format_1" / "left", path)
    _, notes = checkpoint(path, 2)
    assert "collapsed" not in notes
    assert "biases" not in notes["points"]
    result = train(find_config(path), path, options=NEVER, on_message=said.append)
    assert said == [f"{path}: resuming from step 31"]
    ours, theirs = logged(path), logged(whole.folder.path)
    assert made(ours, "episode", *COUNTS) == made(theirs, "episode", *COUNTS)
    assert made(ours, "evaluation", *COUNTS) == made(theirs, "evaluation", *COUNTS)
    later = [x for x in made(theirs, "evaluation", *COUNTS) if x[1] > 30]
    assert made(ours, "value", *COUNTS) == later
    np.testing.assert_allclose(result.returns, whole.returns, rtol=1e-3)
    assert len(list(path.glob("*/weights.npz"))) == 3


def there(path, config, finished=False):
    """The folder of a run without checkpoints."""
    config = finalize_config(config)
    names = [member.name for member in fleet_members(config)]
    folder = create_run(path, to_toml(config), names, overwrite=False)
    if finished:
        folder.finish()


SMALLER = "steps: expected 60 or more, as in '{}', got 59"
FALLING = "steps: expected 60, as in '{}', got 61; the learning rate of {} depends"
NOTHING = "{}: finished without a checkpoint"


@pytest.mark.parametrize(
    ("agent", "steps", "words", "finished"),
    [
        ("td7+r2r2", 59, SMALLER, False),
        ("td7+r2r2", 59, SMALLER, True),
        ("simbav2", 61, FALLING, False),
        ("simbav2-spl+r2r2", 61, FALLING, True),
        ("td7+r2r2", 61, NOTHING, True),
    ],
)
def test_a_run_that_cannot_go_on_is_refused(tmp_path, agent, steps, words, finished):
    there(tmp_path / "run", tiny(agent), finished)
    with pytest.raises(UserError) as refusal:
        train(tiny(agent, steps=steps), tmp_path / "run")
    assert str(refusal.value).startswith(words.format(tmp_path / "run", agent))
