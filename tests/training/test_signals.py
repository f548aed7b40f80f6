"""Ctrl-C and SIGTERM during training."""

import os
import pty
import signal
import subprocess
import sys
import textwrap

import pytest

from r2r2.cli import main as cli_main
from r2r2.training import signals
from r2r2.training.signals import (
    WAIT,
    Interrupted,
    Terminated,
    defer_signals,
    exit_code,
    interruptible,
)

pytestmark = pytest.mark.usefixtures("default_signals")

BOTH = [(signal.SIGINT, KeyboardInterrupt, 130), (signal.SIGTERM, Terminated, 143)]

LOOP = """
    import signal, sys, time
    from r2r2.training.signals import exit_code, interruptible

    # The background jobs of a shell ignore SIGINT, and so would this process.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interruptible() as check:
            check()
            check()
            print("\\x1b[?25lready", flush=True)
            while True:
                time.sleep(STEP)
                check()
    except KeyboardInterrupt as interruption:
        print("a checkpoint")
        sys.exit(exit_code(interruption))
"""


class ExitedError(Exception):
    """Raised where the process would have exited at once."""


@pytest.fixture(autouse=True)
def exit_codes(monkeypatch):
    """The exit codes with which the process would have exited at once."""
    codes = []

    def leave(code):
        codes.append(code)
        raise ExitedError

    monkeypatch.setattr(signals.os, "_exit", leave)
    return codes


@pytest.mark.parametrize("checks", [0, 1])
@pytest.mark.parametrize(("number", "kind", "code"), BOTH)
def test_before_the_loop_a_signal_is_raised_at_once(number, kind, code, checks, capsys):
    with interruptible() as check:
        for _ in range(checks):
            check()
        with pytest.raises(kind) as raised:
            signal.raise_signal(number)
    assert (type(raised.value), exit_code(raised.value)) == (kind, code)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("number", "kind", "code"), BOTH)
def test_in_the_loop_a_signal_waits_for_the_end_of_the_step(number, kind, code, capsys):
    with interruptible() as check:
        check()
        check()
        signal.raise_signal(number)
        assert capsys.readouterr() == ("", f"{WAIT}\n")
        with pytest.raises(kind) as raised:
            check()
    assert (type(raised.value), exit_code(raised.value)) == (kind, code)


def test_a_signal_that_python_dropped_is_raised_by_the_next_check():
    with interruptible() as check:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()


@pytest.mark.parametrize("checks", [0, 2])
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("second", "_", "code"), BOTH)
def test_the_second_signal_exits_at_once(first, second, _, code, checks, exit_codes):
    with interruptible() as check:
        for _ in range(checks):
            check()
        try:
            signal.raise_signal(first)
        except KeyboardInterrupt:
            assert not checks
        assert exit_codes == []
        with pytest.raises(ExitedError):
            signal.raise_signal(second)
    assert exit_codes == [code]


def test_in_a_program_of_others_only_the_second_ctrl_c_is_raised_at_once(default_signals, capsys):
    with interruptible(program=False) as check:
        assert signal.getsignal(signal.SIGTERM) is default_signals[signal.SIGTERM]
        check()
        check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted):
            check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda *_: None)
    with interruptible(program=False) as check:
        for _ in range(3):
            check()
            signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr() == ("", f"{WAIT}\n")


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGTERM])
def test_ignored_signals_stay_ignored(ignored, capsys):
    signal.signal(ignored, signal.SIG_IGN)
    with interruptible() as check:
        for _ in range(3):
            check()
            signal.raise_signal(ignored)
        check()
    assert signal.getsignal(ignored) is signal.SIG_IGN
    assert capsys.readouterr() == ("", "")


def test_handlers_are_restored(default_signals):
    with pytest.raises(ZeroDivisionError), interruptible():
        raise ZeroDivisionError
    for number, handler in default_signals.items():
        assert signal.getsignal(number) is handler


def test_a_signal_during_a_write_is_announced(monkeypatch, capfd):
    class Busy:
        def write(self, _):
            raise RuntimeError("reentrant call")

    with interruptible() as check:
        check()
        check()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", Busy())
            signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == f"{WAIT}\n"


def looping(step, stdout):
    program = textwrap.dedent(LOOP).replace("STEP", str(step))
    argv = [sys.executable, "-c", program]
    return subprocess.Popen(argv, stdout=stdout, stderr=subprocess.PIPE, text=True)


def read_line(terminal):
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(terminal, 100)
    return line


def test_a_process_ends_after_its_step():
    with looping(0.01, subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (out, err, process.returncode) == ("a checkpoint\n", f"{WAIT}\n", 143)


def test_a_process_signalled_twice_ends_at_once_and_shows_the_cursor():
    terminal, child = pty.openpty()
    with looping(600, child) as process:
        os.close(child)
        try:
            assert read_line(terminal) == b"\x1b[?25lready\r\n"
            process.send_signal(signal.SIGINT)
            assert process.stderr.readline() == f"{WAIT}\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 143
        finally:
            process.kill()
        assert process.stderr.read() == ""
    assert read_line(terminal) == b"\x1b[?25h\r\n"
    os.close(terminal)


def test_deferred_signals_are_raised_at_the_end():
    done = []

    def load():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("imported")

    with pytest.raises(KeyboardInterrupt), defer_signals():
        load()
    assert done == ["imported"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_during_the_import_of_a_command_ends_the_program(monkeypatch, capsys):
    import_module, imported = cli_main.importlib.import_module, []

    def interrupted(name):
        os.kill(os.getpid(), signal.SIGTERM)
        imported.append(import_module(name))
        return imported[-1]

    monkeypatch.setattr(cli_main.importlib, "import_module", interrupted)
    assert cli_main.main(["clean"]) == 143
    assert len(imported) == 1
    assert capsys.readouterr() == ("", "r2r2: interrupted\n")
