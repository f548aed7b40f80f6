"""The numbers of events as files that TensorBoard shows.

Only tensorboardX's record format is used: its SummaryWriter would add a queue, a
thread and an exit handler for every member.
"""

import importlib
import importlib.util
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from r2r2.config.errors import UserError
from r2r2.storage.events import FIXED, Value

LIBRARY = "tensorboardX"
RUN = "run"  # whose events are not of one member
PERIOD = 5.0  # seconds between writes to the disk: each waits for it


def check_tensorboard() -> None:
    """Refuses to write what needs a library that is missing."""
    if importlib.util.find_spec(LIBRARY) is None:
        raise UserError(
            f"tensorboard is true, which needs {LIBRARY}; install it with "
            "pip install 'r2r2[tensorboard]'"
        )


class TensorBoard:
    """A folder with TensorBoard's files, one folder in it for every member.

    Raises:
        UserError: tensorboardX is missing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     board = TensorBoard(Path(folder))
        ...     board.write("episode", 1000, "Hopper-v5_s0", {"return": 12.5})
        ...     board.close()
        ...     [path.name for path in Path(folder).iterdir()]
        ['Hopper-v5_s0']
    """

    def __init__(self, path: Path):
        check_tensorboard()
        self._path = path
        self._proto: Any = importlib.import_module(f"{LIBRARY}.proto.event_pb2")
        self._open: Any = importlib.import_module(f"{LIBRARY}.event_file_writer")
        self._files: dict[str, Any] = {}
        self._flushed = time.monotonic()
        self._again = False

    def go_on(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Writes anew what the log of a run that goes on holds.

        The files of before may hold more, or, of a run that was killed, less.
        """
        self._again = True
        for event in events:
            own = {k: _read(value) for k, value in event.items() if k not in FIXED}
            when = time.time() - (events[-1]["time"] - event["time"])
            place = event["env_step"], event["member"]
            self.write(event["event"], *place, own, when)

    def write(
        self,
        event: str,
        env_step: int,
        member: str | None,
        fields: Mapping[str, Value],
        when: float | None = None,
    ) -> None:
        """Adds an event's numbers, as `event/field`; truths and texts are left out.

        Args:
            event: what happened.
            env_step: at which step.
            member: whose it is; None: the run's.
            fields: the event's own.
            when: seconds since 1970; now, if not given.
        """
        found = {name: _number(value) for name, value in fields.items()}
        numbers = {name: value for name, value in found.items() if value is not None}
        if numbers:
            when = time.time() if when is None else when
            record = self._proto.Event(step=env_step, wall_time=when)
            for name, value in numbers.items():
                record.summary.value.add(tag=f"{event}/{name}", simple_value=value)
            self._file(member or RUN).write_event(record)
        if time.monotonic() - self._flushed > PERIOD:
            self._flush()

    def close(self) -> None:
        """Writes what is left and closes the files; a second call does nothing."""
        while self._files:
            self._files.popitem()[1].close()

    def _file(self, name: str) -> Any:
        if name not in self._files:
            folder = self._path / name
            folder.mkdir(parents=True, exist_ok=True)
            for earlier in folder.glob("events.out.tfevents.*") if self._again else ():
                earlier.unlink()
            self._files[name] = self._open.EventsWriter(str(folder / "events"))
            if self._again:
                # A TensorBoard that is open drops what it has read from step 0 on.
                begin = self._proto.SessionLog(status=self._proto.SessionLog.START)
                record = self._proto.Event(wall_time=time.time(), session_log=begin)
                self._files[name].write_event(record)
        return self._files[name]

    def _flush(self) -> None:
        for file in self._files.values():
            file.flush()
        self._flushed = time.monotonic()


def _read(value: Value) -> Value:
    """A field as it was before JSON, which has no number for what is not finite."""
    return float(value) if value in ("nan", "inf", "-inf") else value


def _number(value: Value) -> float | None:
    plain: object = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        return None
    return float(plain)
