"""The progress bar of a film: pictures take long to draw."""

from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)


class FilmBar:
    """Shows a film as it is made; use it as a context and as the film's watcher.

    It is gone when the film is done, and is not there at all without a terminal.
    """

    def __init__(self, console: Console):
        self._bar = Progress(
            TextColumn("filming"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("frames at most, ETA"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)

    def __call__(self, frames: int, most: int | None) -> None:
        """Takes in one more picture; the first opens the bar."""
        if frames == 1:
            self._bar.start()
        self._bar.update(self._task, completed=frames, total=most)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()
