"""Divide runs into fleets and order them, so that all devices are done early.

A `Work` is a set of runs that may share fleets: every seed of every task. A fleet is a rectangle of
it, some tasks with some seeds. Large fleets are efficient, since starting and launching costs the
same for any number of members; small fleets spread over more devices. `divide` weighs both, and
`lower_bound` says what no schedule can beat. Devices here are slots: places where one fleet runs at
a time, all equally fast.
"""

import bisect
import functools
import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROUNDS = 30  # of a bisection
ROUNDING = 20  # dual feasible functions
FEW = 12  # works, for which it matters which runs fit into one slot together
CLOSE = 1.02  # times a lower bound: no better schedule is looked for
MAX_RUNS, MAX_FLEETS = 20, 8  # of a work whose divisions are all tried
MAX_PARTS = 60  # of a schedule whose works are divided anew
TICKS = 600  # into which the time of a slot is divided there
MAX_PATTERNS = 200
MAX_WHOLE_PATTERNS = 400  # that are all listed


class Part(NamedTuple):
    """A fleet: a range of tasks and a range of seeds of a `Work`."""

    work: int  # index of the work
    first_task: int
    tasks: int
    first_seed: int
    seeds: int

    @property
    def members(self) -> int:
        """The number of runs."""
        return self.tasks * self.seeds


class Work(NamedTuple):
    """Runs that may share fleets."""

    tasks: int
    seeds: int
    seconds: tuple[float, ...]  # of fleets with 1, 2, ... members, up to the most allowed

    @property
    def sizes(self) -> list[int]:
        """The numbers of members that fleets can have: some tasks times some seeds."""
        sizes = {t * s for t in range(1, self.tasks + 1) for s in range(1, self.seeds + 1)}
        return sorted(size for size in sizes if size <= len(self.seconds))

    def whole(self, index: int) -> Part:
        """Return all runs as one part."""
        return Part(index, 0, self.tasks, 0, self.seeds)


def makespan(seconds: Sequence[float], slots: int) -> float:
    """Return when all fleets have ended, if each starts, in order, as soon as a slot is free.

    Example:
        >>> makespan([3.0, 3.0, 2.0, 2.0, 2.0], 2), makespan([3.0, 2.0, 2.0, 3.0, 2.0], 2)
        (7.0, 6.0)
    """
    free = [0.0] * slots
    for duration in seconds:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def divide(works: Sequence[Work], slots: int) -> list[Part]:
    """Return fleets in the order of their start, for an early end of the last one.

    Several schedules are tried: slots are filled up to a limit that is lowered as far as possible,
    and fleets up to several durations are started with the longest first. With few works, each is
    then divided anew as long as that ends earlier.

    Example:
        >>> work = Work(tasks=2, seeds=5, seconds=tuple(10.0 + m for m in range(10)))
        >>> [part.members for part in divide([work], slots=1)]
        [10]
        >>> [part.members for part in divide([work], slots=2)]
        [5, 5]
    """
    if not works:
        return []
    best, end = _divide(works, slots)
    lines = [_line(work) for work in works]
    if len(works) > FEW or _is_too_short(lines, slots, end / CLOSE):
        return best
    starts = [best, *(_limited(works, limit) for limit in _limits(works, end)[::6])]
    for start in [parts for parts in starts if len(parts) <= MAX_PARTS]:
        best, end = _better(works, slots, (best, end), _divided_anew(works, start, slots))
    return best


def _divide(works: Sequence[Work], slots: int) -> tuple[list[Part], float]:
    """Return the best of the schedules that are not improved step by step, and its end."""
    best = _longest_first(works, _limited(works, math.inf))
    end = _end(works, best, slots)
    for limit in _limits(works, end):
        parts = _longest_first(works, _limited(works, limit))
        best, end = _better(works, slots, (best, end), parts)
    for parts in _filled(works, slots, end):
        best, end = _better(works, slots, (best, end), parts)
    return best, end


def _better(
    works: Sequence[Work], slots: int, best: tuple[list[Part], float], parts: list[Part]
) -> tuple[list[Part], float]:
    """Return the parts with the earlier end; fewer fleets win a tie."""
    end = _end(works, parts, slots)
    sooner = end < best[1] * (1 - 1e-6)
    fewer = end <= best[1] * (1 + 1e-6) and len(parts) < len(best[0])
    return (parts, end) if sooner or fewer else best


def _duration(works: Sequence[Work], part: Part) -> float:
    return works[part.work].seconds[part.members - 1]


