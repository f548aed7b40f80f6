"""`r2r2 watch`: what a terminal shows of running training."""

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
from followed import Grown, seen, shown
from rich.cells import cell_len
from rich.console import Console

from r2r2.cli import watch as subject
from r2r2.cli.run_monitor import Watched
from r2r2.cli.terminal_curve import Size
from r2r2.cli.watch import Watch
from r2r2.cli.watch_view import fitted, folded, picture


@pytest.fixture(autouse=True)
def disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def grown(workdir):
    """A run that is a third through its training."""
    run = Grown(Path("runs/walker"), agent="td7+r2r2")
    run.step(10, 100, 10)
    run.step(70, 300, 610)
    for step, low, high in ((100, 10.0, 30.0), (200, 20.0, 60.0), (300, 45.0, 95.0)):
        run.returns(step, low, high)
    return run


def test_a_run_in_training_shows_what_it_is_how_far_how_fast_and_how_well(
    grown, workdir
):
    with grown.trained():
        rows = seen(grown.path)
    assert rows[0] == "1 run: 1 training"
    assert rows[1] == "training  td7+r2r2 on walk, UTD 3, seeds 0,1"
    assert rows[2] == "  runs/walker"
    # 200 steps in 60 s; 700 are to go.
    assert re.fullmatch(r"  █+░+ 300/1,000 30% ETA 3:30", rows[3])
    assert rows[4:8] == [
        "  speed 6.7 steps/s, 20 updates/s",
        "  return 70.0 (45.0 to 95.0 over 2) at env step 600",
        "  s0 45.0, s1 95.0",
        "  walk: mean and range of 2 seeds",
    ]
    assert rows[8].startswith("  95┤")
    assert rows[-1].split() == ["0", "2000", "env", "steps"]
    assert any("⠁" <= c <= "⣿" for c in "".join(rows))


def test_the_bar_is_as_long_as_the_run_is_far(grown):
    (bar,) = [row for row in seen(grown.path) if "█" in row]
    done, left = bar.count("█"), bar.count("░")
    assert done / (done + left) == pytest.approx(0.3, abs=0.02)


def test_a_run_without_news_says_for_how_long(grown):
    with grown.trained():
        run = Watched(grown.path)
        run.look()
        rows = shown([run], now=run.changed + 75)
    assert "  speed 6.7 steps/s, 20 updates/s, quiet for 1:15" in rows
    assert any(row.endswith("30% ETA 2:15") for row in rows)


def test_a_run_that_is_over_or_not_says_so(grown, workdir):
    rows = seen(grown.path)
    assert rows[1].startswith("interrupted  td7+r2r2 on walk")
    assert "  go on with: r2r2 train --resume runs/walker" in rows
    grown.folder.finish()
    rows = seen(grown.path)
    assert rows[1].startswith("finished  ")
    assert any(row.endswith("30% in 1:10") for row in rows)
    assert seen(Path("later"))[1:] == [
        "not begun  later",
        "  run is 'later', which does not exist yet",
    ]


def test_what_went_wrong_is_told(grown):
    grown.event("collapse", 300, 610, 0, effective_rank=1.25, dead=60)
    fields = {"why": "RuntimeError: no power", "own": True, "failures": 1}
    grown.event("episode_dropped", 310, 620, 0, episode=1, length=5, **fields)
    grown.event("stopped", 305, 615, 1, why="its loss is not finite")
    text = " ".join(row.strip() for row in seen(grown.path))
    assert (
        "warning: the representation of walk_s0 has collapsed at step 300: effective "
        "rank 1.2, 60 dead coordinates"
    ) in text
    assert "environment of walk_s0 failed once: RuntimeError: no power" in text
    assert "walk_s1 was stopped at step 305: its loss is not finite" in text


def test_the_curve_goes_on_without_members_that_were_stopped(grown):
    grown.event("stopped", 305, 615, 1, why="its loss is not finite")
    grown.returns(400, 50.0)
    rows = seen(grown.path)
    assert "  walk: one seed" in rows


def test_returns_that_are_no_numbers_are_told_and_not_drawn(grown):
    grown.returns(400, float("nan"), float("inf"))
    rows = seen(grown.path)
    assert "  s0 nan, s1 inf" in rows
    assert any(row.startswith("  95┤") for row in rows)


def test_every_task_has_its_own_returns_and_curve(workdir):
    run = Grown(workdir / "fleet", env="walk,run", seeds=1)
    run.step(10, 200, 10)
    run.returns(100, 10.0, 500.0)
    rows = seen(run.path)
    assert "  walk: return 10.0 at env step 200" in rows
    assert "  run: return 500.0 at env step 200" in rows
    assert "  walk: one seed" in rows
    assert "  run: one seed" in rows


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_no_row_is_wider_than_the_terminal(grown, width, ascii_only):
    grown.event("stopped", 305, 615, 1, why="something that takes long to tell " * 9)
    other = Grown(grown.path.parent / "日本語の名前", env="walk", seeds=40)
    other.step(1, 500, 1)
    other.returns(500, *range(40))
    rows = seen(grown.path, other.path, width=width, ascii_only=ascii_only)
    assert max(map(cell_len, rows)) <= width
    if ascii_only:
        assert all(row.isascii() for row in rows)


