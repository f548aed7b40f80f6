"""When checkpoints are taken; a thread writes them while training goes on."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.config.errors import UserError
from r2r2.config.interval import Interval
from r2r2.replay.buffer import Rows
from r2r2.replay.transfer import HostRows
from r2r2.storage.arrays import read_arrays
from r2r2.storage.checkpoints import (
    MANIFEST_SUFFIX,
    Checkpoint,
    CheckpointContent,
    checkpoint_numbers,
    delete_files,
    file_name,
    latest_valid,
    write_checkpoint,
)
from r2r2.training.fleet import Fleet


class Segment(NamedTuple):
    """A file with rows of the replay."""

    name: str
    last: list[int]  # by member, the number of its newest row in it


class CheckpointWriter:
    """Writes a run's checkpoints, one at a time.

    Args:
        folder: where they go.
        every: how often; by the clock, a run's result does not depend on it.
        keep: how many are kept.
        clock: seconds.
    """

    def __init__(
        self,
        folder: Path,
        every: Interval,
        keep: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._folder, self._every, self._keep, self._clock = folder, every, keep, clock
        self._began, self._step = clock(), 0
        self._segments: list[Segment] = []
        self._writer = ThreadPoolExecutor(1)
        self._under_way: tuple[Future[Checkpoint], list[int]] | None = None

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be taken, with all members at least at `step`."""
        if self._under_way is not None and not self._under_way[0].done():
            return False
        if self._every.steps is not None:
            return step // self._every.steps > self._step // self._every.steps
        minutes = self._every.minutes
        return minutes is not None and self._clock() - self._began >= 60 * minutes

    @property
    def wanted(self) -> bool:
        """Whether the run is to have checkpoints at all."""
        return self._every != Interval()

    def segment(self, fleet: Fleet) -> dict[str, NDArray[Any]]:
        """What is new in the replay since the last checkpoint, on the host.

        The row that was the newest then had no action yet: it is among the new.
        """
        self.wait()
        last = self._segments[-1].last if self._segments else [0] * fleet.size
        found: dict[str, NDArray[Any]] = {}
        for member in range(fleet.size):
            rows = fleet.fetch_rows(member, last[member])
            newest = int(fleet.opened[member])
            found[f"{member}/first"] = np.asarray(newest + 1 - len(rows["reward"]))
            found |= {f"{member}/{name}": field for name, field in rows.items()}
        return found

    def needs(self, fleet: Fleet) -> tuple[str, ...]:
        """The earlier segments of which a ring still holds some row."""
        oldest = fleet.opened - fleet.replay_rows + 1
        before, kept = np.full(fleet.size, -1), list[Segment]()
        for segment in self._segments:
            last = np.asarray(segment.last)
            if ((last > before) & (last >= oldest)).any():
                kept.append(segment)
            before = last
        self._segments = kept
        return tuple(segment.name for segment in self._segments)

    def write(self, content: CheckpointContent, fleet: Fleet) -> None:
        """Starts writing what is on the host already."""
        self._began, self._step = self._clock(), content.step
        arguments = self._folder, content, self._keep
        future = self._writer.submit(write_checkpoint, *arguments)
        self._under_way = future, fleet.opened.tolist()

    def wait(self) -> None:
        """Waits until what was started is written.

        Raises:
            StorageError: It could not be.
        """
        if self._under_way is not None:
            future, last = self._under_way
            self._under_way = None
            self._segments.append(Segment(future.result().segments[-1].name, last))

    def check(self) -> None:
        """Raises what went wrong in writing, if that is known already."""
        if self._under_way is not None and self._under_way[0].done():
            self.wait()

    def newest(self) -> Checkpoint | None:
        """The newest good checkpoint, when all writing is done."""
        self.wait()
        return latest_valid(self._folder)[0]

    def go_on(self, checkpoint: Checkpoint, fleet: Fleet) -> None:
        """Puts the rows of a checkpoint into the replay, and goes on from there.

        Raises:
            UserError: They are no rows of this run.
        """
        self._step = checkpoint.step
        self._segments = []
        for path in checkpoint.segments:
            arrays = read_arrays(path)
            last: list[int] = []
            for member in range(fleet.size):
                newest = fleet.fetch_rows(member, int(fleet.opened[member]))
                first, rows = _rows_of(path, arrays, member, newest)
                fleet.put_rows(member, first, rows)
                last.append(first + len(rows["reward"]) - 1)
            self._segments.append(Segment(path.name, last))
        # Newer ones were damaged; could they be read later, the log is not theirs.
        newer = [n for n in checkpoint_numbers(self._folder) if n > checkpoint.number]
        delete_files(self._folder / file_name(n, MANIFEST_SUFFIX) for n in newer)

    def close(self) -> None:
        """Waits for what is being written, and lets the thread go."""
        self._writer.shutdown()


def _rows_of(
    path: Path, arrays: Mapping[str, NDArray[Any]], member: int, like: HostRows
) -> tuple[int, HostRows]:
    """The number of a member's first row in a segment, and its rows from there on."""
    none = np.zeros(())
    first = arrays.get(f"{member}/first", none)
    rows = {name: arrays.get(f"{member}/{name}", none) for name in Rows._fields}
    counts = first.dtype.kind == "i" and first.shape == () and 0 <= int(first) < 2**62
    alike = [
        (x.dtype, x.ndim, x.shape[1:]) == (y.dtype, y.ndim, y.shape[1:])
        for x, y in ((rows[name], like[name]) for name in Rows._fields)
    ]
    lengths = {field.shape[:1] for field in rows.values()}
    if not counts or not all(alike) or len(lengths) > 1:
        raise UserError(
            f"'{path}' cannot be used: it holds no rows of this run's replay"
        )
    return int(first), rows
