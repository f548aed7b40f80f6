import pytest

from r2r2.config.every import EVERY, Every, every
from r2r2.config.refusal import Refusal


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10min", Every(minutes=10.0)),
        ("0.5min", Every(minutes=0.5)),
        (" 2 min ", Every(minutes=2.0)),
        ("5000", Every(steps=5000)),
        ("5_000", Every(steps=5000)),
        ("5000 steps", Every(steps=5000)),
        ("1 step", Every(steps=1)),
        ("2147483647", Every(steps=2**31 - 1)),
        ("never", Every()),
    ],
)
def test_an_interval_is_minutes_steps_or_never(text, found):
    assert every(text) == found
    assert EVERY.holds(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "min", "steps", "0", "0min", "0.0min", "-1", "-1min", "1.5", "1.5 steps"),
        *("infmin", "nanmin", "1e3min", "10 minutes", "10s", "1h", "always", "Never"),
        *("2147483648", "9" * 40, "9" * 40 + "min", "5000 steps 5", "_5", "\u0661min"),
    ],
)
def test_anything_else_is_refused_in_a_sentence(text):
    assert not EVERY.holds(text)
    with pytest.raises(Refusal) as refused:
        every(text)
    assert str(refused.value) == (
        f"checkpoint_every is {text!r}; allowed is minutes (10min, 0.5min), decision "
        "steps (5000) or never"
    )
