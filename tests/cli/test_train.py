"""The command line of `r2r2 train`, and what it prints about a run."""

import dataclasses
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from tiny import train_tiny

from r2r2.api import Result, RunFailed, RunOptions
from r2r2.cli import train as train_module
from r2r2.cli.train import CLI_ONLY, make_parser, parse_train
from r2r2.config.agent_configs import TD7Config
from r2r2.config.agents import AGENTS, AgentSpec, register_agent
from r2r2.config.common import R2R2
from r2r2.config.errors import UserError
from r2r2.config.fields import flatten_config
from r2r2.config.resolve import default_config, quick_config, resolve
from r2r2.config.toml_io import to_toml
from r2r2.storage.evaluations import Row, append_evaluations
from r2r2.storage.files import StorageError
from r2r2.storage.run_folder import create_run
from r2r2.training.loop import Progress
from r2r2.training.run_config import finalize_config
from r2r2.training.saved_config import fleet_members
from r2r2.training.signals import WAIT

CONFIG = finalize_config(parse_train(train_tiny("anywhere")[1:]).config)
NAMES = [member.name for member in fleet_members(CONFIG)]


@pytest.fixture
def toml_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('agent = "td7"\nenv = "dog-run"\nsteps = 70_000\nutd = "7"\n')
    return path


def test_without_arguments_the_quick_preset_is_used():
    assert parse_train([]) == parse_train(["--quick"])
    assert parse_train([]) == (resolve(quick_config()), None, RunOptions(), True)
    assert parse_train(["--overwrite", "--out", "a"]).quick


def test_with_config_options_the_quick_preset_is_not_used():
    command = parse_train(["--env", "Hopper-v5"])
    assert command == (resolve({"env": "Hopper-v5"}), None, RunOptions(), False)
    with pytest.raises(UserError, match=r"^env: expected one or more tasks"):
        parse_train(["--no-quick"])


def test_the_command_of_the_readme():
    argv = "--agent td7+r2r2 --env Hopper-v5 --utd 20 --seeds 5 --steps 500_000"
    config = parse_train(argv.split()).config
    assert config.agent.representation == R2R2
    assert (config.env, config.utd) == (("Hopper-v5",), 20)
    assert (config.seeds, config.steps) == ((0, 1, 2, 3, 4), 500_000)


def test_options_override_the_file_and_the_file_the_preset(toml_file):
    argv = ["--steps", "8k", "--quick", "--config", str(toml_file)]
    config = parse_train(argv).config
    assert (config.steps, config.utd) == (8_000, 7)
    assert (config.env, config.agent.name) == (("dog-run",), "td7")
    assert config.agent.width == quick_config("td7")["agent.width"]


@pytest.mark.parametrize("option", ["--agent", "--agent.name"])
def test_the_agent_option_selects_the_fields(toml_file, option):
    argv = ["--config", str(toml_file), option, "simbav2", "--critic-width=8"]
    assert parse_train(argv).config.agent.critic_width == 8
    with pytest.raises(UserError, match=r"^--critic-width: unknown option"):
        parse_train(["--config", str(toml_file), "--critic-width=8"])


@pytest.mark.parametrize(
    ("options", "on"),
    [
        (["--no-policy-checkpoints"], False),
        (["--agent.policy-checkpoints", "off"], False),
        (["--no-policy-checkpoints", "--policy-checkpoints"], True),
        ([], True),
    ],
)
def test_boolean_fields(options, on):
    config = parse_train(["--env", "Hopper-v5", *options]).config
    assert config.agent.policy_checkpoints is on


def test_compute_options():
    argv = ["--env=Hopper-v5", "--precision", "tf32", "--compute.fast", "off"]
    config = parse_train(argv).config
    assert (config.precision, config.compute.fast) == ("tf32", False)


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        (["--overwrite"], RunOptions(overwrite=True)),
        (["--no-overwrite", "--no-tensorboard"], RunOptions()),
        (["--workers=3", "--tensorboard"], RunOptions(tensorboard=True, workers=3)),
        (["--checkpoint-every", "0.5min"], RunOptions(checkpoint_every="0.5min")),
        (["--checkpoint-every=5000 steps"], RunOptions(checkpoint_every="5000 steps")),
        (["--checkpoints", "5"], RunOptions(checkpoints=5)),
    ],
)
def test_run_options_are_not_part_of_the_config(argv, options):
    command = parse_train(["--env=A-v0", "--out", "my_run-1", *argv])
    assert (command.options, command.out) == (options, Path("my_run-1"))
    assert command.config == parse_train(["--env=A-v0"]).config
    assert parse_train(argv).quick


