"""The completion scripts, run by a real shell where there is one."""

import shutil
import subprocess

import pytest

from r2r2.config.agents import AGENTS

COMPLETE = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_r2r2
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def complete(cli, workdir):
    """Return what bash offers for the last word of a command line."""
    code, script, err = cli("completion", "bash")
    assert (code, err) == (0, "")
    (workdir / "script").write_text(script)

    def offered(*words):
        argv = ["bash", "-c", COMPLETE, "bash", "./script", "r2r2", *words]
        answer = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert answer.stderr == ""
        return answer.stdout.split()

    return offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_values(complete):
    assert complete("tr") == ["train"]
    assert complete("train", "--lambda-r") == ["--lambda-rr"]
    assert complete("train", "--critic-w") == ["--critic-width"]  # of another agent
    assert complete("train", "--no-tens") == ["--no-tensorboard"]
    assert complete("train", "--agent", "") == list(AGENTS)
    assert complete("train", "--agent", "=", "min") == ["minphi", "minphi+r2r2"]
    assert complete("train", "--precision", "t") == ["tf32"]
    assert "dog-run" in complete("bench", "--env", "dog")
    assert complete("list", "") == ["agents", "envs"]
    assert complete("completion", "z") == ["zsh"]
    assert complete("eval", "runs/a") == []  # left to the completion of files
    assert complete("clean", "--un") == ["--unfinished"]
    assert complete("docs", "--no-b") == ["--no-browser"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_for_other_shells(cli, workdir, shell):
    code, script, err = cli("completion", shell)
    assert (code, err) == (0, "")
    assert "lambda-rr" in script
    assert "minphi+r2r2" in script
    if shutil.which(shell):
        (workdir / "script").write_text(script)
        subprocess.run([shell, "-n", "script"], check=True)


def test_an_unknown_shell_is_rejected(rejected):
    assert rejected("completion", "fsh") == (
        "expected a shell: bash, zsh or fish, got 'fsh'; did you mean 'fish' or 'zsh'?"
    )
