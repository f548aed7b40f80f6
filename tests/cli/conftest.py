import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import pytest
from tiny import train_tiny

from r2r2.cli.main import main


class Said(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str


Say = Callable[..., Said]


@pytest.fixture(scope="package")
def caches(tmp_path_factory):
    """Compiled programs are kept in a folder of the tests, and so are pictures' fonts.

    The commands change settings of the process, which are put back.
    """
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(sys, "path", list(sys.path))
        patch.setenv("COLUMNS", "100")
        yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def r2r2(caches, here, capsys) -> Say:
    """The program, run in this process and in an empty folder."""

    def say(*argv):
        code = main([str(word) for word in argv])
        return Said(code, *capsys.readouterr())

    return say


@pytest.fixture(scope="package")
def trained(caches, tmp_path_factory) -> Path:
    """A run that is finished; to change it, take a copy."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    assert main(train_tiny(path)) == 0
    return path


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def heard():
    """Signals as in a shell's foreground, whatever the tests were started from."""
    set_to = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, how) for number, how in set_to.items()}
    yield set_to
    for number, how in before.items():
        signal.signal(number, how)