@pytest.mark.parametrize("agent", ["td7+r2r2", "simbav2-spl"])
def test_help_shows_every_field_with_the_default_of_the_agent(agent):
    text = " ".join(make_parser(["--agent", agent]).format_help().split())
    for path, spec in (CLI_ONLY | flatten_config(default_config(agent))).items():
        if path != "agent.name":
            assert spec.help
            assert spec.help in text
    assert all(name in text for name in AGENTS)
    assert "learning rate of the actor [" in text or agent != "td7+r2r2"


def test_settings_are_resolved_from_the_task_once(rejected, workdir):
    """In a command that fails after that, because its folder is in use."""
    widths = []

    @dataclasses.dataclass(frozen=True)
    class Counting(TD7Config):
        def for_task(self, task):
            widths.append(self.width)
            return self

    register_agent(AgentSpec("counting", Counting(), "r2r2.agents.td7:td7"))
    (workdir / "used").mkdir()
    (workdir / "used" / "file").touch()
    try:
        argv = "--agent counting --width 7 --env Pendulum-v1 --out used --workers 0"
        assert "used" in rejected("train", *argv.split())
    finally:
        del AGENTS["counting"]
    assert widths.count(7) == 1  # the others are of the defaults


# Resuming


@pytest.fixture
def unfinished(workdir):
    """The folder of a run that was started."""
    return create_run(workdir / "run", to_toml(CONFIG), NAMES, overwrite=False)


@pytest.fixture
def done(unfinished):
    """The folder of a run that ended."""
    unfinished.finish()
    return unfinished.path


def test_resume_uses_the_config_of_the_run(unfinished):
    command = parse_train(["--resume", str(unfinished.path)])
    assert command == (CONFIG, unfinished.path, RunOptions(), False)


def test_resume_accepts_more_steps_and_run_options(unfinished):
    argv = [f"--resume={unfinished.path}", "--steps=900", "--env-faults=3"]
    command = parse_train([*argv, "--workers=3", "--checkpoint-every=5000"])
    assert command.config == dataclasses.replace(CONFIG, steps=900, env_faults=3)
    assert command.options == RunOptions(workers=3, checkpoint_every="5000")


@pytest.mark.parametrize(
    "argv",
    [
        *("--steps 900 --utd 2", "--seeds 0,3", "--width 9", "--agent td7", "--quick"),
        *("--config a.toml", "--out b", "--overwrite", "--no-overwrite"),
    ],
)
def test_resume_rejects_other_options(rejected, unfinished, argv):
    option = argv.removeprefix("--steps 900 ").split()[0].replace("--no-", "--")
    assert rejected("train", "--resume", "run", *argv.split()) == (
        f"{option}: not allowed with --resume, which uses the config of the run; "
        "expected only --steps, --env-timeout, --env-faults, --tensorboard, --workers, "
        "--checkpoint-every, --checkpoints, --retry-failed"
    )


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (
            "--steps 449",
            "--steps: --resume accepts a larger --steps; expected at least 450, the "
            "steps of 'run', got 449",
        ),
        ("--steps 0", "--steps: expected an integer >= 1, got '0'"),
        ("--widht 3", "--widht: unknown option; did you mean '--width'?"),
        ("--resume=", "--resume: expected the name of a folder, got ''"),
    ],
)
def test_resume_rejects_bad_values(rejected, unfinished, argv, sentence):
    assert rejected("train", "--resume", "run", *argv.split()) == sentence


# What is printed; `train` itself is replaced.


def at(*steps):
    """The progress of two members after that many steps."""
    none = np.zeros(2, int)
    nobody = none > 0
    return Progress(np.array(steps), none, nobody, 0, np.full(2, np.nan), nobody)


