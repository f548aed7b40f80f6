"""Where a program's time goes, by part, without its code knowing of it."""

import functools
import time
from collections.abc import Callable
from typing import Any


class Clock:
    """Seconds by part; within a part, another one's seconds are that one's alone.

    Only what `over` was told of is timed, so a program that nobody times pays nothing.

    Args:
        parts: their names.
        now: seconds.

    Example:
        >>> clock = Clock(["counting"])
        >>> numbers = [3, 1, 2]
        >>> class Shelf:
        ...     def count(self):
        ...         return len(numbers)
        >>> shelf = Shelf()
        >>> clock.over("counting", shelf, "count")
        >>> shelf.count(), clock.seconds["counting"] > 0
        (3, True)
    """

    def __init__(self, parts: list[str], now: Callable[[], float] = time.perf_counter):
        self._now = now
        self.seconds = dict.fromkeys(parts, 0.0)
        self._within: list[str] = []
        self._since = 0.0

    def over(self, part: str, owner: Any, *methods: str) -> None:
        """From now on an object's methods of these names count for a part."""
        for name in methods:
            setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(*arguments: Any, **named: Any) -> Any:
            self._turn()
            self._within.append(part)
            try:
                return method(*arguments, **named)
            finally:
                self._turn()
                self._within.pop()

        return timed

    def _turn(self) -> None:
        """Books the time since the last turn for the part that it was spent in."""
        now = self._now()
        if self._within:
            self.seconds[self._within[-1]] += now - self._since
        self._since = now
