"""`r2r2 docs`: serve the documentation site of this installation to a browser on this machine."""

import contextlib
import errno
import functools
import http.server
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Generator
from pathlib import Path
from typing import Any

import r2r2
from r2r2.cli.argparser import ArgumentParser, field_table
from r2r2.config.errors import UserError
from r2r2.config.fields import ANY, integer_between
from r2r2.storage.files import StorageError
from r2r2.training.signals import interruptible

PARSER = ArgumentParser(
    "docs",
    "[--port N] [--no-browser]",
    """\
Show the documentation in a browser. The site is part of the installation and is
served on this machine only (127.0.0.1), until Ctrl-C; it loads nothing from the
internet. An editable install builds it first, which takes some seconds and
needs the extra 'docs'.
""",
    """\
  r2r2 docs
  r2r2 docs --port 9000 --no-browser
""",
    field_table(
        ("port", int, 0, "port to serve at; 0: a free one, from 8000", integer_between(0, 65_535)),
        ("browser", bool, True, "open the page in a browser", ANY),
    ),
)

ADDRESS = "127.0.0.1"
PORTS = range(8000, 8100)  # tried in this order if no port is given
BUILDERS = ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers.python", "latex2mathml")


def run(argv: list[str]) -> int:
    """Run `r2r2 docs` and return its exit code."""
    given = PARSER.parse(argv)
    try:
        with (
            interruptible(saves=False),
            open_server(given.get("port", 0)) as server,
            site_folder() as folder,
        ):
            server.RequestHandlerClass = functools.partial(Handler, directory=str(folder))
            url = f"http://{ADDRESS}:{server.server_port}/"
            print(f"documentation: {url} (Ctrl-C ends)", flush=True)
            if given.get("browser", True) and has_display():
                threading.Thread(target=webbrowser.open, args=[url], daemon=True).start()
            server.serve_forever()
    except KeyboardInterrupt as interruption:
        if type(interruption) is not KeyboardInterrupt:  # SIGTERM
            raise
        print()
    return 0


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a folder, without lists of folders and without a log."""

    def list_directory(self, path: Any) -> None:
        """Answer that there is no such page."""
        self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""


class Server(http.server.ThreadingHTTPServer):
    """A server whose open connections do not keep the program alive."""

    daemon_threads = True


def open_server(port: int) -> Server:
    """Return a server at a port, or at the first free one if it is 0."""
    for candidate in [port] if port else [*PORTS, 0]:
        try:
            return Server((ADDRESS, candidate), Handler)
        except OSError as error:
            problem = error
            if error.errno != errno.EADDRINUSE:
                break
    if problem.errno == errno.EADDRINUSE:
        raise UserError(f"port already in use; expected a free port, got {port}", "--port")
    why = os.strerror(problem.errno or 0)
    raise UserError(f"cannot serve there ({why}); expected a free port, got {port}", "--port")


@contextlib.contextmanager
def site_folder() -> Generator[Path]:
    """Yield the folder of the site: the installed one, or a new one, removed afterwards."""
    package = Path(r2r2.__file__).parent
    if (package / "site" / "index.html").is_file():
        yield package / "site"
        return
    sources = package.parents[1]
    _check_can_build(sources)
    with tempfile.TemporaryDirectory(prefix="r2r2-docs-") as folder:
        print("building the documentation ...", flush=True)
        _build(sources, folder)
        yield Path(folder)


def _check_can_build(sources: Path) -> None:
    if not (sources / "mkdocs.yml").is_file():
        raise UserError(
            "the documentation is not part of this installation; expected a wheel made by "
            "'pip wheel .' or an editable install"
        )
    if missing := [name for name in BUILDERS if not _is_installed(name)]:
        raise UserError(
            "an editable install builds the documentation, and "
            f"{missing[0].partition('.')[0]} is not installed; install the extra: "
            "pip install -c constraints.txt -e '.[docs]'"
        )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package that contains it
        return False


def _build(sources: Path, folder: str) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    answer = subprocess.run(
        command, cwd=sources, env=environment, capture_output=True, text=True, check=False
    )
    if answer.returncode:
        raise StorageError(f"mkdocs failed in {sources}:\n{answer.stderr.strip()}")


def has_display() -> bool:
    """Return whether a browser can open a window; text browsers would take the terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
