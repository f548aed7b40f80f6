"""How fast a run goes, and when it will be done."""

from typing import NamedTuple


class Pace:
    """When a run will be done, from the speed of steps that were trained on.

    Warm-up makes no updates and is many times faster, and the first updates wait for
    the compiler: neither says anything about the rest, so until steps have been
    followed by updates there is no estimate.

    Args:
        steps: decision steps of the whole run.
        made: updates made before, in a run that is continued.
    """

    def __init__(self, steps: int, made: float = 0.0):
        self._steps, self._made = steps, made
        self._start: tuple[float, float] | None = None

    def remaining(self, decisions: float, updates: float, now: float) -> float | None:
        """Seconds still to go, or None while nothing can be said."""
        if self._start is None and updates > self._made:
            self._start = (decisions, now)
        if self._start is None or decisions <= self._start[0]:
            return None
        rate = (now - self._start[1]) / (decisions - self._start[0])
        return rate * (self._steps - decisions)


class Mark(NamedTuple):
    """How far the whole fleet was at a time."""

    now: float
    decisions: float
    updates: float

    def speed_since(self, before: "Mark") -> str:
        """Steps and updates per second of the whole fleet, if a second has passed."""
        seconds = self.now - before.now
        if seconds < 1:
            return "-"
        steps = (self.decisions - before.decisions) / seconds
        updates = (self.updates - before.updates) / seconds
        return f"{_rate(steps)} steps/s, {_rate(updates)} updates/s"


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"
