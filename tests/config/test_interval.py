import pytest

from r2r2.config.errors import UserError
from r2r2.config.fields import INTERVAL, Interval, parse_duration, parse_interval


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("10min", Interval(minutes=10.0)),
        ("0.5min", Interval(minutes=0.5)),
        (" 2 min ", Interval(minutes=2.0)),
        ("5000", Interval(steps=5000)),
        ("5_000", Interval(steps=5000)),
        ("5000 steps", Interval(steps=5000)),
        ("1 step", Interval(steps=1)),
        ("10k steps", Interval(steps=10_000)),
        ("1e4", Interval(steps=10_000)),
        ("2147483647", Interval(steps=2**31 - 1)),
        ("never", Interval()),
    ],
)
def test_intervals_are_minutes_steps_or_never(text, interval):
    assert parse_interval(text) == interval
    assert INTERVAL.is_valid(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "min", "steps", "0", "0min", "0.0min", "-1", "-1min", "1.5", "1.5 steps"),
        *("infmin", "nanmin", "1e3min", "10 minutes", "10s", "1h", "always", "Never"),
        *("2147483648", "9" * 40, "9" * 40 + "min", "5000 steps 5", "_5", "\u0661min"),
    ],
)
def test_other_intervals_are_reported(text):
    assert not INTERVAL.is_valid(text)
    with pytest.raises(UserError) as error:
        parse_interval(text)
    assert str(error.value) == (
        f"checkpoint_every: expected minutes (10min, 0.5min), decision steps (5000) or "
        f"never, got {text!r}"
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("25m", 1500), ("25min", 1500), ("2h", 7200), ("1.5h", 5400), ("1h30m", 5400)],
)
def test_times(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "25", "m", "-5m", "1h30", "infs", "0s", "1e3s"])
def test_texts_that_are_no_times(text):
    assert parse_duration(text) == 0
