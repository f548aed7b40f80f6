"""What `r2r2 train` does with a run that is there, and says of one that is left."""

import dataclasses
import os
import signal

import numpy as np
import pytest
from tiny import train_tiny

from r2r2.api import Result, RunOptions
from r2r2.cli import train as train_command
from r2r2.cli.signals import WAIT
from r2r2.cli.train_flags import parse_train
from r2r2.config.errors import UserError
from r2r2.config.toml_io import to_toml
from r2r2.storage.files import StorageError
from r2r2.storage.run_folder import create_run
from r2r2.training.loop import Progress
from r2r2.training.run_config import finalize_config, fleet_members

ALONG = (
    "--steps, --env-timeout, --env-faults, --tensorboard, --workers, "
    "--checkpoint-every, --checkpoints"
)
CONFIG = finalize_config(parse_train(train_tiny("anywhere")[1:]).config)
NAMES = [member.name for member in fleet_members(CONFIG)]


@pytest.fixture
def unfinished(here):
    """The folder of a run that has begun."""
    return create_run(here / "run", to_toml(CONFIG), NAMES, overwrite=False)


@pytest.fixture
def done(unfinished):
    """The folder of a run that has ended."""
    unfinished.finish()
    return unfinished.path


def at(*steps):
    """Two members after that many steps."""
    none = np.zeros(2, int)
    nobody = none > 0
    return Progress(np.array(steps), none, nobody, 0, np.full(2, np.nan), nobody)


@pytest.fixture
def training(monkeypatch):
    """What a run does in place of training; gives what it was asked for."""
    asked = []

    def put(happens):
        def train(config, out, *, watch, how, say):
            asked.append((config, out, how))
            folder = create_run(out, to_toml(config), NAMES, overwrite=True)
            stopped = happens(watch, say) or {}
            returns = np.array([1.0, 3.0])
            return Result(folder, fleet_members(config), returns, {}, stopped)

        monkeypatch.setattr(train_command, "train", train)
        return asked

    return put


def quietly(watch, say):
    watch(at(0, 0))


def test_a_run_is_resumed_with_its_own_config(unfinished):
    command = parse_train(["--resume", str(unfinished.path)])
    assert command == (CONFIG, unfinished.path, RunOptions(), False)


@pytest.mark.parametrize(
    ("flag", "how"),
    [
        ("--tensorboard", RunOptions(tensorboard=True)),
        ("--workers=3", RunOptions(workers=3)),
        ("--checkpoint-every=5000", RunOptions(checkpoint_every="5000")),
        ("--checkpoints=4", RunOptions(checkpoints=4)),
    ],
)
def test_how_it_is_carried_out_may_be_given_beside(unfinished, flag, how):
    command = parse_train([f"--resume={unfinished.path}", flag])
    assert command == (CONFIG, unfinished.path, how, False)


@pytest.mark.parametrize("steps", [450, 900])
def test_the_steps_may_be_raised(unfinished, steps):
    command = parse_train([f"--resume={unfinished.path}", f"--steps={steps}"])
    assert command.config == dataclasses.replace(CONFIG, steps=steps)


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ("--steps 900 --utd 2", "utd is '2'"),
        ("--seeds 0,3", "seeds is '0,3'"),
        ("--width 9", "agent.width is '9'"),
        ("--agent td7", "agent is 'td7'"),
        ("--env dog-run", "env is 'dog-run'"),
        ("--quick", "quick is 'true'"),
        ("--config a.toml", "config is 'a.toml'"),
        ("--out b", "out is 'b'"),
        ("--overwrite", "overwrite is 'true'"),
        ("--no-overwrite", "overwrite is 'false'"),
    ],
)
def test_no_other_field_may_be_given_beside(r2r2, unfinished, training, flags, field):
    asked = training(quietly)
    assert r2r2("train", "--resume", "run", *flags.split()) == (
        2,
        "",
        f"r2r2: {field}, but with --resume the run's own config.toml holds; "
        f"allowed beside it are {ALONG}\n",
    )
    assert asked == []


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            "--steps 449",
            "steps is 449; allowed with --resume is 450, as many as 'run' has, or more",
        ),
        ("--steps 0", "steps is '0'; allowed is a whole number from 1 to 2147483647"),
        ("--widht 3", "'widht' is not a field; did you mean 'width'?"),
        (
            "--checkpoint-every 5h",
            "checkpoint_every is '5h'; allowed is minutes (10min, 0.5min), decision "
            "steps (5000) or never",
        ),
        (
            "--checkpoints 0",
            "checkpoints is '0'; allowed is a whole number from 1 to 2147483647",
        ),
        ("--resume nowhere", "nowhere: does not exist"),
        (
            "--resume .",
            ".: not a run folder; it has no manifest.json",
        ),
        ("--resume=", "resume is ''; allowed is the name of a folder"),
    ],
)
def test_what_cannot_be_resumed_is_refused(r2r2, unfinished, training, flags, sentence):
    asked = training(quietly)
    answer = (2, "", f"r2r2: {sentence}\n")
    assert r2r2("train", "--resume", "run", *flags.split()) == answer
    assert asked == []


