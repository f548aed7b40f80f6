"""How often something is done: by the clock, by steps, or never."""

import re
from typing import NamedTuple

from r2r2.config.errors import UserError
from r2r2.config.fields import LARGEST, POSITIVE, Range


class Interval(NamedTuple):
    """An interval in minutes or in decision steps; neither is never."""

    minutes: float | None = None
    steps: int | None = None


def parse_interval(text: str) -> Interval:
    """What people write for an interval.

    Raises:
        UserError: it is none of the ways to write one.

    Example:
        >>> parse_interval("0.5min"), parse_interval("5000")
        (Interval(minutes=0.5, steps=None), Interval(minutes=None, steps=5000))
    """
    found = _read(text)
    if found is None:
        expected = INTERVAL.description
        raise UserError(f"checkpoint_every is {text!r}; allowed is {expected}")
    return found


def _read(text: str) -> Interval | None:
    """The interval, or None where the text is none."""
    if text.strip() == "never":
        return Interval()
    # Twelve digits: more are a slip, and a float or a device's integer must hold it.
    minutes = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?) ?min\s*", text)
    if minutes and POSITIVE.is_valid(float(minutes[1])):
        return Interval(minutes=float(minutes[1]))
    steps = re.fullmatch(r"\s*([0-9][0-9_]{0,11})(?: steps?)?\s*", text)
    if steps and 1 <= (count := int(steps[1].replace("_", ""))) <= LARGEST:
        return Interval(steps=count)
    return None


INTERVAL = Range(
    "minutes (10min, 0.5min), decision steps (5000) or never",
    lambda text: _read(text) is not None,
)