@pytest.fixture
def training(monkeypatch):
    """Replace training by a function; return the list of calls."""
    calls = []

    def replace(happens):
        def train(config, out, *, on_progress, options, on_message):
            calls.append((config, out, options))
            folder = create_run(out, to_toml(config), NAMES, overwrite=True)
            stopped = happens(on_progress, on_message) or {}
            returns = np.array([1.0, 3.0])
            result = Result(folder, fleet_members(config), returns, {}, stopped)
            if len(stopped) == len(NAMES):
                raise RunFailed(result)
            return result

        monkeypatch.setattr(train_module, "train_finalized", train)
        return calls

    return replace


def quietly(on_progress, on_message):
    on_progress(at(0, 0))


@pytest.mark.parametrize("argv", [[], ["--steps=450"], ["--workers=1"]])
def test_a_finished_run_is_not_trained_again(cli, done, training, argv):
    calls = training(quietly)
    assert cli("train", "--resume", done, *argv) == (
        0,
        f"{done} is already finished with the same config.\n  evaluate: r2r2 eval {done}\n",
        "",
    )
    assert calls == []


def test_a_finished_run_is_trained_for_more_steps(cli, done, training):
    calls = training(quietly)
    argv = ["--steps=900", "--checkpoint-every=never", "--workers=1"]
    assert cli("train", "--resume", done, *argv).code == 0
    more = dataclasses.replace(CONFIG, steps=900)
    assert calls == [(more, done, RunOptions(workers=1, checkpoint_every="never"))]


def test_repeating_a_command_resumes_its_run(cli, unfinished, training):
    calls = training(quietly)
    assert cli(*train_tiny(unfinished.path)).code == 0
    assert calls == [(CONFIG, unfinished.path, RunOptions())]


def test_messages_of_training_are_printed_below_the_opening(cli, workdir, training):
    def happens(on_progress, on_message):
        on_message("resuming from step 30")
        on_progress(at(30, 31))
        on_message("[one] environment failed")

    training(happens)
    code, out, err = cli(*train_tiny("run"))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    opening = next(n for n, line in enumerate(lines) if "run folder run" in line)
    printed = [line for line in lines[opening + 1 :] if "changed: " not in line]
    assert printed[:2] == ["resuming from step 30", "[one] environment failed"]


def test_messages_before_an_error_are_printed(cli, workdir, training):
    def happens(on_progress, on_message):
        on_message("checkpoint 12 is damaged; using the one before")
        raise UserError("it broke")

    training(happens)
    message = "checkpoint 12 is damaged; using the one before\n"
    assert cli(*train_tiny("run")) == (2, message, "r2r2: error: it broke\n")


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_names_the_command_to_resume(cli, workdir, training, number, code):
    def happens(on_progress, on_message):
        on_progress(at(0, 0))
        on_progress(at(1, 1))
        os.kill(os.getpid(), number)
        on_progress(at(12_002, 12_000))
        raise AssertionError("the loop continued")

    training(happens)
    completed = cli(*train_tiny("my run"))
    assert completed.code == code
    assert completed.err == (
        f"{WAIT}\nr2r2: 'my run' stopped at step 12000; resume with: r2r2 train --resume 'my run'\n"
    )


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize(
    ("calls", "options", "stopped"),
    [
        (1, [], "before its first step; resume with: r2r2 train --resume run"),
        (
            5,
            ["--checkpoint-every=never"],
            "at step 4 without a checkpoint; start over with: r2r2 train --resume run",
        ),
    ],
)
def test_an_interruption_without_a_checkpoint_is_immediate(
    cli, workdir, training, calls, options, stopped
):
    def happens(on_progress, on_message):
        for step in range(calls):
            on_progress(at(step, step))
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it continued")

    training(happens)
    completed = cli(*train_tiny("run"), *options)
    assert (completed.code, completed.err) == (130, f"r2r2: 'run' stopped {stopped}\n")


