"""How often something is done: by the clock, by steps, or never."""

import re
from typing import NamedTuple

from r2r2.config.options import LARGEST, POSITIVE, Range
from r2r2.config.refusal import Refusal


class Every(NamedTuple):
    """An interval in minutes or in decision steps; neither is never."""

    minutes: float | None = None
    steps: int | None = None


def every(text: str) -> Every:
    """What people write for an interval.

    Raises:
        Refusal: it is none of the ways to write one.

    Example:
        >>> every("0.5min"), every("5000")
        (Every(minutes=0.5, steps=None), Every(minutes=None, steps=5000))
    """
    found = _read(text)
    if found is None:
        raise Refusal(f"checkpoint_every is {text!r}; allowed is {EVERY.words}")
    return found


def _read(text: str) -> Every | None:
    """The interval, or None where the text is none."""
    if text.strip() == "never":
        return Every()
    # Twelve digits: more are a slip, and a float or a device's integer must hold it.
    minutes = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?) ?min\s*", text)
    if minutes and POSITIVE.holds(float(minutes[1])):
        return Every(minutes=float(minutes[1]))
    steps = re.fullmatch(r"\s*([0-9][0-9_]{0,11})(?: steps?)?\s*", text)
    if steps and 1 <= (count := int(steps[1].replace("_", ""))) <= LARGEST:
        return Every(steps=count)
    return None


EVERY = Range(
    "minutes (10min, 0.5min), decision steps (5000) or never",
    lambda text: _read(text) is not None,
)
