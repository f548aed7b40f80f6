"""Checkpoints of a run: when they are written, how they are saved and resumed."""

import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.config.errors import UserError
from r2r2.config.fields import Interval
from r2r2.config.toml_io import digest
from r2r2.envs.spec import Fault
from r2r2.envs.vector.step_types import SavedState
from r2r2.replay.buffer import HostRows, Rows
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
from r2r2.storage.integrity import COPY_PREFIX, logged_files
from r2r2.training.eval_scheduler import SavedEvals
from r2r2.training.fleet import Fleet
from r2r2.training.state import (
    Snapshot,
    TrainState,
    from_arrays,
    grow_replay,
    ignore,
    restore_snapshot,
    snapshot_like,
    take_snapshot,
    to_arrays,
)

NO_STATE = "the environment cannot save its state"


class Segment(NamedTuple):
    """A file with replay rows."""

    name: str
    last: list[int]  # number of each member's newest row in it


class CheckpointWriter:
    """Writes a run's checkpoints in a thread, one at a time; the newest are kept."""

    def __init__(
        self,
        folder: Path,
        interval: Interval,
        keep: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._folder, self._interval = folder, interval
        self._keep, self._clock = keep, clock
        self._last_time, self._last_step = clock(), 0
        self._segments: list[Segment] = []
        self._thread = ThreadPoolExecutor(1)
        self._writing: tuple[Future[Checkpoint], list[int]] | None = None
        self.on_written: Callable[[Checkpoint], None] = ignore  # in the thread of the loop

    @property
    def enabled(self) -> bool:
        """Whether the run has checkpoints at all."""
        return self._interval != Interval()

    def due(self, step: int) -> bool:
        """Return whether to save now, when all members are at least at `step`."""
        if self._writing is not None and not self._writing[0].done():
            return False
        if (steps := self._interval.steps) is not None:
            return step // steps > self._last_step // steps
        minutes = self._interval.minutes
        return minutes is not None and self._clock() - self._last_time >= 60 * minutes

    def segment(self, fleet: Fleet) -> dict[str, NDArray[Any]]:
        """Return the rows since the last checkpoint, with its newest, which had no action yet."""
        self.wait()
        last = self._segments[-1].last if self._segments else [0] * fleet.size
        arrays: dict[str, NDArray[Any]] = {}
        for member in range(fleet.size):
            rows = fleet.fetch_rows(member, last[member])
            newest = int(fleet.opened[member])
            arrays[f"{member}/first"] = np.asarray(newest + 1 - len(rows["reward"]))
            arrays |= {f"{member}/{name}": field for name, field in rows.items()}
        return arrays

    def needed_segments(self, fleet: Fleet) -> tuple[str, ...]:
        """Return the earlier segments that hold a row still in some replay buffer."""
        oldest = fleet.opened - fleet.replay_rows + 1
        before, needed = np.full(fleet.size, -1), list[Segment]()
        for segment in self._segments:
            last = np.asarray(segment.last)
            if ((last > before) & (last >= oldest)).any():
                needed.append(segment)
            before = last
        self._segments = needed
        return tuple(segment.name for segment in self._segments)

    def write(self, content: CheckpointContent, fleet: Fleet) -> None:
        """Start writing a checkpoint whose content is on the host."""
        self._last_time, self._last_step = self._clock(), content.step
        future = self._thread.submit(write_checkpoint, self._folder, content, self._keep)
        self._writing = future, fleet.opened.tolist()

    def wait(self) -> None:
        """Wait until the last checkpoint is written."""
        if self._writing is not None:
            future, last = self._writing
            self._writing = None
            checkpoint = future.result()
            self._segments.append(Segment(checkpoint.segments[-1].name, last))
            self.on_written(checkpoint)

    def check(self) -> None:
        """Raise the error of a write that has failed, if any."""
        if self._writing is not None and self._writing[0].done():
            self.wait()

    def newest(self) -> Checkpoint | None:
        """Return the newest good checkpoint, after pending writes."""
        self.wait()
        return latest_valid(self._folder)[0]

    def resume(self, checkpoint: Checkpoint, fleet: Fleet) -> None:
        """Load a checkpoint's replay rows and continue after it."""
        self._last_step, self._segments = checkpoint.step, []
        for path in checkpoint.segments:
            arrays = read_arrays(path)
            last: list[int] = []
            for member in range(fleet.size):
                newest = fleet.fetch_rows(member, int(fleet.opened[member]))
                first, rows = _member_rows(path, arrays, member, newest)
                fleet.put_rows(member, first, rows)
                last.append(first + len(rows["reward"]) - 1)
            self._segments.append(Segment(path.name, last))
        # Newer checkpoints are damaged, and the log no longer belongs to them.
        newer = [n for n in checkpoint_numbers(self._folder) if n > checkpoint.number]
        delete_files(self._folder / file_name(n, MANIFEST_SUFFIX) for n in newer)

    def close(self) -> None:
        """Wait for pending writes and end the thread."""
        self._thread.shutdown()


def _member_rows(
    path: Path, arrays: Mapping[str, NDArray[Any]], member: int, like: HostRows
) -> tuple[int, HostRows]:
    """Return the number of a member's first row in a segment, and its rows."""
    missing = np.zeros(())
    first = arrays.get(f"{member}/first", missing)
    rows = {name: arrays.get(f"{member}/{name}", missing) for name in Rows._fields}
    is_count = first.dtype.kind == "i" and first.shape == () and 0 <= int(first) < 2**62
    same_form = [
        (x.dtype, x.ndim, x.shape[1:]) == (y.dtype, y.ndim, y.shape[1:])
        for x, y in ((rows[name], like[name]) for name in Rows._fields)
    ]
    if not is_count or not all(same_form) or len({field.shape[:1] for field in rows.values()}) > 1:
        raise UserError(f"{path}: not a replay segment of this run")
    return int(first), rows


def save_checkpoint(state: TrainState, writer: CheckpointWriter) -> None:
    """Copy a run to the host and start writing it; no updates may be in flight."""
    state.fleet.settle()
    evals, running = state.evals.saved(), state.running_seeds()
    env_states = {
        f"{slot}/{name}": array
        for slot, env_state in zip(running, state.pool.save_states(list(running)), strict=True)
        if env_state is not None
        for name, array in env_state.items()
    }
    notes = {
        "points": evals.notes,
        "journal": state.log.notes(),
        "faults": list(map(list, state.failures.items())),
        "stopped": list(map(list, state.stopped.items())),
        "collapsed": sorted(state.collapsed),
        "best": sorted(evals.best),
        "rows": state.fleet.replay_rows,
        "config": digest(state.config),
        "files": {name: x._asdict() for name, x in state.log.files(best=False).items()},
    }
    logs = {
        COPY_PREFIX + name: np.frombuffer(log.compressed(), np.uint8)
        for name, log in state.log.logs().items()
    }
    segment = writer.segment(state.fleet)
    content = CheckpointContent(
        step=state.step(),
        metadata=notes,
        arrays=to_arrays(take_snapshot(state, evals)) | logs,
        env_states=env_states,
        replay_segment=segment,
        earlier_segments=writer.needed_segments(state.fleet),
    )
    writer.write(content, state.fleet)


def resume(
    state: TrainState, writer: CheckpointWriter, checkpoint: Checkpoint, retry: bool = False
) -> list[Fault]:
    """Restore a new run from a checkpoint; return the slots to recover.

    With `retry`, members that were stopped because their environment failed continue as well, and
    their failures are counted from zero.
    """
    notes = checkpoint.metadata
    snapshot = read_snapshot(state, checkpoint)
    env_states = _env_states(checkpoint.env_states)
    restore_snapshot(state, snapshot)
    writer.resume(checkpoint, state.fleet)
    state.schedule.resume_skipped(state.rollout.steps < state.config.steps)
    stopped, failures = dict(notes["stopped"]), dict(notes["faults"])
    state.failures.update({m: n for m, n in failures.items() if not (retry and m in stopped)})
    state.stopped.update(_still_stopped(state, stopped))
    state.collapsed.update(notes.get("collapsed", []))
    state.log.restore(notes["journal"], set(state.stopped), logged_files(checkpoint))
    state.log.start(checkpoint.step, resumed=True)
    counts = checkpoint.step, int(state.schedule.done.min())
    state.log.event("resumed", None, counts, {"checkpoint": checkpoint.number})
    saved = SavedEvals(snapshot.evaluated, snapshot.obs, notes["points"], snapshot.best)
    faults = list(state.evals.restore(saved, state.stopped))
    try:
        return faults + _restore_envs(state, notes["points"]["width"], env_states)
    except UserError as error:
        raise UserError(f"{checkpoint.env_states}: {error}") from None


def _still_stopped(state: TrainState, stopped: dict[int, str]) -> dict[int, str]:
    """Return the stopped members, without those whose failures are now allowed."""
    limit, alarmed = state.config.env_faults, state.fleet.nonfinite_members()
    return {
        member: why
        for member, why in stopped.items()
        if member in alarmed or state.failures.get(member, 0) > limit
    }


def read_snapshot(state: TrainState, checkpoint: Checkpoint) -> Snapshot:
    """Return a checkpoint's arrays in the form of this run's."""
    try:
        return _read_snapshot(state, checkpoint)
    except UserError as error:
        raise UserError(f"{checkpoint.arrays}: {error}") from None


def _read_snapshot(state: TrainState, checkpoint: Checkpoint) -> Snapshot:
    saved, notes = read_arrays(checkpoint.arrays), checkpoint.metadata
    arrays = {name: x for name, x in saved.items() if not name.startswith(COPY_PREFIX)}
    rows, evals = notes["rows"], notes["points"]
    if rows < state.fleet.replay_rows:
        if (np.asarray(arrays.get("fleet/opened", 0)) >= rows).any():
            raise UserError("the replay buffer is full; the steps cannot be increased")
        arrays = grow_replay(arrays, rows, state.fleet.replay_rows)
    evaluations = bool(evals["playing"]) + len(evals["held"])
    snapshot = from_arrays(arrays, snapshot_like(state, evaluations, notes.get("best", [])))
    if len(snapshot.obs) != (expected := len(evals["playing"])):
        raise UserError(f"array 'obs': expected {expected} rows, got {len(snapshot.obs)}")
    return snapshot


def _env_states(path: Path) -> dict[int, SavedState]:
    """Return the saved states of environments by slot."""
    states: dict[int, SavedState] = {}
    for name, array in read_arrays(path).items():
        match = re.fullmatch(r"([0-9]{1,9})/([a-z0-9_/.]+)", name)
        if match is None:
            raise UserError(f"{path}: unexpected array {name!r}")
        states.setdefault(int(match[1]), {})[match[2]] = array
    return states


def _restore_envs(state: TrainState, width: int, env_states: dict[int, SavedState]) -> list[Fault]:
    """Restore environments; return the slots whose episode must start again.

    A state that does not fit, perhaps after an upgrade, is not a failure of the environment.
    """
    running = state.running_seeds()
    if width != state.evals.width:  # evaluations have started again already
        running = {s: seed for s, seed in running.items() if s < len(state.members)}
    slots = [slot for slot in running if slot in env_states]
    missing = [slot for slot in running if slot not in env_states]
    faults = [Fault(slot, NO_STATE, own_failure=False) for slot in missing]
    if slots:
        seeds = [running[slot] for slot in slots]
        obs_of = dict(enumerate(state.rollout.obs)) | state.evals.obs_by_slot()
        saved = [env_states[slot] for slot in slots]
        _, failed = state.pool.load_states(slots, seeds, saved, obs_of)
        faults += [fault._replace(own_failure=False) for fault in failed]
    return faults
