import io
import re

import numpy as np
import pytest
from rich.console import Console

from r2r2.cli import progress as subject
from r2r2.cli.progress import Bar, Pace, spread
from r2r2.training.loop import Progress

TASKS = ["walk"] * 2

NAN = float("nan")


def progress(decisions, updates, returns=(NAN, NAN), warm=True):
    """A fleet of two at the same place."""
    return Progress(
        np.full(2, decisions),
        np.full(2, updates),
        np.full(2, warm),
        0 if np.isnan(returns).any() else decisions,
        np.array(returns),
        np.zeros(2, dtype=bool),
    )


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""

    class Clock:
        now = 0.0

    monkeypatch.setattr(subject.time, "monotonic", lambda: Clock.now)
    return Clock


@pytest.fixture
def console():
    """Where a log is kept: no terminal."""
    return Console(file=io.StringIO(), width=100)


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), width=80, force_terminal=True)


@pytest.fixture(autouse=True)
def weight(monkeypatch):
    """What the run weighs, in bytes."""
    found = {"resident": 1_234_000_000, "on_device": None}
    monkeypatch.setattr(subject, "resident", lambda: found["resident"])
    monkeypatch.setattr(subject, "on_device", lambda: found["on_device"])
    return found


def show(bar, clock, turns):
    """Shows a bar the turns of a run, at their times."""
    for clock.now, turn in turns:
        bar(turn)


def interrupt(bar, clock, turns):
    """Shows a bar the turns of a run, and then stops the run."""
    with bar:
        show(bar, clock, turns)
        raise KeyboardInterrupt


def written(console):
    return console.file.getvalue().splitlines()


def on_screen(bar):
    """The lines that a terminal of 80 columns shows below the evaluations."""
    plain = Console(file=io.StringIO(), width=80)
    plain.print(bar._view())
    return [line.rstrip() for line in plain.file.getvalue().splitlines()]


def test_warm_up_gives_no_estimate():
    pace = Pace(1000)
    assert [pace.remaining(n, 0, float(n)) for n in (0, 100, 250)] == [None] * 3


def test_the_first_updates_give_none_either():
    pace = Pace(1000)
    assert pace.remaining(200, 0, 1.0) is None
    assert pace.remaining(200, 50, 30.0) is None


def test_the_estimate_is_the_pace_of_the_steps_trained_on():
    pace = Pace(1000)
    pace.remaining(200, 0, 1.0)
    pace.remaining(200, 50, 30.0)
    # 100 steps in 20 s; 700 are to go.
    assert pace.remaining(300, 150, 50.0) == pytest.approx(140)
    # 400 steps in 100 s; 400 are to go.
    assert pace.remaining(600, 450, 130.0) == pytest.approx(100)
    assert pace.remaining(1000, 800, 230.0) == 0


def test_a_run_that_is_continued_gives_none_before_updates_of_its_own():
    pace = Pace(1000, made=50)
    assert pace.remaining(200, 50, 1.0) is None
    assert pace.remaining(300, 50, 2.0) is None
    assert pace.remaining(300, 60, 30.0) is None
    assert pace.remaining(400, 160, 50.0) == pytest.approx(120)


def test_a_continued_runs_speed_is_that_of_its_new_steps(terminal, clock):
    with Bar(1000, TASKS, terminal) as bar:
        # Whoever restores it knows how far it was after its first turn.
        show(bar, clock, [(0, progress(0, 0)), (9, progress(401, 300))])
        show(bar, clock, [(109, progress(1001, 800, (1.0, 3.0)))])
    assert on_screen(bar)[1].startswith("average  12 steps/s, 10 updates/s")


def test_a_continued_run_does_not_tell_its_last_evaluation_again(console, clock):
    with Bar(1000, TASKS, console) as bar:
        known = progress(500, 400, (1.0, 3.0))
        show(bar, clock, [(0, progress(0, 0)), (1, known), (2, known)])
        bar(progress(600, 500, (2.0, 4.0)))
    points = [line for line in written(console) if "decision step" in line]
    assert points == ["  decision step       600  return 3.0 (2.0 to 4.0 over 2)"]


