"""Commands and Python of the documentation run, page by page and in order, in one folder."""

import functools
import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from doc_pages import ROOT, TESTED_ELSEWHERE, blocks, pages
from filelock import FileLock
from small_commands import small
from small_python import GIVEN, make_runs_small, run_python

from r2r2.cli import theory
from r2r2.cli.main import main
from r2r2.report import figures
from r2r2.storage.transitions import save_transitions
from r2r2.theory.experiments import run_experiments
from synthetic_runs import make_csv

SHELLS = ("bash", "sh")
HERE = Path(__file__).parent
# Programs that are not run, because they change the installation; extras in them are checked.
INSTALLERS = ("pip", "venv", "activate", "apt-get", "git", "cd", "pytest", "pre-commit")
# Programs of the shell that are run as they stand.
SHELL = ("cat", "cp", "echo", "eval", "head", "ls", "mkdir", "mv", "tail")
SCRIPTS = ("benchmarks/", "docs/", "examples/")
# The C compiler and programs that pages make with it; they are left out where there is none.
COMPILING = ("cc", "./main")
OPERATORS = ("&&", ";")


class Command(NamedTuple):
    """One command of a page."""

    place: str
    tokens: list[str]
    writes: str = ""  # the file that its output is redirected to


def blocks_to_run(page):
    """Return the blocks of commands and of Python that run here, in order."""
    return [
        block
        for block in blocks(page)
        if block.language in (*SHELLS, "python")
        and not block.not_run
        and (page, block.language) not in TESTED_ELSEWHERE
    ]


def commands(block):
    """Return the commands of a block, in order; none of a Python block."""
    if block.language not in SHELLS:
        return []
    code = re.sub(HERE_DOCUMENT, "", block.code).replace("\\\n", " ")
    return [command for line in code.splitlines() for command in split_line(line, block.place)]


# A file that a block writes with `cat > FILE <<EOF`.
HERE_DOCUMENT = re.compile(r"^cat > (\S+) <<'?(\w+)'?\n(.*?)^\2\n", re.DOTALL | re.MULTILINE)


def split_line(line, place):
    """Split a line at && and ; and leave out what follows a pipe."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    parts: list[list[str]] = [[]]
    for token in lexer:
        if token in OPERATORS:
            parts.append([])
        else:
            parts[-1].append(token)
    return [_simple(part, place) for part in parts if part]


def _simple(tokens, place):
    tokens = tokens[: tokens.index("|")] if "|" in tokens else tokens
    if ">" not in tokens:
        return Command(place, tokens)
    at = tokens.index(">")
    return Command(place, tokens[:at], tokens[at + 1])


def page_files(page):
    """Return the files that a page shows: blocks that begin with a name, and here documents."""
    files = {}
    for block in blocks(page):
        if block.named_file:
            files[block.named_file] = block.code
        for name, _, text in HERE_DOCUMENT.findall(block.code):
            files[name] = text
    return files


def test_lines_are_split():
    line = "A=1 r2r2 eval RUN --json > x.json && r2r2 train --env-args '{\"a\": 2}' # || none"
    assert split_line(line, "page:1") == [
        Command("page:1", ["A=1", "r2r2", "eval", "RUN", "--json"], "x.json"),
        Command("page:1", ["r2r2", "train", "--env-args", '{"a": 2}']),
    ]
    assert split_line("r2r2 train | head -1", "") == [Command("", ["r2r2", "train"])]


def test_commands_become_small():
    assert small(["eval", "RUN"]) == ["eval", "RUN", "--episodes", "1", "--workers", "0"]
    assert small(["push", "RUN", "hf:me/x"]) == ["push", "RUN", "hub/me/x"]
    assert small(["sweep", "smoke", "--dry-run"]) == ["sweep", "smoke", "--dry-run"]
    assert small(["sweep", "main-table", "--dry-run"]) == ["sweep", "evidence", "--dry-run"]
    assert small(["sweep", "smoke", "--scale", "0.1", "--budget", "2h", "--out", "/x"]) == [
        *("sweep", "tiny.toml", "--out", "x")
    ]
    changed = small(["train", "--env", "dog-run,dog-walk", "--steps", "1M", "--warmup", "0"])
    assert {"--steps=60", "--agent.width=16", "--seeds=0,"} <= set(changed)
    assert "--env=cartpole-swingup,cartpole-balance" in changed
    assert not any(option.startswith("--warmup=") for option in changed)
    assert small(["train"])[1] == "--quick"
    assert small(["bench", "--members", "1", "20"])[-2:] == ["--members", "1"]
    assert small(["clean"]) == ["clean"]
    assert small(["clean", "--unfinished"])[-1] == "--yes"


# Inputs that pages name and do not make themselves, by name.
INPUTS = {
    **{"RUN": "td7+r2r2", "RUN_A": "td7+r2r2", "RUN_B": "td7"},
    **{"runs/hopper": "td7+r2r2", "runs/dog": "td7"},
}
TINY_EXPERIMENT = """
[base]
env = "Pendulum-v1"
steps = 60
eval_every = 30
eval_episodes = 1
max_episode_steps = 20
random_only = true
[[grids]]
agent = "td7"
"""
TINY_STUDY = """
[base]
env = "Pendulum-v1"
steps = 40
eval_every = 20
eval_episodes = 1
max_episode_steps = 20
random_only = true
[space]
encoder_rate = {low = 1e-4, high = 1e-3}
[study]
trials = 2
"""
TEXTS = {
    "my_grid.toml": TINY_EXPERIMENT,
    "tiny.toml": TINY_EXPERIMENT,
    "rates.toml": TINY_STUDY,
    "study.toml": 'env = "Hopper-v5"\n',
    "my_robot.py": (HERE / "my_robot.py").read_text(),
    "ddpg.py": (ROOT / "examples" / "ddpg.py").read_text(),
    "out.mp4": "a film",
}
ALL_INPUTS = (
    *TEXTS,
    *INPUTS,
    *("other.csv", "theirs.csv", "published.csv.gz", "data.npz", "pendulum.npz"),
    *("results", "sweeps", "runs/first", "runs/fleet"),
)


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    """Let commands cache programs in one folder; restore the settings of JAX at the end."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    names += ("jax_platforms",)
    before = {name: getattr(jax.config, name) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared_folder(tmp_path_factory) / "page-cache"))
        patch.setenv("WANDB_MODE", "disabled")
        patch.setenv("COLUMNS", "100")
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        yield
    for name, value in before.items():
        jax.config.update(name, value)


