import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import pytest
from tiny import train_tiny

from r2r2.cli.main import main


class Completed(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


Cli = Callable[..., Completed]


@pytest.fixture(scope="package")
def cli_settings(tmp_path_factory):
    """Set a cache folder for the commands; restore the settings that they change."""
    names = (
        *("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"),
        "jax_platforms",
    )
    before = {name: getattr(jax.config, name) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(sys, "path", list(sys.path))
        patch.setenv("COLUMNS", "100")
        yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture
def cli(cli_settings, workdir, capsys) -> Cli:
    """The program, run in this process and in an empty folder."""

    def run(*argv):
        code = main([str(token) for token in argv])
        return Completed(code, *capsys.readouterr())

    return run


@pytest.fixture
def rejected(cli, tmp_path):
    """Run a bad command line: one sentence, exit code 2, and nothing is written."""

    def sentence(*argv):
        before = tree(tmp_path)
        code, out, err = cli(*argv)
        assert (code, out) == (2, "")
        assert err.startswith("r2r2: error: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert tree(tmp_path) == before
        return err.removeprefix("r2r2: error: ").removesuffix("\n")

    return sentence


def tree(folder):
    """Everything below a folder, with its content."""
    return {
        path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="package")
def short_run(cli_settings, tmp_path_factory) -> Path:
    """A finished run without updates; take a copy to change it."""
    path = tmp_path_factory.mktemp("runs") / "short"
    fields = {"steps": "20", "random_only": "true", "eval_every": "10", "workers": "0"}
    assert main(train_tiny(path, **fields)) == 0
    return path