def test_a_collapse_stays_on_the_bar_for_as_long_as_it_lasts(terminal, clock):
    warning = "warning  collapsed representations: 1 of 2"
    with Bar(1000, TASKS, terminal) as bar:
        show(bar, clock, [(0, progress(0, 0)), (1, progress(100, 9))])
        assert warning not in on_screen(bar)
        show(bar, clock, [(2, progress(200, 99)._replace(collapsed=(1,)))])
        assert warning in on_screen(bar)
        show(bar, clock, [(3, progress(300, 199))])
        assert warning not in on_screen(bar)


def test_members_that_were_stopped_are_not_waited_for(terminal, clock):
    left = np.array([True, False])
    with Bar(1000, TASKS, terminal) as bar:
        turns = [(t, progress(t, t)) for t in range(3)]
        show(bar, clock, turns)
        some = progress(100, 9)._replace(
            decisions=np.array([3, 100]),
            updates=np.array([0, 9]),
            warm=~left,
            stopped=left,
        )
        clock.now = 10
        bar(some)
        assert on_screen(bar)[0].startswith("training ")
        assert " 100/1,000 10% ETA 1:" in on_screen(bar)[0]
        clock.now = 11
        bar(some._replace(stopped=left | True))
        assert " 51/1,000 5% " in on_screen(bar)[0]
    assert on_screen(bar)[0].startswith("stopped ")
    assert on_screen(bar)[0].endswith(" 51/1,000 5% in 0:11")
    assert on_screen(bar)[1].startswith("average ")


def test_sentences_stand_below_the_opening_and_above_the_bar(terminal, console, clock):
    for where in (terminal, console):
        with Bar(1000, TASKS, where, "the opening") as bar:
            bar.say("continues from [step 3]")
            assert where.file.getvalue() == ""
            show(bar, clock, [(0, progress(3, 0))])
            bar.say("an environment failed")
        text = re.sub(r"\x1b\[[\d;?]*\w", "", where.file.getvalue())
        lines = [line.strip() for line in text.replace("\r", "\n").split("\n")]
        said = ["the opening", "continues from [step 3]", "an environment failed"]
        assert [line for line in lines if line in said] == said
    assert written(console)[:3] == said


def test_sentences_are_shown_even_of_a_run_that_was_refused(console):
    bar = Bar(10, TASKS, console, "the opening")
    bar.say("checkpoint 3 is damaged")
    with pytest.raises(ZeroDivisionError), bar:
        raise ZeroDivisionError
    assert written(console) == ["checkpoint 3 is damaged"]


def test_returns_are_summed_up():
    assert spread(np.array([NAN, NAN])) == "-"
    assert spread(np.array([])) == "-"
    assert spread(np.array([NAN, 12.34])) == "12.3"
    assert spread(np.array([1.0, NAN, 4.0])) == "2.5 (1.0 to 4.0 over 2)"


def test_a_run_that_was_refused_has_no_bar(console, terminal):
    for where in (console, terminal):
        with pytest.raises(ZeroDivisionError), Bar(10, TASKS, where, "the opening"):
            raise ZeroDivisionError
        assert where.file.getvalue() == ""


def test_without_a_terminal_lines_come_now_and_then(console, clock):
    with Bar(1000, TASKS, console, "the opening") as bar:
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
        "  decision step       500  return 2.0 (1.0 to 3.0 over 2)",
        "  decision step     1,000  return 6.0 (5.0 to 7.0 over 2)",
        # 880 steps and 600 updates of both in 70 s
        "  training 1,000/1,000 100% ETA -, 25 steps/s, 17 updates/s, memory 1.2 GB",
        "  done 1,000/1,000 100% in 3:20, 10 steps/s, 6.0 updates/s, memory 1.2 GB",
    ]


def test_a_log_has_no_control_characters(console, clock):
    with Bar(1000, TASKS, console) as bar:
        show(bar, clock, [(t, progress(t, t, (1.0, 2.0))) for t in range(0, 300, 7)])
    assert all(c == "\n" or c.isprintable() for c in console.file.getvalue())