def shared_folder(tmp_path_factory):
    """Return the folder of this session that the processes of pytest-xdist have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="module")
def shared(shared_cache, tmp_path_factory):
    """A folder with the inputs of all pages, which the processes of pytest-xdist share."""
    folder = shared_folder(tmp_path_factory) / "page-inputs"
    with FileLock(f"{folder}.lock"):
        if not folder.with_suffix(".done").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a process that failed
            folder.mkdir()
            make_inputs(folder)
            folder.with_suffix(".done").touch()
    return folder


def make_inputs(folder):
    """Make the inputs of all pages in a folder; runs have seeds 0 and 3."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        for agent in dict.fromkeys(INPUTS.values()):
            run(["train", "--agent", agent, "--env", "Hopper-v5", "--seeds", "0,3", "--out", agent])
        pendulum = ["train", "--env", "Pendulum-v1", "--random-only"]
        run([*pendulum, "--seeds", "0,3", "--out", "runs/fleet"])
        (folder / "runs" / "first").mkdir()
        assert main(["train", *small([*pendulum, "--seeds", "0,"])[1:], "--out=runs/first"]) == 0
        assert main(["collect", "td7", "--out", "results"]) == 0
        shutil.copytree("td7", "sweeps/runs/td7")
    for name, agent in INPUTS.items():
        shutil.copytree(folder / agent, folder / name)
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    write_data(folder)


def write_data(folder):
    """Write transitions of Hopper and Pendulum, and results of another program."""
    rng = np.random.default_rng(0)
    for name, obs_dim, action_dim in (("data.npz", 11, 3), ("pendulum.npz", 3, 1)):
        columns = {
            "observations": rng.normal(size=(64, obs_dim)),
            "actions": rng.uniform(-1, 1, (64, action_dim)),
            "rewards": rng.normal(size=64),
            "next_observations": rng.normal(size=(64, obs_dim)),
            "terminations": np.zeros(64, dtype=bool),
        }
        save_transitions(folder / name, **columns)
    make_csv(folder / "theirs.csv", {("sac", "Hopper-v5", seed): [1.0, 2.0] for seed in range(2)})
    shutil.copy(folder / "theirs.csv", folder / "other.csv")
    packed = gzip.compress((folder / "theirs.csv").read_bytes())
    (folder / "published.csv.gz").write_bytes(packed)


