"""The program: dispatch, help, version, listings, exit codes."""

import os
import shlex
import subprocess
import sys

import pytest

import r2r2 as package
from r2r2.cli import main as main_module
from r2r2.cli import train as train_module
from r2r2.config.agents import AGENTS
from r2r2.envs.spec import EnvFailure
from r2r2.envs.suites import PAPER_TASKS, known_tasks


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(cli, argv):
    code, out, err = cli(*argv)
    assert (code, err) == (0, "")
    assert all(f"\n  {command} " in out for command in main_module.COMMANDS)
    assert max(map(len, out.splitlines())) <= 80


FOREIGN_IMPORTS = """
import contextlib, io, sys
before = set(sys.modules)
import r2r2
with contextlib.redirect_stdout(io.StringIO()):
    {}
roots = {{name.partition(".")[0] for name in set(sys.modules) - before}}
platform = {{name for name in roots if name.startswith("_sysconfigdata")}}
print(sorted(roots - set(sys.stdlib_module_names) - platform - {{"r2r2"}}))
"""


@pytest.mark.parametrize(
    "statement",
    [
        "pass",
        "from r2r2.cli.main import main; main(['--help'])",
        "from r2r2.cli.main import main; main(['--version'])",
    ],
)
def test_import_help_and_version_import_only_the_standard_library(workdir, statement):
    """What they need of time is then that of Python: no JAX, NumPy, Matplotlib or MuJoCo."""
    argv = [sys.executable, "-c", FOREIGN_IMPORTS.format(statement)]
    answer = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert (answer.returncode, answer.stderr, answer.stdout) == (0, "", "[]\n")


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ("train --help", "--lambda-rr X "),
        ("train --agent td7 -h", "L_RR; 0: off [0.0]"),
        ("train --agent simbav2 -h", "--critic-width N "),
        ("train --steps -h", "--steps N "),
        ("train -h", "--[no-]tensorboard "),
        ("train --resume nowhere -h", "--checkpoints N "),
        ("tune -h", "--budget TIME "),
        ("eval --help", "--episodes N"),
        ("eval somewhere -h", "--member TASK:SEED"),
        ("bench -h", "--[no-]bases "),
        ("report -h", "exp_name,env_name,seed,metric,env_step,value"),
        ("clean runs -h", "--[no-]unfinished "),
        ("watch -h", "refresh interval in seconds [2.0]"),
        ("export -h", "--format NAME "),
        ("sweep -h", "--budget TIME start only what finishes in this time"),
        ("paper -h", "usage: r2r2 paper [NAME|FILE.toml]"),
        ("push RUN -h", "--[no-]private "),
        ("pull -h", "usage: r2r2 pull SRC DIR [--overwrite]"),
        ("list --help", "usage: r2r2 list agents|envs"),
        ("doctor -h", "--[no-]json print one JSON document"),
        ("docs -h", "--port N port to serve at; 0: a free one, from 8000"),
        ("completion -h", "usage: r2r2 completion bash|zsh|fish"),
    ],
)
def test_every_command_has_help_of_80_columns(cli, workdir, monkeypatch, argv, text):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = cli(*argv.split())
    assert (code, err) == (0, "")
    assert text in " ".join(out.split()) or text in out
    assert max(map(len, out.splitlines())) <= 80
    assert list(workdir.iterdir()) == []


def test_version(cli):
    assert cli("--version") == (0, f"r2r2 {package.__version__}\n", "")


def test_list_agents(cli):
    code, out, _ = cli("list", "agents")
    assert code == 0
    for name, spec in AGENTS.items():
        assert f"{name:18} {spec.description}\n" in out


def test_list_envs_names_each_task_once(cli):
    code, out, _ = cli("list", "envs")
    assert code == 0
    words = out.split()
    for task in {*PAPER_TASKS, *(t for tasks in known_tasks().values() for t in tasks)}:
        assert words.count(task) == 1
    assert "dog-run            dmc        (223, 38)" in out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("tarin", "unknown command 'tarin'; did you mean 'train'?"),
        ("fly", "unknown command 'fly'; see r2r2 --help"),
        ("--steps 5", "unknown command '--steps'; see r2r2 --help"),
        ("list", "expected what to list: agents or envs"),
        (
            "list agent",
            "expected what to list: agents or envs, got 'agent'; did you mean 'agents'?",
        ),
        ("list envs agents", "unexpected argument 'agents'"),
        ("list envs --all", "--all: unknown option; see r2r2 list --help"),
    ],
)
def test_unknown_commands_and_lists_are_rejected(rejected, argv, sentence):
    assert rejected(*argv.split()) == sentence


@pytest.mark.parametrize(
    ("raised", "completed"),
    [
        (KeyboardInterrupt(), (130, "", "r2r2: interrupted\n")),
        (
            EnvFailure("Arm-v0 failed.\nTraceback:\n  arm.py"),
            (1, "", "r2r2: error: Arm-v0 failed.\nTraceback:\n  arm.py\n"),
        ),
    ],
)
def test_failures_have_their_exit_code(cli, monkeypatch, raised, completed):
    def fail(_):
        raise raised

    monkeypatch.setattr(train_module, "parse_train", fail)
    assert cli("train", "--steps", "3") == completed


def test_a_failure_does_not_end_the_process_abruptly(monkeypatch, capsys):
    def fail(_):
        raise EnvFailure("it failed")

    monkeypatch.setattr(train_module, "parse_train", fail)
    monkeypatch.setattr(sys, "argv", ["r2r2", "train", "--steps", "3"])
    monkeypatch.setattr(os, "_exit", lambda code: 1 / 0)
    with pytest.raises(SystemExit) as ended:
        main_module.entry()
    assert ended.value.code == 1


def test_bugs_are_not_reported_as_user_errors(cli, monkeypatch):
    monkeypatch.setattr(train_module, "parse_train", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli("train", "--steps", "3")


def test_python_m_r2r2_is_the_program(workdir):
    argv = [sys.executable, "-m", "r2r2", "list", "nothing"]
    answer = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("r2r2: error: expected what to list")


def test_closed_output_ends_the_program_without_a_traceback(workdir):
    read_end, write_end = os.pipe()
    os.close(read_end)
    argv = [sys.executable, "-m", "r2r2", "--help"]
    answer = subprocess.run(argv, stdout=write_end, stderr=subprocess.PIPE, timeout=120)
    os.close(write_end)
    assert (answer.returncode, answer.stderr) == (141, b"")


def test_a_program_without_an_output_ends_normally(workdir):
    command = f"{sys.executable} -m r2r2 --version >&-"
    answer = subprocess.run(command, shell=True, stderr=subprocess.PIPE, timeout=120)
    assert (answer.returncode, answer.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("called", "on_path", "name"),
    [
        (".venv/bin/r2r2", {}, ".venv/bin/r2r2"),
        (".venv/bin/r2r2", {"r2r2": "bin/r2r2"}, "r2r2"),
        ("site-packages/r2r2/__main__.py", {"python": sys.executable}, "python -m r2r2"),
        (
            "site-packages/r2r2/__main__.py",
            {"python": "/another/bin/python"},
            f"{shlex.quote(sys.executable)} -m r2r2",
        ),
        ("site-packages/pytest/__main__.py", {}, "r2r2"),
    ],
)
def test_suggested_commands_can_be_pasted(monkeypatch, called, on_path, name):
    monkeypatch.setattr(sys, "argv", [called, "train"])
    monkeypatch.setattr(main_module.shutil, "which", on_path.get)
    assert main_module.program_name() == name