def test_a_terminal_shows_how_far_how_well_how_fast_and_how_large(terminal, clock):
    with Bar(2000, TASKS, terminal, "the opening") as bar:
        show(bar, clock, [(0, progress(0, 0, warm=False))])
        first, second = on_screen(bar)
        assert first.split() == "warm-up 0/2,000 0% ETA -".split()
        assert second == "speed    -, memory 1.2 GB"
        turns = [
            (10, progress(900, 0)),
            (20, progress(1000, 9)),
            (50, progress(1100, 109, (1.0, 3.0))),  # 100 steps in 30 s; 900 to go
            (50.1, progress(1200, 209)._replace(point=1100)),  # too soon to be drawn
        ]
        show(bar, clock, turns)
        lines = on_screen(bar)
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].startswith("training ━")
    assert lines[0].endswith(" 1,100/2,000 55% ETA 4:30")
    assert lines[1:] == [
        "return   2.0 (1.0 to 3.0 over 2) at step 1,100",
        # of both in the last 30 s: 200 steps, 200 updates
        "speed    6.7 steps/s, 6.7 updates/s, memory 1.2 GB",
    ]


def test_the_opening_breaks_between_words_on_a_screen_and_not_in_a_log(
    terminal, console, clock
):
    opening = "changed: " + ", ".join(f"field_{n}=0.0001" for n in range(9))
    for where in (terminal, console):
        with Bar(1000, TASKS, where, opening) as bar:
            show(bar, clock, [(0, progress(0, 0))])
    assert written(console)[0] == opening
    first, second, *_ = re.sub(r"\x1b\[[\d;?]*\w", "", terminal.file.getvalue()).split(
        "\n"
    )
    assert f"{first} {second}".split() == opening.split()


def test_speed_is_that_of_the_last_seconds(terminal, clock):
    with Bar(10_000, TASKS, terminal) as bar:
        show(bar, clock, [(t, progress(100 * t, 0)) for t in range(11)])
        assert "200 steps/s" in on_screen(bar)[-1]
        show(bar, clock, [(t, progress(1000, 5 * (t - 10))) for t in range(11, 61)])
        # Nothing was collected since, and the first ten seconds are forgotten.
        assert on_screen(bar)[-1].startswith("speed    0.0 steps/s, 10 updates/s,")


def test_tasks_are_not_mixed(terminal, console, clock):
    for where in (terminal, console):
        with Bar(1000, ["dog-run", "dog-stand"], where) as bar:
            show(bar, clock, [(0, progress(0, 0)), (1, progress(1, 0))])
            show(bar, clock, [(70, progress(500, 9, (1.0, 3.0)))])
            assert on_screen(bar)[1:4] == [
                "return   at step 500",
                "  dog-run   1.0",
                "  dog-stand 3.0",
            ]
        clock.now = 0.0
    assert "  decision step       500  dog-stand: return 3.0" in written(console)


def test_memory_is_that_of_the_device_too(terminal, clock, weight):
    weight["on_device"] = 23_400_000_000
    with Bar(1000, TASKS, terminal) as bar:
        show(bar, clock, [(0, progress(0, 0))])
        assert on_screen(bar)[-1] == "speed    -, memory 1.2 GB, device 23.4 GB"


def test_memory_that_nobody_tells_is_not_shown(terminal, clock, weight):
    weight["resident"] = None
    with Bar(1000, TASKS, terminal) as bar:
        show(bar, clock, [(0, progress(0, 0))])
        assert on_screen(bar)[-1] == "speed    -"


def test_the_end_sums_up_the_whole_run(terminal, clock):
    with Bar(1000, TASKS, terminal) as bar:
        turns = [(0, progress(0, 0)), (0, progress(1, 0))]
        show(bar, clock, [*turns, (100, progress(1000, 800, (1.0, 3.0)))])
    first, second = on_screen(bar)
    assert first.startswith("done     ━")
    assert first.endswith("━ 1,000/1,000 100% in 1:40")
    assert second == "average  20 steps/s, 16 updates/s, memory 1.2 GB"


def test_a_bar_stops_where_its_run_did(terminal, console, clock):
    places = [(0, 0), (0, 1), (61, 500)]
    turns = [(t, progress(n, 0, warm=False)) for t, n in places]
    for where in (terminal, console):
        bar = Bar(10_000, TASKS, where)
        with pytest.raises(KeyboardInterrupt):
            interrupt(bar, clock, turns)
        assert on_screen(bar)[0].startswith("warm-up ")
        assert "done" not in where.file.getvalue()
    assert written(console)[-1].startswith("  warm-up 500/10,000 5% ETA -, 16 steps/s")
