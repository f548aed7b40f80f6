"""Options of `r2r2 train` for the early stop, the device and W&B; --device of other commands."""

import json
import sys

import pytest
from tiny import train_tiny

from r2r2.cli.train import parse_train

NO_GPU = "--device: JAX does not see it; expected one of cpu (cpu), got 'gpu:3'"


def test_options_are_parsed():
    argv = "--quick --stop-at-return -5 --device gpu:1 --wandb --wandb-project hop --no-tensorboard"
    command = parse_train(argv.split())
    assert command.config.stop_at_return == -5
    options = command.options
    assert (options.device, options.wandb, options.wandb_project) == ("gpu:1", True, "hop")
    options = parse_train([]).options
    assert (options.device, options.wandb, options.wandb_project) == ("auto", False, "r2r2")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("train --quick --device gpu:3", NO_GPU),
        ("bench --device gpu:3", NO_GPU),
        (
            "train --quick --device cuda",
            "--device: expected cpu, gpu, one of several such as gpu:1, or auto (what JAX "
            "chooses), got 'cuda'",
        ),
        ("train --quick --wandb-project hop", "--wandb-project: only used with --wandb"),
        (
            "train --quick --stop-at-return high",
            "--stop-at-return: expected a number from -1e+18 to 1e+18, or inf (never), got 'high'",
        ),
        (
            "train --quick --reward-threshold 5",
            "--reward-threshold: unknown option; did you mean '--stop-at-return'?",
        ),
    ],
)
def test_wrong_values_are_rejected(rejected, argv, sentence):
    assert rejected(*argv.split()) == sentence


def test_eval_rejects_a_missing_device(cli, short_run):
    done = cli("eval", str(short_run), "--device", "gpu:3")
    assert (done.code, done.err) == (2, f"r2r2: error: {NO_GPU}\n")


@pytest.mark.slow
def test_run_that_reaches_its_return_ends_early(cli, workdir):
    done = cli(*train_tiny("run", stop_at_return="-1e6", device="cpu"))
    assert (done.code, done.err) == (0, "")
    why = "every member has reached a return of -1e+06 (stop_at_return)"
    assert f" of 450: {why}\n" in done.out
    assert "450/450" not in done.out
    again = cli("train", "--resume", "run", "--steps", "900")
    assert (again.code, again.err) == (0, "")
    assert f"run is already finished with the same config: {why}.\n" in again.out
    versions = json.loads((workdir / "run" / "versions.json").read_text())
    assert (versions["platform"], versions["device_index"]) == ("cpu", "0")


@pytest.mark.slow
def test_ctrl_c_in_a_callback_is_an_interruption(cli, workdir, monkeypatch):
    """Importing and starting W&B takes seconds, in which users press Ctrl-C."""

    class Slow:
        Settings = dict

        def login(self, prompt):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "wandb", Slow())
    monkeypatch.setattr("r2r2.training.loggers.require_wandb", lambda: None)
    done = cli(*train_tiny("run"), "--wandb")
    assert done.code == 130
    assert "'run' stopped at step 0; resume with: " in done.err