@pytest.fixture
def folder(shared, tmp_path, monkeypatch):
    """A function that fills the working folder with the inputs that a page names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("my_robot", "my_losses", "ddpg"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    short = functools.partial(run_experiments, end=8.0, starts=2)
    monkeypatch.setattr(theory, "run_experiments", short)
    monkeypatch.setattr(figures, "render_chart", lambda _: dict.fromkeys(figures.FORMATS, b""))

    make_runs_small(monkeypatch)

    def fill(page):
        text = "\n".join(page_texts(page))
        for name in ALL_INPUTS:
            if name == "tiny.toml" or is_input(name, text):
                copy(shared / name, tmp_path / name)
        for name, code in page_files(page).items():
            (tmp_path / name).write_text(code)

    return fill


def page_texts(page):
    """Return the commands and the Python code of a page."""
    for block in blocks_to_run(page):
        yield from (shlex.join(command.tokens) for command in commands(block))
        if block.language == "python":
            yield block.code


def is_input(name, text):
    """Return whether a page uses a file before it makes it."""
    if name.startswith("runs/") and re.search(r"^r2r2 .*\bruns\b(?!/)|watch|clean", text, re.M):
        return not re.search(rf"--out {name}\b", text)
    first = re.search(rf"(?<![\w/.-]){re.escape(Path(name).with_suffix('').as_posix())}\b", text)
    return first is not None and not text[: first.start()].endswith(("--out ", 'out="'))


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)


def run(argv, capture=None):
    """Run an `r2r2` command in this process, made small; return what it prints."""
    code = main(small(argv))
    out, err = capture.readouterr() if capture else ("", "")
    assert code == 0, (
        f"r2r2 {shlex.join(small(argv))}: exit code {code}\n{out[-2000:]}{err[-2000:]}"
    )
    return out


def run_command(command, capture, monkeypatch):
    """Run one command of a page, or check what it installs."""
    tokens = set_variables(command.tokens, monkeypatch)
    if not tokens:
        return
    program, *arguments = tokens
    if re.fullmatch(r"python[\d.]*", Path(program).name) and arguments[:1] == ["-m"]:
        program, *arguments = arguments[1:]
    name = "activate" if program in (".", "source") else Path(program).name
    name = program if program in COMPILING else name
    if name == "r2r2":
        out = run(arguments, capture)
        if command.writes:
            Path(command.writes).write_text(out)
    elif name in INSTALLERS:
        check_extras(arguments)
    else:
        run_program(name, arguments, command.place)


def set_variables(tokens, monkeypatch):
    """Set the variables at the start of a command, and return the rest."""
    tokens = tokens[1:] if tokens[0] == "export" else tokens
    while tokens and (assigned := re.fullmatch(r"([A-Z_]+)=(.*)", tokens[0])):
        monkeypatch.setenv(assigned[1], assigned[2])
        tokens = tokens[1:]
    return tokens


def run_program(name, arguments, place):
    """Run a Python script, or a program of the shell."""
    where = None
    if name in COMPILING and not shutil.which("cc"):
        return
    if name.startswith("python"):
        where = ROOT if arguments[0].startswith(SCRIPTS) else None
        command = [sys.executable, *arguments]
    else:
        assert name in (*SHELL, *COMPILING), (
            f"{place}: {name}: mark the block as not run, with the reason"
        )
        command = ["bash", "-euc", f"{name} {shlex.join(arguments)}"]
    subprocess.run(command, cwd=where, check=True, capture_output=True)


def check_extras(arguments):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for argument in arguments:
        for extras in re.findall(r"^(?:r2r2|\.)\[(.*)\]$", argument):
            assert set(extras.split(",")) <= project["optional-dependencies"].keys()
        assert not argument.endswith(".txt") or (ROOT / argument).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in pages() if blocks_to_run(page)])
def test_page_runs(page, folder, capsys, monkeypatch):
    folder(page)
    names = dict(GIVEN, __name__="__main__")
    for block in blocks_to_run(page):
        for command in commands(block):
            try:
                run_command(command, capsys, monkeypatch)
            except BaseException as error:
                error.add_note(f"{command.place}: {shlex.join(command.tokens)}")
                raise
        if block.language == "python":
            run_python(block, names)