@pytest.mark.parametrize("flags", [[], ["--steps=450"], ["--workers=1"]])
def test_a_finished_run_is_said_to_be_finished(r2r2, done, training, flags):
    asked = training(quietly)
    assert r2r2("train", "--resume", done, *flags) == (
        0,
        f"{done} is finished already, with this very config.\n"
        f"  evaluate: r2r2 eval {done}\n",
        "",
    )
    assert asked == []


def test_a_finished_run_goes_on_to_more_steps(r2r2, done, training):
    asked = training(quietly)
    argv = ["--steps=900", "--checkpoint-every=never", "--workers=1"]
    assert r2r2("train", "--resume", done, *argv).code == 0
    more = dataclasses.replace(CONFIG, steps=900)
    assert asked == [(more, done, RunOptions(workers=1, checkpoint_every="never"))]


def test_the_same_command_again_is_left_to_training(r2r2, unfinished, training):
    asked = training(quietly)
    assert r2r2(*train_tiny(unfinished.path)).code == 0
    assert asked == [(CONFIG, unfinished.path, RunOptions())]


def test_what_training_says_comes_below_the_opening(r2r2, here, training):
    def happens(watch, say):
        say("continues from step 30")
        watch(at(30, 31))
        say("[one] environment failed")

    training(happens)
    code, out, err = r2r2(*train_tiny("run"))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    opening = next(n for n, line in enumerate(lines) if "run folder run" in line)
    said = [line for line in lines[opening + 1 :] if "changed: " not in line]
    assert said[:2] == ["continues from step 30", "[one] environment failed"]


def test_what_was_said_before_a_refusal_is_shown(r2r2, here, training):
    def happens(watch, say):
        say("checkpoint 12 is damaged; the one before is used")
        raise UserError("it broke")

    training(happens)
    said = "checkpoint 12 is damaged; the one before is used\n"
    assert r2r2(*train_tiny("run")) == (2, said, "r2r2: it broke\n")


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_run_that_is_interrupted_names_the_command_to_go_on(
    r2r2, here, training, number, code
):
    checkpoints = []

    def happens(watch, say):
        watch(at(0, 0))
        watch(at(1, 1))
        os.kill(os.getpid(), number)
        try:
            watch(at(12_002, 12_000))
        except KeyboardInterrupt:
            checkpoints.append(12_000)
            raise
        raise AssertionError("the loop went on")

    training(happens)
    found = r2r2(*train_tiny("my run"))
    assert (found.code, checkpoints) == (code, [12_000])
    assert found.err == (
        f"{WAIT}\nr2r2: 'my run' is left at step 12000; "
        "go on with: r2r2 train --resume 'my run'\n"
    )


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_one_that_is_still_being_built_is_left_at_once(
    r2r2, here, training, number, code
):
    def happens(watch, say):
        watch(at(0, 0))
        os.kill(os.getpid(), number)
        raise AssertionError("it went on")

    training(happens)
    found = r2r2(*train_tiny("run"))
    assert found.code == code
    said = "r2r2: 'run' is unfinished; go on with: r2r2 train --resume run\n"
    assert found.err == said


@pytest.mark.usefixtures("heard")
def test_one_without_checkpoints_is_left_where_the_signal_falls(r2r2, here, training):
    def happens(watch, say):
        for step in range(5):
            watch(at(step, step))
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it went on")

    training(happens)
    found = r2r2(*train_tiny("run"), "--checkpoint-every=never")
    assert found.code == 130
    assert found.err == (
        "r2r2: 'run' is left at step 4, of which no checkpoint is kept; "
        "begin again with: r2r2 train --resume run\n"
    )


@pytest.mark.usefixtures("heard")
def test_one_that_might_still_be_refused_names_no_command(r2r2, here, training):
    training(lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert r2r2(*train_tiny("run")) == (130, "", "r2r2: interrupted\n")


def test_members_that_were_stopped_are_told_apart(r2r2, here, training):
    why = "its environment failed 11 times, most allowed is 10"
    training(lambda watch, say: watch(at(0, 0)) or {NAMES[0]: why})
    code, out, err = r2r2(*train_tiny("run"))
    assert (code, err) == (1, f"r2r2: {NAMES[0]} was stopped: {why}\n")
    assert "Pendulum-v1: return 3.0\n" in out
    assert out.endswith("  evaluate: r2r2 eval run\n")


def test_a_run_all_of_whose_members_were_stopped_suggests_nothing(r2r2, here, training):
    why = "a loss was not finite"
    training(lambda watch, say: watch(at(0, 0)) or dict.fromkeys(NAMES, why))
    code, out, err = r2r2(*train_tiny("run"))
    assert code == 1
    assert err == "".join(f"r2r2: {name} was stopped: {why}\n" for name in NAMES)
    assert out.endswith("Pendulum-v1: return -\n")


def test_a_full_disk_is_one_sentence(r2r2, here, training):
    def happens(watch, say):
        raise StorageError("run: cannot write: No space left on device")

    training(happens)
    said = "r2r2: run: cannot write: No space left on device\n"
    assert r2r2(*train_tiny("run")) == (1, "", said)
