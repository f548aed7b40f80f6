import io
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from r2r2.progress import (
    EtaEstimator,
    TrainingDisplay,
    format_returns,
    memory_usage,
    resident_bytes,
)
from r2r2.training.loop import Progress

TASKS = ["walk"] * 2

NAN = float("nan")


def progress(decisions, updates, returns=(NAN, NAN), warm=True):
    """The progress of two equal members."""
    return Progress(
        np.full(2, decisions),
        np.full(2, updates),
        np.full(2, warm),
        0 if np.isnan(returns).any() else decisions,
        np.array(returns),
        np.zeros(2, dtype=bool),
    )


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def console():
    """Not a terminal."""
    return Console(file=io.StringIO(), width=100)


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), width=80, force_terminal=True)


@pytest.fixture
def memory():
    """Bytes in use."""
    return {"memory": 1_234_000_000, "device": None}


@pytest.fixture
def make_display(clock, memory):
    def make(console, opening="", steps=1000, tasks=TASKS):
        return TrainingDisplay(steps, tasks, console, opening, clock, lambda: memory)

    return make


def show(bar, clock, turns):
    """Call a display at the given times."""
    for clock.now, turn in turns:
        bar(turn)


def interrupt(bar, clock, turns):
    """Call a display at the given times, then interrupt the run."""
    with bar:
        show(bar, clock, turns)
        raise KeyboardInterrupt


def written(console):
    return console.file.getvalue().splitlines()


def on_screen(bar):
    """Return the lines that a terminal of 80 columns shows."""
    plain = Console(file=io.StringIO(), width=80)
    plain.print(bar.view())
    return [line.rstrip() for line in plain.file.getvalue().splitlines()]


def test_no_eta_during_warm_up():
    eta = EtaEstimator(1000)
    assert [eta.remaining(n, 0, float(n)) for n in (0, 100, 250)] == [None] * 3


def test_no_eta_at_the_first_updates():
    eta = EtaEstimator(1000)
    assert eta.remaining(200, 0, 1.0) is None
    assert eta.remaining(200, 50, 30.0) is None


def test_eta_is_from_the_speed_of_training_steps():
    eta = EtaEstimator(1000)
    eta.remaining(200, 0, 1.0)
    eta.remaining(200, 50, 30.0)
    # 100 steps in 20 s; 700 are left.
    assert eta.remaining(300, 150, 50.0) == pytest.approx(140)
    # 400 steps in 100 s; 400 are left.
    assert eta.remaining(600, 450, 130.0) == pytest.approx(100)
    assert eta.remaining(1000, 800, 230.0) == 0


def test_no_eta_after_a_resume_before_new_updates():
    eta = EtaEstimator(1000, earlier_updates=50)
    assert eta.remaining(200, 50, 1.0) is None
    assert eta.remaining(300, 50, 2.0) is None
    assert eta.remaining(300, 60, 30.0) is None
    assert eta.remaining(400, 160, 50.0) == pytest.approx(120)


def test_speed_after_a_resume_is_of_the_new_steps(terminal, clock, make_display):
    with make_display(terminal) as bar:
        show(bar, clock, [(0, progress(0, 0)), (9, progress(401, 300))])
        show(bar, clock, [(109, progress(1001, 800, (1.0, 3.0)))])
    assert on_screen(bar)[1].startswith("average  12 steps/s, 10 updates/s")


def test_last_evaluation_is_not_printed_again_after_a_resume(console, clock, make_display):
    with make_display(console) as bar:
        known = progress(500, 400, (1.0, 3.0))
        show(bar, clock, [(0, progress(0, 0)), (1, known), (2, known)])
        bar(progress(600, 500, (2.0, 4.0)))
    points = [line for line in written(console) if "decision step" in line]
    assert points == ["  decision step       600  return 3.0 (2.0 to 4.0, 2 seeds)"]