@pytest.mark.parametrize("height", [3, 4, 6, 10, 15, 24, 40, 80])
def test_no_picture_is_higher_than_the_terminal(grown, workdir, height):
    paths = [grown.path]
    for number in range(5):
        paths.append(Grown(workdir / f"other{number}").path)
    for width in (40, 100):
        rows = seen(*paths, width=width, height=height)
        assert len(rows) <= height
    with grown.trained():
        rows = seen(*reversed(paths), height=height)
    # The one in training is shown before all others.
    assert any("training" in row and row != rows[0] for row in rows) or height < 4


def test_runs_for_which_there_is_no_room_are_counted(grown, workdir):
    paths = [Grown(workdir / f"other{number}").path for number in range(9)]
    rows = seen(*paths, height=6)
    assert len(rows) == 6
    assert rows[-1] == "and 5 more, for which there is no room"


def test_room_is_for_heads_first_and_then_for_curves(grown):
    curves = {
        height: sum("┤" in row for row in seen(grown.path, height=height))
        for height in (9, 18, 30)
    }
    assert curves[9] == 0
    assert curves[18] > 0
    assert len(seen(grown.path, height=30)) > len(seen(grown.path, height=18))


HOSTILE = "[red]bold[/red] \x1b[2J\x1b]0;title\x07\r\n\u202e:smile:"


def test_names_are_shown_and_never_obeyed(grown, workdir):
    text = grown.folder.config_text().replace('"walk"', '"[red]x[/red]:smile:"')
    grown.event("stopped", 305, 615, 1, why=HOSTILE)
    (grown.path / "config.toml").write_text(text)
    moved = grown.path.rename(workdir / "[bold]run\x1b[2J")
    run = Watched(moved)
    run.look()
    console = Console(file=io.StringIO(), width=100)
    for row in picture([run], 0.0, Size(100, 0)):
        console.print(row)
    said = console.file.getvalue()
    assert all(c == "\n" or c.isprintable() for c in said)
    assert "[red]x[/red]:smile:" in said
    assert "[bold]run<0x1b>[2J" in said
    assert "[red]bold[/red] <0x1b>[2J<0x1b>]0;title<0x7><0xd><0xa><0x202e>:smile:" in (
        " ".join(line.strip() for line in said.splitlines())
    )


def test_names_outside_ascii_are_spelt_where_nothing_else_can_be_shown():
    assert fitted("Läufer", Size(20, 1, ascii_only=True)) == "L\\xe4ufer"
    assert fitted("a" * 30, Size(10, 1, ascii_only=True)) == "aaaaaaa..."
    assert fitted("日本語", Size(5, 1)) == "日本…"


def test_a_sentence_takes_three_rows_at_most():
    rows = folded("word " * 40, Size(20, 1))
    assert len(rows) == 3
    assert rows[2].endswith("…")
    assert folded("x" * 50, Size(20, 1)) == ["x" * 19 + "…"]


def test_once_prints_a_picture_and_ends(cli, grown, workdir):
    said = cli("watch", "--once", grown.path)
    assert (said.code, said.err) == (0, "")
    assert "interrupted  td7+r2r2 on walk, UTD 3, seeds 0,1" in said.out
    assert "\x1b" not in said.out
    assert cli("watch", grown.path).out == said.out  # there is no terminal
    assert cli("watch").out.splitlines()[0] == "1 run: 1 interrupted"  # in 'runs'


def test_folders_are_searched_for_runs(cli, grown, workdir):
    Grown(workdir / "runs" / "deep" / "deeper" / "second")
    said = cli("watch", "--once", workdir / "runs")
    assert said.out.splitlines()[0] == "2 runs: 1 not begun, 1 interrupted"
    twice = cli("watch", "--once", grown.path, workdir / "runs")
    assert twice.out.splitlines()[0] == "2 runs: 1 interrupted, 1 not begun"


def test_runs_that_begin_later_are_found(workdir, monkeypatch):
    monkeypatch.setattr(subject, "RESCAN", 0.0)
    watch = Watch([workdir / "runs"])
    watch.look()
    assert [run.state for run in watch.runs] == ["not begun"]
    first = Grown(workdir / "runs" / "a")
    first.step(1, 200)
    watch.look()
    assert [(run.path.name, run.state) for run in watch.runs] == [("a", "interrupted")]
    first.path.rename(workdir / "away")
    watch.look()
    assert [(run.path.name, run.state) for run in watch.runs][-1] == ("a", "lost")


