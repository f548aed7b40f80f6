"""Intervals of checkpoints: in minutes, in decision steps, or never."""

import re
from typing import NamedTuple

from r2r2.config.errors import invalid_value
from r2r2.config.fields import MAX_INT, POSITIVE, Range


class Interval(NamedTuple):
    """An interval in minutes or in decision steps; with neither, never."""

    minutes: float | None = None
    steps: int | None = None


def parse_interval(text: str) -> Interval:
    """Return the interval that a text describes.

    Raises:
        UserError: The text describes none.

    Example:
        >>> parse_interval("0.5min"), parse_interval("5000")
        (Interval(minutes=0.5, steps=None), Interval(minutes=None, steps=5000))
    """
    interval = _parse(text)
    if interval is None:
        raise invalid_value("checkpoint_every", INTERVAL.description, text)
    return interval


def _parse(text: str) -> Interval | None:
    if text.strip() == "never":
        return Interval()
    # At most twelve digits, so that a float or an integer of the device can hold it.
    minutes = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?) ?min\s*", text)
    if minutes and POSITIVE.is_valid(float(minutes[1])):
        return Interval(minutes=float(minutes[1]))
    steps = re.fullmatch(r"\s*([0-9][0-9_]{0,11})(?: steps?)?\s*", text)
    if steps and 1 <= (count := int(steps[1].replace("_", ""))) <= MAX_INT:
        return Interval(steps=count)
    return None


INTERVAL = Range(
    "minutes (10min, 0.5min), decision steps (5000) or never",
    lambda text: _parse(text) is not None,
)
