"""`r2r2 watch`: the command and the view of runs."""

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from functools import partial
from pathlib import Path

import pytest
from growing_run import GrowingRun, render, render_paths
from rich.cells import cell_len
from rich.console import Console

from r2r2.cli import watch as subject
from r2r2.cli.run_monitor import RunMonitor
from r2r2.cli.watch import RunWatcher
from r2r2.cli.watch_view import Size, fit_row, render_runs, wrap_text


@pytest.fixture(autouse=True)
def disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def growing(workdir):
    """A run after 30% of its steps."""
    run = GrowingRun(Path("runs/walker"), agent="td7+r2r2")
    run.step(10, 100, 10)
    run.step(70, 300, 610)
    for step, low, high in ((100, 10.0, 30.0), (200, 20.0, 60.0), (300, 45.0, 95.0)):
        run.returns(step, low, high)
    return run


def test_run_in_training_shows_config_progress_speed_and_returns(growing, workdir):
    with growing.training():
        rows = render_paths(growing.path)
    assert rows[0] == "1 run: 1 training"
    assert rows[1] == "training  td7+r2r2 on walk, UTD 3, seeds 0,1"
    assert rows[2] == "  runs/walker"
    # 200 steps in 60 s; 700 are left.
    assert re.fullmatch(r"  █+░+ 300/1,000 30% ETA 3:30", rows[3])
    assert rows[4:8] == [
        "  speed 6.7 steps/s, 20 updates/s",
        "  return 70.0 (45.0 to 95.0, 2 seeds) at env step 600",
        "  s0 45.0, s1 95.0",
        "  walk: mean and range of 2 seeds",
    ]
    assert rows[8].startswith("  95┤")
    assert rows[-1].split() == ["0", "2000", "env", "steps"]
    assert any("⠁" <= c <= "⣿" for c in "".join(rows))


def test_what_bounds_a_run_is_not_cut_off(growing):
    names = ("physics", "acting", "evaluation", "transfer", "compiling", "waiting")
    growing.event("time", 300, 610, wall=100.0, bound="environments", **dict.fromkeys(names, 10.0))
    rows = render_paths(growing.path, width=60)
    first = next(n for n, row in enumerate(rows) if row.startswith("  time "))
    lines = rows[first : first + 3]
    assert {row[:7].strip() for row in lines[1:]} == {""}
    shares = ", ".join(f"{name} 10%" for name in names)
    assert " ".join(row[7:] for row in lines) == f"{shares}; bound by environments"


def test_bar_length_is_the_progress(growing):
    (bar,) = [row for row in render_paths(growing.path) if "█" in row]
    done, left = bar.count("█"), bar.count("░")
    assert done / (done + left) == pytest.approx(0.3, abs=0.02)


def test_idle_run_says_for_how_long(growing):
    with growing.training():
        run = RunMonitor(growing.path)
        run.refresh()
        rows = render([run], now=run.modified + 75)
    assert "  speed 6.7 steps/s, 20 updates/s, idle for 1:15" in rows
    assert any(row.endswith("30% ETA 2:15") for row in rows)


def test_interrupted_finished_and_missing_runs_say_so(growing, workdir):
    rows = render_paths(growing.path)
    assert rows[1].startswith("interrupted  td7+r2r2 on walk")
    assert "  resume with: r2r2 train --resume runs/walker" in rows
    growing.folder.finish()
    rows = render_paths(growing.path)
    assert rows[1].startswith("finished  ")
    assert any(row.endswith("30% in 1:10") for row in rows)
    growing.folder.finish(growing.folder.members)
    rows = render_paths(growing.path)
    assert rows[1].startswith("failed  ")
    assert "  run again with: r2r2 train --resume runs/walker --retry-failed" in rows
    assert render_paths(Path("later"))[1:] == ["not started  later", "  later: does not exist yet"]


def test_a_pruned_trial_is_not_shown_as_interrupted(growing):
    (growing.path / "pruned.json").write_text("{}")
    rows = render_paths(growing.path)
    assert rows[1].startswith("pruned  td7+r2r2 on walk")
    assert not any("resume with" in row for row in rows)
    growing.folder.finish()  # by the user, with `r2r2 train --resume`
    assert render_paths(growing.path)[1].startswith("finished  ")