def test_collapse_is_shown_while_it_lasts(terminal, clock, make_display):
    warning = "warning  collapsed representations: 1 of 2"
    with make_display(terminal) as bar:
        show(bar, clock, [(0, progress(0, 0)), (1, progress(100, 9))])
        assert warning not in on_screen(bar)
        show(bar, clock, [(2, progress(200, 99)._replace(collapsed=(1,)))])
        assert warning in on_screen(bar)
        show(bar, clock, [(3, progress(300, 199))])
        assert warning not in on_screen(bar)


def test_stopped_members_do_not_count(terminal, clock, make_display):
    left = np.array([True, False])
    with make_display(terminal) as bar:
        turns = [(t, progress(t, t)) for t in range(3)]
        show(bar, clock, turns)
        some = progress(100, 9)._replace(
            decisions=np.array([3, 100]), updates=np.array([0, 9]), warm=~left, stopped=left
        )
        clock.now = 10
        bar(some)
        assert on_screen(bar)[0].startswith("training ")
        assert " 100/1,000 10% ETA 1:" in on_screen(bar)[0]
        clock.now = 11
        bar(some._replace(stopped=left | True))
        assert " 51/1,000 5% " in on_screen(bar)[0]
    assert on_screen(bar)[0].startswith("failed ")
    assert on_screen(bar)[0].endswith(" 51/1,000 5% in 0:11")
    assert on_screen(bar)[-1].startswith("average ")


def test_failed_run_is_not_done(terminal, console, clock, make_display):
    for where in (terminal, console):
        bar = make_display(where)
        stopped = progress(0, 0)._replace(stopped=np.ones(2, dtype=bool))
        with pytest.raises(KeyboardInterrupt):
            interrupt(bar, clock, [(0, progress(0, 0)), (1, stopped)])
        assert "failed" in where.file.getvalue()
        assert "0/1,000 0% in 0:01" in where.file.getvalue()
        assert "done" not in where.file.getvalue()


def test_messages_are_between_the_opening_and_the_bar(terminal, console, clock, make_display):
    for where in (terminal, console):
        with make_display(where, "the opening") as bar:
            bar.say("continues from [step 3]")
            assert where.file.getvalue() == ""
            show(bar, clock, [(0, progress(3, 0))])
            bar.say("an environment failed")
        text = re.sub(r"\x1b\[[\d;?]*\w", "", where.file.getvalue())
        lines = [line.strip() for line in text.replace("\r", "\n").split("\n")]
        expected = ["the opening", "continues from [step 3]", "an environment failed"]
        assert [line for line in lines if line in expected] == expected
    assert written(console)[:3] == expected


def test_messages_of_a_rejected_run_are_printed(console, make_display):
    bar = make_display(console, "the opening", steps=10)
    bar.say("checkpoint 3 is damaged")
    with pytest.raises(ZeroDivisionError), bar:
        raise ZeroDivisionError
    assert written(console) == ["checkpoint 3 is damaged"]


def test_returns_are_summarized():
    assert format_returns(np.array([NAN, NAN])) == "-"
    assert format_returns(np.array([])) == "-"
    assert format_returns(np.array([NAN, 12.34])) == "12.3"
    assert format_returns(np.array([1.0, NAN, 4.0])) == "2.5 (1.0 to 4.0, 2 seeds)"


def test_rejected_run_shows_nothing(console, terminal, make_display):
    for where in (console, terminal):
        with pytest.raises(ZeroDivisionError), make_display(where, "the opening", steps=10):
            raise ZeroDivisionError
        assert where.file.getvalue() == ""


