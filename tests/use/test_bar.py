import io

import numpy as np
import pytest
from rich.console import Console

from r2r2.run.train import Progress
from r2r2.use import bar as subject
from r2r2.use.bar import Bar, Pace, spread

NAN = float("nan")


def progress(decisions, updates, returns=(NAN, NAN), warm=True):
    """A fleet of two at the same place."""
    return Progress(
        np.full(2, decisions),
        np.full(2, updates),
        np.full(2, warm),
        0 if np.isnan(returns).any() else decisions,
        np.array(returns),
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
    return Console(file=io.StringIO(), width=100)


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


def test_returns_are_summed_up():
    assert spread(np.array([NAN, NAN])) == "-"
    assert spread(np.array([])) == "-"
    assert spread(np.array([NAN, 12.34])) == "12.3"
    assert spread(np.array([1.0, NAN, 4.0])) == "2.5 (1.0 to 4.0 over 2)"


def test_a_run_that_was_refused_has_no_bar(console):
    with pytest.raises(ZeroDivisionError), Bar(10, console, "the opening"):
        raise ZeroDivisionError
    assert console.file.getvalue() == ""


def test_a_bar_opens_at_the_first_call_and_ends_with_the_last_return(console, clock):
    with Bar(1000, console, "the opening") as bar:
        assert console.file.getvalue() == ""
        bar(progress(0, 0, warm=False))
        bar(progress(500, 0))
        bar(progress(500, 10, (1.0, 3.0)))
        bar(progress(1000, 20, (5.0, 7.0)))
    lines = console.file.getvalue().split("\n")
    assert lines[0] == "the opening"
    assert (
        lines[1].split() == "decision step 500 return 2.0 (1.0 to 3.0 over 2)".split()
    )
    assert (
        lines[2].split() == "decision step 1,000 return 6.0 (5.0 to 7.0 over 2)".split()
    )
    assert lines[3].startswith("done ")
    assert "1000/1000" in lines[3]
    assert "return 6.0 (5.0 to 7.0 over 2)" in lines[3]


def interrupt(bar, clock, turns):
    """Shows a bar the turns of a run, at their times, and then stops the run."""
    with bar:
        for clock.now, turn in turns:
            bar(turn)
        raise KeyboardInterrupt


def test_a_bar_stops_where_its_run_did(console, clock):
    turns = [(0, progress(0, 0, warm=False)), (1, progress(500, 0, warm=False))]
    with pytest.raises(KeyboardInterrupt):
        interrupt(Bar(10_000, console), clock, turns)
    last = console.file.getvalue().rstrip().split("\n")[-1]
    assert last.startswith("warm-up ")
    assert "500/10000 ETA - return -" in last


def test_a_bar_shows_the_time_to_go(console, clock):
    turns = [
        (10, progress(900, 0)),
        (20, progress(1000, 9)),
        (50, progress(1100, 109)),  # 100 steps in 30 s; 9900 to go: 2970 s
        (50.1, progress(1200, 209)),  # too soon to be drawn
    ]
    with pytest.raises(KeyboardInterrupt):
        interrupt(Bar(11_000, console), clock, turns)
    last = console.file.getvalue().rstrip().split("\n")[-1]
    assert last.startswith("training ")
    assert "1100/11000 ETA 49:30 return -" in last


def test_hours_are_shown_as_such():
    assert subject._clock(3661.4) == "1:01:01"
    assert subject._clock(0) == "0:00"