def test_problems_are_shown(growing):
    growing.event("collapse", 300, 610, 0, effective_rank=1.25, dead=60)
    fields = {"why": "RuntimeError: no power", "own": True, "failures": 1}
    growing.event("episode_dropped", 310, 620, 0, episode=1, length=5, **fields)
    growing.event("stopped", 305, 615, 1, why="its loss is not finite")
    text = " ".join(row.strip() for row in render_paths(growing.path))
    assert (
        "warning: walk_s0: representation collapsed at step 300: effective rank 1.2, "
        "60 dead coordinates"
    ) in text
    assert "walk_s0: environment failed once: RuntimeError: no power" in text
    assert "walk_s1: stopped at step 305: its loss is not finite" in text


def test_curve_continues_without_stopped_members(growing):
    growing.event("stopped", 305, 615, 1, why="its loss is not finite")
    growing.returns(400, 50.0)
    rows = render_paths(growing.path)
    assert "  walk: one seed" in rows


def test_nonfinite_returns_are_listed_and_not_drawn(growing):
    growing.returns(400, float("nan"), float("inf"))
    rows = render_paths(growing.path)
    assert "  s0 nan, s1 inf" in rows
    assert any(row.startswith("  95┤") for row in rows)


def test_every_task_has_its_own_returns_and_curve(workdir):
    run = GrowingRun(workdir / "fleet", env="walk,run", seeds=1)
    run.step(10, 200, 10)
    run.returns(100, 10.0, 500.0)
    rows = render_paths(run.path)
    assert "  walk: return 10.0 at env step 200" in rows
    assert "  run: return 500.0 at env step 200" in rows
    assert "  walk: one seed" in rows
    assert "  run: one seed" in rows


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_no_row_is_wider_than_the_terminal(growing, width, ascii_only):
    growing.event("stopped", 305, 615, 1, why="something that takes long to tell " * 9)
    other = GrowingRun(growing.path.parent / "日本語の名前", env="walk", seeds=40)
    other.step(1, 500, 1)
    other.returns(500, *range(40))
    rows = render_paths(growing.path, other.path, width=width, ascii_only=ascii_only)
    assert max(map(cell_len, rows)) <= width
    if ascii_only:
        assert all(row.isascii() for row in rows)


@pytest.mark.parametrize("height", [3, 4, 6, 10, 15, 24, 40, 80])
def test_view_is_not_higher_than_the_terminal(growing, workdir, height):
    paths = [growing.path]
    for number in range(5):
        paths.append(GrowingRun(workdir / f"other{number}").path)
    for width in (40, 100):
        rows = render_paths(*paths, width=width, height=height)
        assert len(rows) <= height
    with growing.training():
        rows = render_paths(*reversed(paths), height=height)
    # The run in training comes first.
    assert any("training" in row and row != rows[0] for row in rows) or height < 4


def test_runs_that_do_not_fit_are_counted(growing, workdir):
    paths = [GrowingRun(workdir / f"other{number}").path for number in range(9)]
    rows = render_paths(*paths, height=6)
    assert len(rows) == 6
    assert rows[-1] == "and 5 more that do not fit"


def test_rows_are_used_for_details_first_and_then_for_curves(growing):
    curves = {
        height: sum("┤" in row for row in render_paths(growing.path, height=height))
        for height in (9, 18, 30)
    }
    assert curves[9] == 0
    assert curves[18] > 0
    assert len(render_paths(growing.path, height=30)) > len(render_paths(growing.path, height=18))


HOSTILE = "[red]bold[/red] \x1b[2J\x1b]0;title\x07\r\n\u202e:smile:"


def test_names_are_shown_without_interpreting_them(growing, workdir):
    text = growing.folder.config_text().replace('"walk"', '"[red]x[/red]:smile:"')
    growing.event("stopped", 305, 615, 1, why=HOSTILE)
    (growing.path / "config.toml").write_text(text)
    moved = growing.path.rename(workdir / "[bold]run\x1b[2J")
    run = RunMonitor(moved)
    run.refresh()
    console = Console(file=io.StringIO(), width=100)
    for row in render_runs([run], 0.0, Size(100, 0)):
        console.print(row)
    result = console.file.getvalue()
    assert all(c == "\n" or c.isprintable() for c in result)
    assert "[red]x[/red]:smile:" in result
    assert "[bold]run<0x1b>[2J" in result
    assert "[red]bold[/red] <0x1b>[2J<0x1b>]0;title<0x7><0xd><0xa><0x202e>:smile:" in (
        " ".join(line.strip() for line in result.splitlines())
    )