@pytest.mark.usefixtures("default_signals")
def test_an_interruption_before_the_run_starts_names_no_command(cli, workdir, training):
    training(lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert cli(*train_tiny("run")) == (130, "", "r2r2: interrupted\n")


def test_stopped_members_are_reported_separately(cli, workdir, training):
    reason = "its environment failed 11 times"
    training(lambda on_progress, _: on_progress(at(0, 0)) or {NAMES[0]: reason})
    code, out, err = cli(*train_tiny("run"))
    assert (code, err) == (1, f"r2r2: {NAMES[0]} was stopped: {reason}\n")
    assert "Pendulum-v1: last evaluation 3.0\n" in out
    assert out.endswith(f"  evaluate: r2r2 eval run\n{RETRY}{RESTART}")


RETRY = "  retry:    r2r2 train --resume run --retry-failed\n"
RESTART = "  restart:  r2r2 train --config run/config.toml --out run --overwrite\n"


@pytest.mark.parametrize(
    ("reason", "hint"),
    [("a loss was not finite", RESTART), ("its environment failed 11 times", RETRY + RESTART)],
)
def test_a_run_without_finished_members_has_failed(cli, workdir, training, reason, hint):
    def happens(on_progress, _):
        on_progress(at(0, 0))
        on_progress(at(7, 9)._replace(stopped=np.array([True, True])))
        return dict.fromkeys(NAMES, reason)

    training(happens)
    code, out, err = cli(*train_tiny("run"))
    lines = [f"r2r2: {name} was stopped: {reason}\n" for name in NAMES]
    report = f"run/{NAMES[0]}/stopped.json"
    end = f"r2r2: error: run: failed; every member was stopped, see '{report}'\n"
    assert (code, err) == (1, "".join([*lines, end]))
    assert "  failed 8/450 1% in " in out
    assert "done" not in out
    assert "return" not in out
    assert out.endswith(hint)


@pytest.mark.parametrize("stopped", [NAMES, NAMES[:1]])
def test_a_run_with_stopped_members_that_has_ended_says_how_to_run_it_again(
    cli, unfinished, training, stopped
):
    calls = training(quietly)
    for name in stopped:
        unfinished.report(name).write_text('{"why": "its environment failed 11 times"}')
    unfinished.finish(stopped)
    code, out, err = cli("train", "--resume", "run")
    assert (code, calls) == (1, [])
    assert err.startswith(f"r2r2: {NAMES[0]} was stopped: its environment failed 11 times\n")
    assert ("r2r2: error: run: failed; every" in err) == (stopped == NAMES)
    assert ("run is already finished" in out) == (stopped != NAMES)
    assert out.endswith(RETRY + RESTART)
    assert cli("train", "--resume", "run", "--retry-failed").code == 0
    assert calls == [(CONFIG, Path("run"), RunOptions(retry_failed=True))]


def test_a_run_on_an_environment_from_python_needs_python(rejected, unfinished):
    unfinished.write_versions({"env_from_python": "Arm"})
    for argv in (["train", "--resume", "run"], ["eval", "run"], [*train_tiny("run")]):
        assert rejected(*argv) == (
            "run: this run was trained with an environment given from Python (Arm); pass env= to "
            "train, evaluate_run or record_video there"
        )


def test_the_result_has_the_last_evaluation_and_the_score_of_a_report(cli, workdir, training):
    def happens(on_progress, on_message):
        on_progress(at(0, 0))
        rows = [
            Row("x", "Pendulum-v1", seed, "return", step, value)
            for seed, last in ((0, 1.0), (3, 3.0))
            for step, value in ((10, -80.0), (20, -20.0), (30, last))
        ]
        append_evaluations(Path("run/evaluations.csv"), rows)

    training(happens)
    code, out, err = cli(*train_tiny("run"))
    assert (code, err) == (0, "")
    # (-80 - 20 + 1) / 3 and (-80 - 20 + 3) / 3.
    assert (
        "Pendulum-v1: last evaluation 2.0 (1.0 to 3.0, 2 seeds); "
        "mean of all 3 evaluations -32.7 (-33.0 to -32.3, 2 seeds)\n"
    ) in out


def test_a_full_disk_is_one_sentence(cli, workdir, training):
    def happens(on_progress, on_message):
        raise StorageError("'run' cannot be written: No space left on device")

    training(happens)
    message = "r2r2: error: 'run' cannot be written: No space left on device\n"
    assert cli(*train_tiny("run")) == (1, "", message)