def _end(works: Sequence[Work], parts: Sequence[Part], slots: int) -> float:
    return makespan([_duration(works, part) for part in parts], slots)


def _longest_first(works: Sequence[Work], parts: Sequence[Part]) -> list[Part]:
    return sorted(parts, key=lambda part: -_duration(works, part))


# Fleets up to a duration


def _limits(works: Sequence[Work], end: float) -> list[float]:
    """Return durations to limit fleets to: from that of the longest run to all."""
    shortest = max(work.seconds[0] for work in works)
    count = 24
    return [shortest * (max(end / shortest, 1.0)) ** (n / count) for n in range(count)]


def _limited(works: Sequence[Work], limit: float) -> list[Part]:
    """Return all runs in fleets that take at most so long, unless a single run takes longer."""
    parts: list[Part] = []
    for index, work in enumerate(works):
        most = max(bisect.bisect_right(work.seconds, limit), 1)
        parts += _even_parts(index, work, most)
    return parts


def _even_parts(index: int, work: Work, most: int) -> list[Part]:
    """Divide a work into few rectangles of at most so many members and of similar sizes."""
    choices: list[tuple[float, list[Part]]] = []
    for rows in range(1, work.tasks + 1):
        columns = most // -(-work.tasks // rows)
        if columns:
            tasks = _ranges(work.tasks, rows)
            seeds = _ranges(work.seeds, -(-work.seeds // columns))
            parts = [Part(index, *t, *s) for t, s in itertools.product(tasks, seeds)]
            choices.append((sum(work.seconds[x.members - 1] for x in parts), parts))
    return min(choices, key=lambda choice: (choice[0], len(choice[1])))[1]


def _ranges(count: int, parts: int) -> list[tuple[int, int]]:
    """Return starts and lengths of ranges that divide a count evenly."""
    ends = [count * n // parts for n in range(parts + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(ends)]


# Slots filled up to a limit


def _filled(works: Sequence[Work], slots: int, end: float) -> list[list[Part]]:
    """Return schedules with ever lower limits, found by bisection."""
    schedules: list[list[Part]] = []
    for by_run in (False, True):
        low, high = max(work.seconds[0] for work in works) * (1 - 1e-9), end
        for _ in range(ROUNDS):
            middle = (low + high) / 2
            parts = _fill(works, slots, middle, by_run)
            if parts is None:
                low = middle
            else:
                high = middle
                schedules.append(parts)
            if high - low <= 1e-3 * high:
                break
    return schedules


def _fill(works: Sequence[Work], slots: int, limit: float, by_run: bool) -> list[Part] | None:
    """Fill slots up to a limit; return the fleets by their start, or None if it is too low.

    The works with the longest runs (or fleets) come first. What is left of a work goes as a
    whole to the slot that it fills best, or else as far as possible to the emptiest slot.
    """
    rank = 0 if by_run else -1
    order = sorted(range(len(works)), key=lambda n: -works[n].seconds[rank])
    room = [(limit, n) for n in range(slots)]  # ascending
    placed: list[tuple[float, Part]] = []  # with their starts
    for index in order:
        work, waiting = works[index], [works[index].whole(index)]
        while waiting:
            part = waiting.pop()
            fit = len(room)
            if part.members <= len(work.seconds):
                fit = bisect.bisect_left(room, (_duration(works, part) - 1e-9 * limit, -1))
            position = min(fit, len(room) - 1)
            free, slot = room[position]
            if fit == len(room):
                most = bisect.bisect_right(work.seconds, free + 1e-9 * limit)
                if not most:
                    return None
                part, rest = _cut(part, most)
                waiting += rest
            placed.append((limit - free, part))
            del room[position]
            bisect.insort(room, (free - _duration(works, part), slot))
    return [part for _, part in sorted(placed, key=lambda x: x[0])]


def _cut(part: Part, most: int) -> tuple[Part, list[Part]]:
    """Cut a rectangle of at most so many members off a part; return it and the rest."""
    if part.members <= most:
        return part, []
    by_tasks, by_seeds = most // part.seeds, most // part.tasks
    if not by_tasks and not by_seeds:  # smaller than one task and than one seed
        row, rest = _cut_tasks(part, 1) if part.tasks > 1 else (part, [])
        head, tail = _cut_seeds(row, most)
        return head, [*rest, *tail]
    if by_tasks * part.seeds >= by_seeds * part.tasks:
        return _cut_tasks(part, by_tasks)
    return _cut_seeds(part, by_seeds)


def _cut_tasks(part: Part, count: int) -> tuple[Part, list[Part]]:
    rest = part._replace(first_task=part.first_task + count, tasks=part.tasks - count)
    return part._replace(tasks=count), [rest]


def _cut_seeds(part: Part, count: int) -> tuple[Part, list[Part]]:
    rest = part._replace(first_seed=part.first_seed + count, seeds=part.seeds - count)
    return part._replace(seeds=count), [rest]


# One work after the other divided anew


def _divided_anew(works: Sequence[Work], parts: Sequence[Part], slots: int) -> list[Part]:
    """Return a schedule after dividing one work at a time in all ways, as long as it gets better.

    The longest fleets start first. Of schedules with equal ends, the one with less work is better.
    """
    divided = [[part for part in parts if part.work == n] for n in range(len(works))]
    best, before = (math.inf, math.inf), None
    while best != before:
        before = best
        for index, work in enumerate(works):
            others = [_duration(works, x) for n, of in enumerate(divided) if n != index for x in of]
            for choice in (divided[index], *_divisions(index, work)):
                times = [*others, *(work.seconds[part.members - 1] for part in choice)]
                total = sum(times)
                if total > slots * best[0]:
                    continue
                key = makespan(sorted(times, reverse=True), slots), total
                if key < best:
                    best, divided[index] = key, [*choice]
    return _longest_first(works, [part for of_work in divided for part in of_work])


def _divisions(index: int, work: Work) -> list[list[Part]]:
    """Return the ways to divide a work by straight cuts; none if there are too many."""
    if work.tasks * work.seeds > MAX_RUNS:
        return []
    cuts = _cuts(work.tasks, work.seeds, len(work.seconds), MAX_FLEETS)
    return [[part._replace(work=index) for part in parts] for parts in cuts.values()]


@functools.cache
def _cuts(tasks: int, seeds: int, largest: int, most: int) -> dict[tuple[int, ...], list[Part]]:
    """Return ways to cut a rectangle into at most so many parts, one for each set of their sizes.

    Example:
        >>> sorted(_cuts(2, 2, largest=4, most=3))
        [(1, 1, 2), (2, 2), (4,)]
    """
    whole = Part(0, 0, tasks, 0, seeds)
    divisions: dict[tuple[int, ...], list[Part]] = {}
    if whole.members <= largest:
        divisions[whole.members,] = [whole]
    halves = [_cut_tasks(whole, n) for n in range(1, tasks // 2 + 1)]
    halves += [_cut_seeds(whole, n) for n in range(1, seeds // 2 + 1)]
    for first, (second,) in halves if most > 1 else ():
        for sizes, parts in _cuts(first.tasks, first.seeds, largest, most - 1).items():
            rest = _cuts(second.tasks, second.seeds, largest, most - len(sizes))
            for others, more in rest.items():
                key = tuple(sorted((*sizes, *others)))
                if key not in divisions:
                    divisions[key] = [*parts, *(_moved(part, second) for part in more)]
    return divisions


def _moved(part: Part, place: Part) -> Part:
    """Return a part of a rectangle whose first task and seed are those of a place."""
    task, seed = part.first_task + place.first_task, part.first_seed + place.first_seed
    return part._replace(first_task=task, first_seed=seed)


# Bounds


class _Line(NamedTuple):
    """A line below the seconds of a work's fleets: `start + members * run`."""

    start: float
    run: float
    runs: int
    most: int  # members of a fleet

    def fleets(self, limit: float) -> float:
        """Return the least number of fleets that take at most so long each."""
        most = min(self.most, int((limit - self.start) / self.run * (1 + 1e-9)))
        return -(-self.runs // most) if most > 0 else math.inf


def _line(work: Work) -> _Line:
    seconds, runs = np.asarray(work.seconds), work.tasks * work.seeds
    members = np.arange(1, len(seconds) + 1)
    slope = (seconds[-1] - seconds[0]) / max(len(seconds) - 1, 1)
    start = float((seconds - slope * members).min())
    if start < 0 or len(seconds) == 1:
        start, slope = 0.0, (seconds / members).min()
    return _Line(start, max(float(slope), 1e-9 * float(seconds[0])), runs, work.sizes[-1])


def lower_bound(works: Sequence[Work], slots: int) -> float:
    """Return seconds in which no schedule can end, however runs are divided into fleets.

    It is the largest limit that is proved to be too short: a single run takes longer; or the
    fleets, of which there must be enough to be short enough, sum to more than all slots have; or
    the runs do not fit into the slots by the bound of Martello and Toth (1990) for bin packing; or,
    with few works, by that of Gilmore and Gomory (1961) for cutting stock; or, with two or three
    works, by trying all ways to fill the slots with fleets of allowed sizes.

    Example:
        >>> round(lower_bound([Work(tasks=1, seeds=3, seconds=(4.0, 8.0, 12.0))], slots=2), 3)
        8.0
    """
    if not works:
        return 0.0
    lines = [_line(work) for work in works]
    low = max(min(work.seconds) for work in works)
    high = sum(x.start * x.runs + x.run * x.runs for x in lines)  # one slot, no fleet shared
    low = _bisect(low, high, lambda limit: _is_too_short(lines, slots, limit))
    if len(works) > FEW:
        return low
    # No schedule of all runs ends later than the one that `_divide` finds.
    high = max(_divide(works, slots)[1], low)
    low = _bisect(low, high, lambda limit: _too_many_patterns(works, slots, limit), 2e-3)
    if math.prod(work.tasks * work.seeds + 1 for work in works[:-1]) > MAX_WHOLE_PATTERNS:
        return low
    return _bisect(low, high, lambda limit: _too_many_whole_patterns(works, slots, limit), 2e-3)


def _bisect(low: float, high: float, is_below: Callable[[float], bool], error: float = 0) -> float:
    """Return about the largest number between two for which a condition holds, or the first."""
    for _ in range(2 * ROUNDS):
        if high - low <= error * high:
            break
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low


def _is_too_short(lines: Sequence[_Line], slots: int, limit: float) -> bool:
    """Return whether it is certain that not all runs can end within a limit."""
    counts = [x.fleets(limit) for x in lines]
    if math.inf in counts:
        return True
    pairs = [(x, int(n)) for x, n in zip(lines, counts, strict=True)]
    total = sum(x.start * n + x.run * x.runs for x, n in pairs)
    used, least = min(slots, sum(x.runs for x in lines)), min(x.start for x in lines)
    unused = max(used - sum(n for _, n in pairs), 0)  # slots that need further fleets
    if total + unused * least > used * limit * (1 + 1e-9):
        return True
    first = [x.start + x.run for x, n in pairs for _ in range(n)]
    others = [x.run for x, n in pairs for _ in range(x.runs - n)]
    alone = [x.run for x in lines for _ in range(x.runs)]
    return not (_may_fit([*first, *others], slots, limit) and _may_fit(alone, slots, limit - least))


def _may_fit(sizes: Sequence[float], slots: int, limit: float) -> bool:
    """Return False if items certainly do not fit into slots of a size.

    Of the k * slots + 1 largest items, some slot has k + 1, at least the smallest of them. And
    items can be rounded by the dual feasible functions of Fekete and Schepers (2001).
    """
    items = np.sort(np.asarray(sizes, float))
    sums = np.concatenate([[0.0], np.cumsum(items)])
    k = np.arange(1, (len(items) - 1) // slots + 1)
    smallest = len(items) - 1 - k * slots
    together = sums[smallest + k + 1] - sums[smallest]
    if (together > limit * (1 + 1e-9)).any():
        return False
    k = np.arange(1, ROUNDING + 1)
    distinct, counts = np.unique(items, return_counts=True)
    rounded = np.floor(np.outer(k + 1, distinct / limit) - 1e-6) @ counts
    return bool((rounded <= k * slots).all()) and _bins(items, limit) <= slots


def _bins(items: NDArray[np.float64], size: float) -> int:
    """Return bins of a size that items need at least (Martello and Toth's L2).

    Example:
        >>> items = np.array([2.0, 2.0, 2.0, 3.0, 3.0])  # ascending
        >>> _bins(items, 4.0), _bins(items, 5.0)
        (4, 3)
    """
    sums = np.concatenate([[0.0], np.cumsum(items)])
    size *= 1 + 1e-9
    half = int(np.searchsorted(items, size / 2, side="right"))
    thresholds = np.concatenate([[0.0], np.unique(items[:half])])
    large = np.searchsorted(items, size - thresholds, side="right")  # first item above
    small = np.searchsorted(items, thresholds, side="left")
    middle_room = (large - half) * size - (sums[large] - sums[half])
    extra = np.ceil((sums[half] - sums[small] - middle_room) / size - 1e-9)
    return int((len(items) - half + np.maximum(extra, 0)).max())


# Patterns: what one slot can train within a limit


def _too_many_patterns(works: Sequence[Work], slots: int, limit: float) -> bool:
    """Return whether it is certain that runs need more slots than there are.

    A pattern says how many runs of each work one slot trains. The least number of patterns, also
    in fractions, that train all runs is a linear program; patterns are added to it as its
    prices of the runs ask for them. Any prices prove a bound: as many slots are needed as the value
    of the most valuable pattern is contained in that of all runs (Farley 1990).
    """
    from scipy.optimize import linprog  # slow to import, and not needed for plans

    runs = np.array([work.tasks * work.seeds for work in works], float)
    items = _fleet_items(works, limit)
    patterns = [_best_pattern(items, np.eye(len(works))[n]) for n in range(len(works))]
    for _ in range(MAX_PATTERNS):
        columns = np.array(patterns, float).T
        solved = linprog(np.ones(len(patterns)), A_ub=-columns, b_ub=-runs, method="highs")
        if not solved.success:  # a work does not fit at all, or rounding: nothing is proved
            return False
        if solved.fun <= slots * (1 + 1e-9):
            return False
        prices = np.maximum(-solved.ineqlin.marginals, 0.0)
        pattern = _best_pattern(items, prices)
        if prices @ runs > slots * (prices @ pattern) * (1 + 1e-9):
            return True
        if any((pattern == known).all() for known in patterns):
            return False
        patterns.append(pattern)
    return False


class _FleetItem(NamedTuple):
    """A size of fleets of a work."""

    work: int
    members: int
    ticks: int  # that it takes at least


def _fleet_items(works: Sequence[Work], limit: float) -> list[_FleetItem]:
    """Return the fleets that a slot can train within a limit, their times rounded down."""
    items: list[_FleetItem] = []
    for index, work in enumerate(works):
        for members in work.sizes:
            seconds = work.seconds[members - 1]
            if seconds <= limit * (1 + 1e-9):
                items.append(_FleetItem(index, members, int(seconds / limit * TICKS * (1 - 1e-9))))
    return items


def _best_pattern(items: Sequence[_FleetItem], prices: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the runs of each work that one slot trains for the largest sum of their prices."""
    ticks = np.array([max(item.ticks, 1) for item in items])
    values = np.array([prices[item.work] * item.members for item in items])
    best, last = np.zeros(TICKS + 1), np.full(TICKS + 1, -1)
    for used in range(1, TICKS + 1):  # the best value of at most so many ticks
        before = used - ticks
        sums = np.where(before >= 0, best[np.maximum(before, 0)] + values, -1.0)
        choice = int(sums.argmax())
        best[used] = best[used - 1]
        if sums[choice] > best[used]:
            best[used], last[used] = sums[choice], choice
    pattern, used = np.zeros(len(prices), np.int64), TICKS
    while used > 0:
        if last[used] < 0:
            used -= 1
            continue
        item = items[last[used]]
        pattern[item.work] += item.members
        used -= max(item.ticks, 1)
    return pattern


def _too_many_whole_patterns(works: Sequence[Work], slots: int, limit: float) -> bool:
    """Return whether runs need more slots than there are, if each slot has one whole pattern."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import

    *others, last = [_least_seconds(work) for work in works]
    patterns: list[tuple[int, ...]] = []
    for counts in itertools.product(*(range(len(times)) for times in others)):
        left = limit - sum(times[n] for times, n in zip(others, counts, strict=True))
        if left >= -1e-9 * limit:
            patterns.append((*counts, bisect.bisect_right(last, left + 1e-9 * limit) - 1))
    columns = np.array(patterns, float).T
    cost, whole = np.zeros(len(patterns)), np.ones(len(patterns))
    solved = milp(
        cost,
        constraints=[
            LinearConstraint(columns, lb=[work.tasks * work.seeds for work in works]),
            LinearConstraint(whole, ub=slots),
        ],
        integrality=whole,
        bounds=Bounds(0, slots),
    )
    return bool(solved.status == 2)  # infeasible


def _least_seconds(work: Work) -> list[float]:
    """Return the seconds in which one slot can train 0, 1, 2, ... runs of a work.

    Example:
        >>> _least_seconds(Work(2, 2, (3.0, 4.0, 9.0, 9.0)))
        [0.0, 3.0, 4.0, 7.0, 8.0]
    """
    least = [0.0]
    for runs in range(1, work.tasks * work.seeds + 1):
        sizes = [size for size in work.sizes if size <= runs]
        least.append(min(least[runs - size] + work.seconds[size - 1] for size in sizes))
    return least