def test_non_ascii_names_are_escaped_in_ascii():
    assert fit_row("Läufer", Size(20, 1, ascii_only=True)) == "L\\xe4ufer"
    assert fit_row("a" * 30, Size(10, 1, ascii_only=True)) == "aaaaaaa..."
    assert fit_row("日本語", Size(5, 1)) == "日本…"


def test_messages_have_at_most_three_rows():
    rows = wrap_text("word " * 40, Size(20, 1))
    assert len(rows) == 3
    assert rows[2].endswith("…")
    assert wrap_text("x" * 50, Size(20, 1)) == ["x" * 19 + "…"]


def test_once_prints_the_state_and_exits(cli, growing, workdir):
    result = cli("watch", "--once", growing.path)
    assert (result.code, result.err) == (0, "")
    assert "interrupted  td7+r2r2 on walk, UTD 3, seeds 0,1" in result.out
    assert "\x1b" not in result.out
    assert cli("watch", growing.path).out == result.out  # not a terminal
    assert cli("watch").out.splitlines()[0] == "1 run: 1 interrupted"  # in 'runs'


def test_folders_are_searched_for_runs(cli, growing, workdir):
    GrowingRun(workdir / "runs" / "deep" / "deeper" / "second")
    result = cli("watch", "--once", workdir / "runs")
    assert result.out.splitlines()[0] == "2 runs: 1 not started, 1 interrupted"
    twice = cli("watch", "--once", growing.path, workdir / "runs")
    assert twice.out.splitlines()[0] == "2 runs: 1 interrupted, 1 not started"


def test_later_runs_are_found(workdir):
    watcher = RunWatcher([workdir / "runs"], rescan_seconds=0.0)
    watcher.refresh()
    assert [run.state for run in watcher.runs] == ["not started"]
    first = GrowingRun(workdir / "runs" / "a")
    first.step(1, 200)
    watcher.refresh()
    assert [(run.path.name, run.state) for run in watcher.runs] == [("a", "interrupted")]
    first.path.rename(workdir / "away")
    watcher.refresh()
    assert [(run.path.name, run.state) for run in watcher.runs][-1] == ("a", "unavailable")


def test_missing_run_is_rejected_with_once(cli, workdir):
    result = cli("watch", "--once", workdir / "nothing")
    assert result.code == 2
    assert str(workdir / "nothing") in result.err
    (workdir / "file").write_text("")
    result = cli("watch", "--once", workdir / "file")
    assert (result.code, result.out) == (2, "")
    assert "not a run folder" in result.err


def test_options_are_checked(cli):
    for bad in ("0", "soon", "nan"):
        result = cli("watch", "--every", bad)
        assert result.code == 2
        assert "--every: expected a number" in result.err
    assert cli("watch", "--evry", "2").code == 2


@pytest.fixture
def at_terminal():
    """Start the program in its own terminal; kill it after the test."""
    begun = []

    def begin(*argv, **environ):
        begun.append(Terminal(*argv, **environ))
        return begun[-1]

    yield begin
    for terminal in begun:
        terminal.process.kill()
        terminal.process.wait()


