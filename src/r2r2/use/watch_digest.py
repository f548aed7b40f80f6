"""What a run's log says so far, taken in event by event."""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from r2r2.use.pace import Mark, Pace

WINDOW = 60.0  # seconds of the run over which speed is measured
FAULTS = ("episode_dropped", "evaluation_repeated")


@dataclasses.dataclass
class MemberNews:
    """How far one member is, and what befell it."""

    decisions: int = 0
    updates: int = 0
    stopped: str | None = None  # why
    failures: int = 0  # of its environment
    failure: str = ""  # the last of them
    collapse: str | None = None  # its representation's, at the last evaluation

    def sentences(self, name: str) -> Iterator[str]:
        """What somebody should know of it.

        Example:
            >>> print(*MemberNews(failures=2, failure="no power").sentences("arm_s0"))
            the environment of arm_s0 failed 2 times: no power
        """
        if self.stopped is not None:
            yield f"{name} was stopped at step {self.decisions:,}: {self.stopped}"
        elif self.failures:
            times = "once" if self.failures == 1 else f"{self.failures} times"
            yield f"the environment of {name} failed {times}: {self.failure}"
        if self.collapse is not None:
            what = f"the representation of {name} has collapsed"
            yield f"warning: {what} {self.collapse}"


class Digest:
    """A run as its events tell it, from the first to the newest.

    An event that is not what a run writes raises ValueError and changes nothing.

    Args:
        members: the run's, by name.
        steps: decision steps of every member.

    Example:
        >>> digest = Digest(["Hopper-v5_s0"], 1000)
        >>> event = {"event": "losses", "member": "Hopper-v5_s0", "time": 9.0}
        >>> digest.take(event | {"decision_step": 100, "update_step": 40})
        >>> digest.decisions, digest.members["Hopper-v5_s0"].updates
        (100.0, 40)
    """

    def __init__(self, members: Sequence[str], steps: int):
        self.members = {name: MemberNews() for name in members}
        self.seconds = 0.0
        self.resumed = 0  # how often
        self.remaining: float | None = None  # seconds, as of the newest event
        self._steps, self._pace = steps, Pace(steps)
        self._sums = [0, 0]  # decision steps and updates of the whole fleet
        self._marks: deque[Mark] = deque()

    @property
    def begun(self) -> bool:
        """Whether anything has happened."""
        return bool(self._marks)

    @property
    def going(self) -> list[MemberNews]:
        """The members that were not stopped, or all if there are no others."""
        whole = list(self.members.values())
        return [member for member in whole if member.stopped is None] or whole

    @property
    def decisions(self) -> float:
        """Decision steps, on average over the members that go on."""
        return sum(m.decisions for m in self.going) / max(len(self.going), 1)

    @property
    def speed(self) -> str:
        """Steps and updates per second of the whole fleet, of late."""
        return self._marks[-1].speed_since(self._marks[0]) if self._marks else "-"

    def take(self, event: Mapping[str, object]) -> None:
        """Takes in the next event.

        Raises:
            ValueError: It is none that a run writes; the text says why.
        """
        name, seconds = event["member"], _seconds(event)
        decisions = _whole(event, "decision_step")
        updates = _whole(event, "update_step")
        if event["event"] == "resumed":
            self.resumed += 1
            self._pace, self.remaining = Pace(self._steps, updates), None
            self._marks.clear()
        if name is None:
            self.seconds = max(self.seconds, seconds)
            return
        member = self.members.get(name) if isinstance(name, str) else None
        if member is None:
            raise ValueError("its member is none of the run's")
        if told := TOLD.get(str(event["event"])):
            told(member, event)
        # What an evaluation found is written at its end, with the counts of its start.
        decisions = max(decisions, member.decisions)
        updates = max(updates, member.updates)
        self._sums[0] += decisions - member.decisions
        self._sums[1] += updates - member.updates
        member.decisions, member.updates = decisions, updates
        self.seconds = max(self.seconds, seconds)
        self._mark(Mark(self.seconds, *self._sums))

    def _mark(self, mark: Mark) -> None:
        self._marks.append(mark)
        while len(self._marks) > 2 and self._marks[1].now <= mark.now - WINDOW:
            self._marks.popleft()
        if self.remaining is None:
            self.estimate()

    def estimate(self) -> None:
        """Works out anew how long it will take; nothing can be said before training."""
        least = min((m.updates for m in self.going), default=0)
        left = self._pace.remaining(self.decisions, least, self.seconds)
        self.remaining = None if left is None else max(left, 0.0)


def _seconds(event: Mapping[str, object]) -> float:
    value = event.get("time")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("its 'time' is not a number")
    if not 0 <= value < 2**62:
        raise ValueError("its 'time' is none that passes")
    return float(value)


def _whole(event: Mapping[str, object], name: str) -> int:
    value = event.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        raise ValueError(f"its {name!r} is not a whole number")
    return value


def _stopped(member: MemberNews, event: Mapping[str, object]) -> None:
    member.stopped = str(event.get("why"))


def _failed(member: MemberNews, event: Mapping[str, object]) -> None:
    member.failures = _whole(event, "failures")
    member.failure = str(event.get("why"))


def _diagnosed(member: MemberNews, event: Mapping[str, object]) -> None:
    """A representation that is sound again is no longer warned of."""
    if event.get("collapsed") is False:
        member.collapse = None


def _collapsed(member: MemberNews, event: Mapping[str, object]) -> None:
    rank, dead = event.get("effective_rank"), event.get("dead")
    shown = f"{rank:.1f}" if isinstance(rank, float) else str(rank)
    where = f"at step {_whole(event, 'decision_step'):,}"
    member.collapse = f"{where}: effective rank {shown}, {dead} dead coordinates"


TOLD: dict[str, Callable[[MemberNews, Mapping[str, object]], None]] = {
    "stopped": _stopped,
    "diagnostics": _diagnosed,
    "collapse": _collapsed,
    **dict.fromkeys(FAULTS, _failed),
}