def test_nothing_to_show_is_refused_where_nothing_is_waited_for(cli, workdir):
    said = cli("watch", "--once", workdir / "nothing")
    assert said.code == 2
    assert str(workdir / "nothing") in said.err
    (workdir / "file").write_text("")
    said = cli("watch", "--once", workdir / "file")
    assert (said.code, said.out) == (2, "")
    assert "not a run folder" in said.err


def test_options_are_checked(cli):
    for bad in ("0", "soon", "nan"):
        said = cli("watch", "--every", bad)
        assert said.code == 2
        assert "--every: expected a number" in said.err
    assert cli("watch", "--evry", "2").code == 2


@pytest.fixture
def at_terminal():
    """The program at a terminal of its own; at the end none is left."""
    begun = []

    def begin(*argv, **environ):
        begun.append(Terminal(*argv, **environ))
        return begun[-1]

    yield begin
    for terminal in begun:
        terminal.process.kill()
        terminal.process.wait()


class Terminal:
    """A program, and what it has shown so far."""

    def __init__(self, *argv, **environ):
        self.master, slave = pty.openpty()
        self.resize(24, 80)
        # Shells leave SIGINT to programs in the foreground alone: it is requested here.
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
        self.said = ""

    def resize(self, rows, columns):
        where = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, where)

    def wait_for(self, text, seconds=60.0):
        """Reads until something is shown that was not before."""
        end = time.monotonic() + seconds
        start = len(self.said)
        while text not in self.said[start:]:
            assert self.read(end - time.monotonic()), self.said
        return self.said[start:]

    def read(self, seconds):
        """Reads what is new; false where nothing comes."""
        ready, _, _ = select.select([self.master], [], [], max(seconds, 0))
        try:
            new = os.read(self.master, 65536) if ready else b""
        except OSError:  # the other side is closed
            return False
        self.said += new.decode(errors="replace")
        return bool(new)

    def size_of_picture(self):
        """How high and how wide the last picture is, which fills the terminal."""
        picture = re.sub(r"\x1b\[[\d;?]*\w", "", self.said.split(HOME)[-1])
        rows = picture.replace("\r", "").split("\n")
        return len(rows), cell_len(rows[-1])

    def end(self, number=None):
        """Ends it by a signal, or waits for its end; gives its exit code."""
        if number is not None:
            self.process.send_signal(number)
        while self.read(60):
            pass
        os.close(self.master)
        return self.process.wait(timeout=60)


SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
MAIN_SCREEN, HOME = "\x1b[?1049l", "\x1b[H"


def test_a_terminal_shows_what_is_new_and_is_left_as_it_was(grown, at_terminal):
    with grown.trained():
        terminal = at_terminal(grown.path, "--every", "0.1")
        terminal.wait_for("30%")
        grown.step(80, 500, 700)
        terminal.wait_for("50%")
        code = terminal.end(signal.SIGINT)
    assert code == 0
    after = terminal.said[terminal.said.rindex(MAIN_SCREEN) :]
    assert terminal.said.rindex(SHOW_CURSOR) > terminal.said.rindex(HIDE_CURSOR)
    assert "50%" in after  # the last picture stays
    assert "Traceback" not in terminal.said


def test_a_terminal_may_be_resized_and_sigterm_leaves_it_as_it_was(grown, at_terminal):
    with grown.trained():
        terminal = at_terminal(grown.path, "--every", "1000")
        terminal.wait_for("30%")
        # Another size is drawn without waiting for the next look at the run.
        for size in ((30, 40), (12, 60), (24, 30)):
            terminal.resize(*size)
            while terminal.size_of_picture() != size:
                assert terminal.read(60)
        code = terminal.end(signal.SIGTERM)
    assert code == 143
    assert terminal.said.rindex(SHOW_CURSOR) > terminal.said.rindex(HIDE_CURSOR)
    assert "Traceback" not in terminal.said


def test_it_ends_with_the_last_run(grown, at_terminal):
    with grown.trained():
        terminal = at_terminal(grown.path, "--every", "0.1", PYTHONIOENCODING="ascii")
        terminal.wait_for("30%")
        grown.folder.finish()
        assert terminal.end() == 0
    after = terminal.said[terminal.said.rindex(MAIN_SCREEN) :]
    assert "finished" in after
    assert after.replace("\x1b", "").isascii()


def test_a_terminal_that_cannot_move_its_cursor_gets_one_picture(
    cli, grown, monkeypatch
):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(subject, "Console", partial(Console, force_terminal=True))
    said = cli("watch", grown.path)
    assert said.code == 0
    assert "interrupted" in said.out
    assert HOME not in said.out