class Terminal:
    """A program in a pseudo-terminal, and its output."""

    def __init__(self, *argv, **environ):
        self.master, slave = pty.openpty()
        self.resize(24, 80)
        # Shells ignore SIGINT in background processes; restore it.
        code = (
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from r2r2.cli.main import entry; entry()"
        )
        sized = ("COLUMNS", "LINES")  # pytest-xdist sets both
        environ = {k: v for k, v in os.environ.items() if k not in sized} | environ
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "watch", *map(str, argv)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={"TERM": "xterm"} | environ,
            start_new_session=True,
        )
        os.close(slave)
        self.output = ""

    def resize(self, rows, columns):
        where = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, where)

    def wait_for(self, text, seconds=60.0):
        """Read until new output contains the text; return the new output."""
        end = time.monotonic() + seconds
        start = len(self.output)
        while text not in self.output[start:]:
            assert self.read(end - time.monotonic()), self.output
        return self.output[start:]

    def read(self, seconds):
        """Read new output; return whether there was any."""
        ready, _, _ = select.select([self.master], [], [], max(seconds, 0))
        try:
            new = os.read(self.master, 65536) if ready else b""
        except OSError:  # the other side is closed
            return False
        self.output += new.decode(errors="replace")
        return bool(new)

    def drawn_size(self):
        """Return the rows and columns of the last drawing, which fills the terminal."""
        drawing = re.sub(r"\x1b\[[\d;?]*\w", "", self.output.split(HOME)[-1])
        rows = drawing.replace("\r", "").split("\n")
        return len(rows), cell_len(rows[-1])

    def end(self, number=None):
        """Send a signal, if given, and return the exit code."""
        if number is not None:
            self.process.send_signal(number)
        while self.read(60):
            pass
        os.close(self.master)
        return self.process.wait(timeout=60)


SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
MAIN_SCREEN, HOME = "\x1b[?1049l", "\x1b[H"


def test_terminal_is_updated_and_restored(growing, at_terminal):
    with growing.training():
        terminal = at_terminal(growing.path, "--every", "0.1")
        terminal.wait_for("30%")
        growing.step(80, 500, 700)
        terminal.wait_for("50%")
        code = terminal.end(signal.SIGINT)
    assert code == 0
    after = terminal.output[terminal.output.rindex(MAIN_SCREEN) :]
    assert terminal.output.rindex(SHOW_CURSOR) > terminal.output.rindex(HIDE_CURSOR)
    assert "50%" in after  # the last view stays
    assert "Traceback" not in terminal.output


def test_terminal_can_be_resized_and_sigterm_restores_it(growing, at_terminal):
    with growing.training():
        terminal = at_terminal(growing.path, "--every", "1000")
        terminal.wait_for("30%")
        # A resize is drawn without waiting for the refresh.
        for size in ((30, 40), (12, 60), (24, 30)):
            terminal.resize(*size)
            while terminal.drawn_size() != size:
                assert terminal.read(60)
        code = terminal.end(signal.SIGTERM)
    assert code == 143
    assert terminal.output.rindex(SHOW_CURSOR) > terminal.output.rindex(HIDE_CURSOR)
    assert "Traceback" not in terminal.output


def test_watch_waits_for_runs_that_begin_later(workdir, at_terminal):
    """A folder may be missing, and get another run when all others have finished."""
    terminal = at_terminal(workdir / "runs", "--every", "0.1")
    terminal.wait_for("waiting for a run to begin")
    run = GrowingRun(workdir / "runs" / "walker")
    run.step(10, 200)
    run.folder.finish()
    terminal.wait_for("1 run: 1 finished")
    assert terminal.process.poll() is None
    assert terminal.end(signal.SIGINT) == 0
    assert "Traceback" not in terminal.output


def test_watch_ends_with_runs_and_not_with_folders(growing, workdir):
    run, folder = RunWatcher([growing.path]), RunWatcher([growing.path, growing.path.parent])
    for watcher in (run, folder):
        watcher.refresh()
        assert not watcher.finished
    growing.folder.finish()
    for watcher in (run, folder):
        watcher.refresh()
    assert (run.finished, folder.finished) == (True, False)


def test_watch_ends_with_the_last_run(growing, at_terminal):
    with growing.training():
        terminal = at_terminal(growing.path, "--every", "0.1", PYTHONIOENCODING="ascii")
        terminal.wait_for("30%")
        growing.folder.finish()
        assert terminal.end() == 0
    after = terminal.output[terminal.output.rindex(MAIN_SCREEN) :]
    assert "finished" in after
    assert after.replace("\x1b", "").isascii()


def test_dumb_terminal_gets_the_state_once(cli, growing, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(subject, "Console", partial(Console, force_terminal=True))
    result = cli("watch", growing.path)
    assert result.code == 0
    assert "interrupted" in result.out
    assert HOME not in result.out
