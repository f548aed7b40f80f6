import subprocess
import sys

import pytest

import r2r2 as package
from r2r2.cli import process
from r2r2.cli import train as train_command
from r2r2.config.agents import AGENTS
from r2r2.envs.errors import EnvFailure
from r2r2.envs.suites import PAPER_TASKS, known_tasks


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(r2r2, argv):
    code, out, err = r2r2(*argv)
    assert (code, err) == (0, "")
    for command in ("r2r2 train", "r2r2 eval RUN", "r2r2 list agents|envs"):
        assert command in out


def test_the_version_is_the_packages(r2r2):
    assert r2r2("--version") == (0, f"{package.__version__}\n", "")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("train --help", "--lambda-rr X"),
        ("train --agent td7 -h", "L_RR; 0 removes the term [0.0]"),
        ("train --steps -h", "--steps X"),
        ("eval --help", "--episodes X                episodes per member [10]"),
        ("eval somewhere -h", "--member X"),
        ("eval -h", "--video X"),
        ("train -h", "step environments; 0: all in this one [one per core]"),
        ("train -h", "--[no-]tensorboard"),
        ("train -h", "--resume X                  go on with the run in this folder"),
        ("train --resume nowhere -h", "--checkpoints X"),
        ("list --help", "usage: r2r2 list agents|envs"),
    ],
)
def test_every_command_has_help(r2r2, here, argv, words):
    code, out, err = r2r2(*argv.split())
    assert (code, err) == (0, "")
    assert words in out
    assert list(here.iterdir()) == []


def test_agents_are_listed_with_what_they_are(r2r2):
    code, out, _ = r2r2("list", "agents")
    assert code == 0
    for name, spec in AGENTS.items():
        assert f"{name:18} {spec.description}\n" in out


def test_tasks_are_listed_once_each(r2r2):
    code, out, _ = r2r2("list", "envs")
    assert code == 0
    words = out.split()
    for task in {*PAPER_TASKS, *(t for tasks in known_tasks().values() for t in tasks)}:
        assert words.count(task) == 1
    assert "dog-run            dmc        (223, 38)" in out


def test_an_interruption_is_said_without_a_traceback(r2r2, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(train_command, "parse_train", interrupt)
    assert r2r2("train", "--steps", "3") == (130, "", "r2r2: interrupted\n")


def test_an_environment_that_fails_is_told_with_its_traceback(r2r2, monkeypatch):
    def fail(_):
        raise EnvFailure("Arm-v0 of member 3 broke.\nTraceback:\n  arm.py")

    monkeypatch.setattr(train_command, "parse_train", fail)
    said = "r2r2: Arm-v0 of member 3 broke.\nTraceback:\n  arm.py\n"
    assert r2r2("train", "--steps", "3") == (1, "", said)


def test_a_mistake_of_the_program_is_not_dressed_up_as_the_users(r2r2, monkeypatch):
    monkeypatch.setattr(train_command, "parse_train", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        r2r2("train", "--steps", "3")


def test_the_module_is_the_program(here):
    argv = [sys.executable, "-m", "r2r2", "train", "--steps", "0"]
    answer = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 2
    assert answer.stdout == ""
    sentence = "r2r2: steps is '0'; allowed is a whole number from 1 to 2147483647\n"
    assert answer.stderr == sentence


@pytest.mark.parametrize(
    ("called", "found", "said"),
    [
        (".venv/bin/r2r2", None, ".venv/bin/r2r2"),
        (".venv/bin/r2r2", "bin/r2r2", "r2r2"),
        ("site-packages/r2r2/__main__.py", None, "python -m r2r2"),
        ("site-packages/pytest/__main__.py", None, "r2r2"),
    ],
)
def test_what_it_says_to_do_next_can_be_pasted(monkeypatch, called, found, said):
    monkeypatch.setattr(sys, "argv", [called, "train"])
    monkeypatch.setattr(process.shutil, "which", lambda _: found)
    assert process.program() == said
