"""Standard output whose reader may close it, as in `r2r2 train ... | head -1`."""

import contextlib
import os
import sys
from collections.abc import Callable, Generator
from typing import Any


class LossyStream:
    """A standard stream that discards everything once a write has failed."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, or discard it."""
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._try(self._stream.flush)

    def _try(self, call: Callable[..., object], *args: str) -> None:
        try:
            call(*args)
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())  # also for what is in the buffer
            os.close(null)


@contextlib.contextmanager
def lossy_output() -> Generator[None]:
    """Let nothing in the block fail because standard output or standard error is closed."""
    system: Any = sys
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    streams = {name: LossyStream(x) for name, x in before.items() if x is not None}
    try:
        for name, stream in streams.items():
            setattr(system, name, stream)
        yield
    finally:
        for name, stream in streams.items():
            stream.flush()
            setattr(system, name, before[name])