def test_log_has_a_line_per_minute_and_evaluation(console, clock, make_display):
    with make_display(console, "the opening") as bar:
        assert console.file.getvalue() == ""
        turns = [(t, progress(t, 0, warm=False)) for t in range(150)]
        show(bar, clock, turns)
        clock.now = 151
        bar(progress(500, 0, (1.0, 3.0)))
        clock.now = 190
        bar(progress(1000, 600, (5.0, 7.0)))
        clock.now = 200
    assert written(console) == [
        "the opening",
        "  warm-up 60/1,000 6% ETA -, 2.0 steps/s, 0.0 updates/s, memory 1.2 GB",
        "  warm-up 120/1,000 12% ETA -, 2.0 steps/s, 0.0 updates/s, memory 1.2 GB",
        "  decision step       500  return 2.0 (1.0 to 3.0, 2 seeds)",
        "  decision step     1,000  return 6.0 (5.0 to 7.0, 2 seeds)",
        # 880 steps and 600 updates of both in 70 s
        "  training 1,000/1,000 100% ETA -, 25 steps/s, 17 updates/s, memory 1.2 GB",
        "  done 1,000/1,000 100% in 3:20, 10 steps/s, 6.0 updates/s, memory 1.2 GB",
    ]


def test_log_has_no_control_characters(console, clock, make_display):
    with make_display(console) as bar:
        show(bar, clock, [(t, progress(t, t, (1.0, 2.0))) for t in range(0, 300, 7)])
    assert all(c == "\n" or c.isprintable() for c in console.file.getvalue())


def test_terminal_shows_progress_returns_speed_and_memory(terminal, clock, make_display):
    with make_display(terminal, "the opening", steps=2000) as bar:
        show(bar, clock, [(0, progress(0, 0, warm=False))])
        first, second = on_screen(bar)
        assert first.split() == "warm-up 0/2,000 0% ETA -".split()
        assert second == "speed    -, memory 1.2 GB"
        turns = [
            (10, progress(900, 0)),
            (20, progress(1000, 9)),
            (50, progress(1100, 109, (1.0, 3.0))),  # 100 steps in 30 s; 900 left
            (50.1, progress(1200, 209)._replace(point=1100)),  # too soon to be drawn
        ]
        show(bar, clock, turns)
        lines = on_screen(bar)
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].startswith("training ━")
    assert lines[0].endswith(" 1,100/2,000 55% ETA 4:30")
    assert lines[1:] == [
        "return   2.0 (1.0 to 3.0, 2 seeds) at step 1,100",
        # of both in the last 30 s: 200 steps, 200 updates
        "speed    6.7 steps/s, 6.7 updates/s, memory 1.2 GB",
    ]


def test_opening_is_wrapped_on_a_terminal_only(terminal, console, clock, make_display):
    changed = "  changed: " + ", ".join(f"field_{n}=0.0001" for n in range(9))
    for where in (terminal, console):
        with make_display(where, f"[bold]agent[/] on walk\n{changed}") as bar:
            show(bar, clock, [(0, progress(0, 0))])
    assert written(console)[:2] == ["agent on walk", changed]
    shown = terminal.file.getvalue()
    assert shown.startswith("\x1b[1magent\x1b[0m on walk\n")
    _, first, second, *_ = re.sub(r"\x1b\[[\d;?]*\w", "", shown).split("\n")
    assert f"{first} {second}".split() == changed.split()
    assert [len(row) - len(row.lstrip()) for row in (first, second)] == [2, 2]


def test_speed_is_of_the_last_seconds(terminal, clock, make_display):
    with make_display(terminal, steps=10_000) as bar:
        show(bar, clock, [(t, progress(100 * t, 0)) for t in range(11)])
        assert "200 steps/s" in on_screen(bar)[-1]
        show(bar, clock, [(t, progress(1000, 5 * (t - 10))) for t in range(11, 61)])
        # No steps since, and the first ten seconds are outside the window.
        assert on_screen(bar)[-1].startswith("speed    0.0 steps/s, 10 updates/s,")


def test_tasks_are_shown_separately(terminal, console, clock, make_display):
    for where in (terminal, console):
        with make_display(where, tasks=["dog-run", "dog-stand"]) as bar:
            show(bar, clock, [(0, progress(0, 0)), (1, progress(1, 0))])
            show(bar, clock, [(70, progress(500, 9, (1.0, 3.0)))])
            assert on_screen(bar)[1:4] == [
                "return   at step 500",
                "  dog-run   1.0",
                "  dog-stand 3.0",
            ]
        clock.now = 0.0
    assert "  decision step       500  dog-stand: return 3.0" in written(console)


