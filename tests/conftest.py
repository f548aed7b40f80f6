import os
import signal
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

# Examples wait for the compiler and for other tests, so they have no deadline.
# The same examples each time; `--hypothesis-profile explore` draws others.
hypothesis.settings.register_profile("explore", deadline=None, derandomize=False)
hypothesis.settings.register_profile("r2r2", deadline=None, derandomize=True)
hypothesis.settings.load_profile("r2r2")


def pytest_configure():
    """Handle SIGINT as in a shell's foreground: jobs in the background ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def default_signals():
    """Signal handlers as in a shell's foreground, however the tests were started."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, x) for number, x in handlers.items()}
    yield handlers
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """An empty working folder."""
    folder = tmp_path / "workdir"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The documentation site, built in strict mode, which with --quiet would ignore warnings."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    root = Path(__file__).parents[1]
    answer = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return folder
