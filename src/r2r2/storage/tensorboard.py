"""TensorBoard files of a run's events, written without the threads of a SummaryWriter."""

import importlib
import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from r2r2.config.errors import UserError
from r2r2.storage.events import COMMON_FIELDS, FieldValue

LIBRARY = "tensorboardX"
RUN = "run"  # the folder of events that do not belong to a member
FLUSH_SECONDS = 5.0


def require_tensorboard() -> None:
    """Check that tensorboardX is installed."""
    if importlib.util.find_spec(LIBRARY) is None:
        raise UserError(
            f"--tensorboard: {LIBRARY} is not installed; install it with "
            "pip install 'r2r2[tensorboard]'"
        )


class TensorBoardWriter:
    """Writes TensorBoard's files, in one folder per member."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic):
        require_tensorboard()
        self._path, self._clock = path, clock
        self._proto: Any = importlib.import_module(f"{LIBRARY}.proto.event_pb2")
        self._writer: Any = importlib.import_module(f"{LIBRARY}.event_file_writer")
        self._files: dict[str, Any] = {}
        self._flushed = clock()
        self._resumed = False

    def rewrite(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Replace the files, which may be ahead or behind, by the events of a resumed run's log."""
        self._resumed = True
        for event in events:
            fields = {
                name: float(value) if value in ("nan", "inf", "-inf") else value
                for name, value in event.items()
                if name not in COMMON_FIELDS
            }
            wall_time = time.time() - (events[-1]["time"] - event["time"])
            step, member = event["env_step"], event["member"]
            self.write(event["event"], step, member, fields, wall_time)

    def write(
        self,
        event: str,
        env_step: int,
        member: str | None,
        fields: Mapping[str, FieldValue],
        wall_time: float | None = None,
    ) -> None:
        """Add the numbers of an event as `event/field`; skip booleans and strings."""
        wall_time = time.time() if wall_time is None else wall_time
        record = self._proto.Event(step=env_step, wall_time=wall_time)
        for name, value in fields.items():
            number: object = value.item() if isinstance(value, np.generic) else value
            if isinstance(number, int | float) and not isinstance(number, bool):
                record.summary.value.add(tag=f"{event}/{name}", simple_value=number)
        if record.summary.value:
            self._file(member or RUN).write_event(record)
        if self._clock() - self._flushed > FLUSH_SECONDS:
            for file in self._files.values():
                file.flush()
            self._flushed = self._clock()

    def close(self) -> None:
        """Flush and close the files; a second call does nothing."""
        while self._files:
            self._files.popitem()[1].close()

    def _file(self, name: str) -> Any:
        if name not in self._files:
            folder = self._path / name
            folder.mkdir(parents=True, exist_ok=True)
            if self._resumed:
                for path in folder.glob("events.out.tfevents.*"):
                    path.unlink()
            self._files[name] = self._writer.EventsWriter(str(folder / "events"))
            if self._resumed:
                # Makes an open TensorBoard discard what it has read from step 0 on.
                start = self._proto.SessionLog(status=self._proto.SessionLog.START)
                record = self._proto.Event(wall_time=time.time(), session_log=start)
                self._files[name].write_event(record)
        return self._files[name]