def test_device_memory_is_shown(terminal, clock, memory, make_display):
    memory["device"] = 23_400_000_000
    with make_display(terminal) as bar:
        show(bar, clock, [(0, progress(0, 0))])
        assert on_screen(bar)[-1] == "speed    -, memory 1.2 GB, device 23.4 GB"


def test_unknown_memory_is_not_shown(terminal, clock, memory, make_display):
    memory["memory"] = None
    with make_display(terminal) as bar:
        show(bar, clock, [(0, progress(0, 0))])
        assert on_screen(bar)[-1] == "speed    -"


def test_end_shows_averages_of_the_whole_run(terminal, clock, make_display):
    with make_display(terminal) as bar:
        turns = [(0, progress(0, 0)), (0, progress(1, 0))]
        show(bar, clock, [*turns, (100, progress(1000, 800, (1.0, 3.0)))])
    first, second = on_screen(bar)
    assert first.startswith("done     ━")
    assert first.endswith("━ 1,000/1,000 100% in 1:40")
    assert second == "average  20 steps/s, 16 updates/s, memory 1.2 GB"


def test_interrupted_run_is_not_done(terminal, console, clock, make_display):
    places = [(0, 0), (0, 1), (61, 500)]
    turns = [(t, progress(n, 0, warm=False)) for t, n in places]
    for where in (terminal, console):
        bar = make_display(where, steps=10_000)
        with pytest.raises(KeyboardInterrupt):
            interrupt(bar, clock, turns)
        assert on_screen(bar)[0].startswith("warm-up ")
        assert "done" not in where.file.getvalue()
    assert written(console)[-1].startswith("  warm-up 500/10,000 5% ETA -, 16 steps/s")


ALLOCATE = """
import os, subprocess, sys
allocated = bytearray(os.urandom(1)) * 50_000_000
if sys.argv[1] != "0":
    subprocess.run([sys.executable, "-c", sys.argv[2], "0"], stdin=sys.stdin)
else:
    print("allocated", flush=True)
    sys.stdin.read()
"""


def test_memory_includes_all_descendants():
    before = resident_bytes()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", ALLOCATE, "1", ALLOCATE]
    with subprocess.Popen(command, **pipes) as child:
        assert child.stdout.readline() == b"allocated\n"
        during = resident_bytes()
        child.stdin.close()
    # Twice 50 MB and the interpreters.
    assert 100e6 < during - before < 200e6
    assert resident_bytes() < before + 20e6


def test_memory_is_unknown_without_proc(tmp_path):
    assert resident_bytes(tmp_path) is None


def test_ended_process_counts_as_zero(tmp_path):
    process = tmp_path / str(os.getpid())
    (process / "task" / "7").mkdir(parents=True)
    (process / "statm").write_text("900 30 20 1 0 9 0\n")
    (process / "task" / "7" / "children").write_text("41 42")
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "statm").write_text("900 12 20 1 0 9 0\n")
    assert resident_bytes(tmp_path) == 42 * os.sysconf("SC_PAGE_SIZE")


def test_cpu_has_no_device_memory():
    assert memory_usage()["device"] is None


def test_updates_on_data_are_a_stage_of_their_own(terminal, clock, make_display):
    bar = make_display(terminal)
    offline = [progress(0, n, warm=False)._replace(offline=2_000) for n in (500, 1_500)]
    show(bar, clock, [(0, progress(0, 0, warm=False)), (5, offline[0]), (10, offline[1])])
    first, *_ = on_screen(bar)
    assert first.startswith("offline ")
    assert first.endswith("1,500/2,000 updates on recorded data 75%")
    show(bar, clock, [(20, progress(0, 2_000)), (30, progress(100, 2_100))])
    show(bar, clock, [(40, progress(200, 2_200))])
    assert on_screen(bar)[0].endswith("200/1,000 20% ETA 1:20")  # of the steps alone
