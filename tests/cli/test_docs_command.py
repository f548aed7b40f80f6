"""`r2r2 docs`: the server of the documentation site."""

import os
import signal
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from r2r2.cli import docs


@pytest.fixture
def package(workdir, monkeypatch):
    """A package in an empty folder; `r2r2 docs` looks there for its site."""
    folder = workdir / "src" / "r2r2"
    folder.mkdir(parents=True)
    monkeypatch.setattr(docs.r2r2, "__file__", str(folder / "__init__.py"))
    return folder


@pytest.fixture
def installed(package):
    """A package with a site, as from a wheel."""
    (package / "site" / "assets").mkdir(parents=True)
    (package / "site" / "index.html").write_text("the start page")
    return package


@pytest.fixture
def requests(monkeypatch, default_signals):
    """Let a thread request pages from the server and then send a signal to the program."""
    serve = docs.Server.serve_forever

    def send(*paths, number=signal.SIGINT):
        answers = []

        def act(port):
            try:
                answers.extend(get(port, path) for path in paths)
            finally:
                os.kill(os.getpid(), number)

        def serve_and_act(server):
            threading.Thread(target=act, args=[server.server_port]).start()
            serve(server)

        monkeypatch.setattr(docs.Server, "serve_forever", serve_and_act)
        return answers

    return send


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def test_the_site_of_a_wheel_is_served_until_ctrl_c(cli, installed, requests, free_port):
    (installed / "secret").write_text("not part of the site")
    answers = requests("/", "/assets/", "/../secret", "/no-page")
    code, out, err = cli("docs", "--no-browser", "--port", free_port)
    assert (code, err) == (0, "")
    assert out == f"documentation: http://127.0.0.1:{free_port}/ (Ctrl-C ends)\n\n"
    assert answers == [(200, "the start page"), (404, ""), (404, ""), (404, "")]


def test_sigterm_ends_it_with_its_exit_code(cli, installed, requests):
    requests("/", number=signal.SIGTERM)
    assert cli("docs", "--no-browser").code == 143


def test_a_free_port_is_found(cli, installed, requests, monkeypatch, free_port):
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(docs, "PORTS", [other.getsockname()[1], free_port])
        requests("/")
        assert f":{free_port}/" in cli("docs", "--no-browser").out
        monkeypatch.setattr(docs, "PORTS", [other.getsockname()[1]])
        assert cli("docs", "--no-browser").code == 0


def test_a_port_in_use_is_rejected(rejected, installed):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        sentence = f"--port: port already in use; expected a free port, got {port}"
        assert rejected("docs", "--port", port) == sentence


def test_a_port_that_cannot_be_used_is_rejected(rejected, installed, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(docs, "Server", refuse)
    sentence = "--port: cannot serve there (Permission denied); expected a free port, got 80"
    assert rejected("docs", "--port", 80) == sentence


@pytest.mark.parametrize(("display", "opened"), [(":0", 1), ("", 0)])
def test_a_browser_is_opened_where_there_is_a_display(
    cli, installed, requests, monkeypatch, display, opened
):
    pages = []
    monkeypatch.setattr(docs.webbrowser, "open", pages.append)
    monkeypatch.setattr(docs.sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    requests("/")
    assert cli("docs").code == 0
    assert len(pages) == opened
    requests("/")
    assert cli("docs", "--no-browser").code == 0
    assert len(pages) == opened


def test_an_editable_install_builds_the_site_and_removes_it(cli, package, requests, monkeypatch):
    folders = []

    def build(sources, folder):
        assert Path(sources) == package.parents[1]
        folders.append(Path(folder))
        (Path(folder) / "index.html").write_text("built")

    (package.parents[1] / "mkdocs.yml").touch()
    monkeypatch.setattr(docs, "_build", build)
    answers = requests("/")
    code, out, _ = cli("docs", "--no-browser")
    assert (code, answers) == (0, [(200, "built")])
    assert out.startswith("building the documentation ...\n")
    assert not folders[0].exists()


def test_without_mkdocs_it_says_what_to_install(rejected, package, monkeypatch):
    (package.parents[1] / "mkdocs.yml").touch()
    monkeypatch.setattr(docs, "BUILDERS", ("json", "missing_package.handlers.python"))
    assert rejected("docs") == (
        "an editable install builds the documentation, and missing_package is not installed; "
        "install the extra: pip install -c constraints.txt -e '.[docs]'"
    )


def test_without_site_and_sources_it_says_so(rejected, package):
    assert rejected("docs") == (
        "the documentation is not part of this installation; expected a wheel made by "
        "'pip wheel .' or an editable install"
    )


def test_a_failing_build_is_reported(cli, package):
    (package.parents[1] / "mkdocs.yml").write_text("no_such_setting: [")
    code, _, err = cli("docs", "--no-browser")
    assert code == 1
    assert err.startswith("r2r2: error: mkdocs failed in ")
    assert "Traceback" not in err
