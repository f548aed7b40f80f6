"""Ctrl-C and SIGTERM while something trains."""

import os
import pty
import signal
import subprocess
import sys
import textwrap

import pytest

from r2r2.cli import main as cli
from r2r2.cli import signals
from r2r2.cli.signals import WAIT, Terminated, exit_code, held_back, interruptible

pytestmark = pytest.mark.usefixtures("heard")

BOTH = [(signal.SIGINT, KeyboardInterrupt, 130), (signal.SIGTERM, Terminated, 143)]

# Signals that reach a process while it trains, and what it says of itself.
LOOP = """
    import signal, sys, time
    from r2r2.cli.signals import exit_code, interruptible

    # A shell's background job has it ignored, and hands that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interruptible() as check:
            check()
            check()
            print("\\x1b[?25lready", flush=True)
            while True:
                time.sleep(TURN)
                check()
    except KeyboardInterrupt as interruption:
        print("a checkpoint")
        sys.exit(exit_code(interruption))
"""


class LeftAtOnceError(Exception):
    """In place of the end of the tests' own process."""


@pytest.fixture(autouse=True)
def left(monkeypatch):
    """The exit codes with which the process would have been left at once."""
    codes = []

    def leave(code):
        codes.append(code)
        raise LeftAtOnceError

    monkeypatch.setattr(signals.os, "_exit", leave)
    return codes


def begin(check):
    """As a run does: once before its loop, then after the first turn."""
    check()
    check()


@pytest.mark.parametrize("checks", [0, 1])
@pytest.mark.parametrize(("number", "kind", "code"), BOTH)
def test_before_the_loop_a_signal_is_raised_where_it_falls(
    number, kind, code, checks, capsys
):
    with interruptible() as check:
        for _ in range(checks):
            check()
        with pytest.raises(kind) as raised:
            signal.raise_signal(number)
    assert (type(raised.value), exit_code(raised.value)) == (kind, code)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("number", "kind", "code"), BOTH)
def test_in_the_loop_it_waits_for_the_end_of_the_turn(number, kind, code, capsys):
    with interruptible() as check:
        begin(check)
        signal.raise_signal(number)
        assert capsys.readouterr() == ("", f"{WAIT}\n")
        with pytest.raises(kind) as raised:
            check()
    assert (type(raised.value), exit_code(raised.value)) == (kind, code)


def test_without_a_signal_nothing_happens(capsys):
    with interruptible() as check:
        for _ in range(5):
            check()
    assert capsys.readouterr() == ("", "")


def test_one_that_was_dropped_before_the_loop_is_raised_by_the_next_check():
    with interruptible() as check:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()


@pytest.mark.parametrize("checks", [0, 2])
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("second", "_", "code"), BOTH)
def test_the_second_leaves_at_once(first, second, _, code, checks, left):
    with interruptible() as check:
        for _ in range(checks):
            check()
        try:
            signal.raise_signal(first)
        except KeyboardInterrupt:
            assert not checks
        assert left == []
        with pytest.raises(LeftAtOnceError):
            signal.raise_signal(second)
    assert left == [code]


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_ignored_stays_so(ignored, capsys):
    signal.signal(ignored, signal.SIG_IGN)
    with interruptible() as check:
        signal.raise_signal(ignored)
        begin(check)
        signal.raise_signal(ignored)
        signal.raise_signal(ignored)
        check()
        assert signal.getsignal(ignored) is signal.SIG_IGN
    assert signal.getsignal(ignored) is signal.SIG_IGN
    assert capsys.readouterr() == ("", "")


def test_afterwards_signals_do_what_they_did_before(heard):
    with pytest.raises(ZeroDivisionError), interruptible():
        raise ZeroDivisionError
    assert {number: signal.getsignal(number) for number in heard} == heard


def test_a_signal_that_falls_into_a_write_is_announced_all_the_same(monkeypatch, capfd):
    class Busy:
        def write(self, _):
            raise RuntimeError("reentrant call")

    with interruptible() as check:
        begin(check)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", Busy())
            signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == f"{WAIT}\n"


def looping(turn, stdout):
    program = textwrap.dedent(LOOP).replace("TURN", str(turn))
    argv = [sys.executable, "-c", program]
    return subprocess.Popen(argv, stdout=stdout, stderr=subprocess.PIPE, text=True)


def line_on(screen):
    shown = b""
    while not shown.endswith(b"\n"):
        shown += os.read(screen, 100)
    return shown


@pytest.mark.parametrize(("number", "_", "code"), BOTH)
def test_a_process_ends_after_its_turn(number, _, code):
    with looping(0.01, subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            process.send_signal(number)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (out, err, process.returncode) == ("a checkpoint\n", f"{WAIT}\n", code)


def test_a_process_that_is_asked_twice_ends_at_once_with_its_cursor_shown():
    screen, theirs = pty.openpty()
    with looping(600, theirs) as process:
        os.close(theirs)
        try:
            assert line_on(screen) == b"\x1b[?25lready\r\n"
            process.send_signal(signal.SIGINT)
            assert process.stderr.readline() == f"{WAIT}\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 143
        finally:
            process.kill()
        assert process.stderr.read() == ""
    assert line_on(screen) == b"\x1b[?25h\r\n"
    os.close(screen)


def test_an_interruption_waits_until_what_it_falls_into_is_done():
    done = []

    def load():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("loaded")

    with pytest.raises(KeyboardInterrupt), held_back():
        load()
    assert done == ["loaded"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_that_falls_into_the_loading_of_a_command_ends_it(monkeypatch, capsys):
    load, loaded = cli.importlib.import_module, []

    def interrupted(name):
        os.kill(os.getpid(), signal.SIGTERM)
        loaded.append(load(name))
        return loaded[-1]

    monkeypatch.setattr(cli.importlib, "import_module", interrupted)
    assert cli.main(["list", "agents"]) == 143
    assert len(loaded) == 1
    said = capsys.readouterr()
    assert said.err == "r2r2: interrupted\n"
    assert said.out == ""
