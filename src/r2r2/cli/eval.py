"""`r2r2 eval`: how well a run's final policies do, and how that looks."""

from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from r2r2.api import Evaluation, evaluate_run
from r2r2.cli.argparser import fields_help, only, split, texts, wants_help
from r2r2.cli.process import cache_compiled_programs, use_this_folder
from r2r2.cli.train_flags import FILE, WORKERS
from r2r2.config.errors import UserError
from r2r2.config.fields import ANY, EPISODES, FieldSpec, parse_value
from r2r2.training.evaluation import deviation
from r2r2.training.video import Video, record_video


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


FIELDS = {
    leaf.path: leaf
    for leaf in (
        FieldSpec("member", str, "", "one member alone, as TASK:SEED", ANY),
        FieldSpec("episodes", int, 10, "episodes per member", EPISODES),
        WORKERS,
        FieldSpec("video", str, "", "an mp4 file to film episodes into", FILE),
        FieldSpec("video_episodes", int, 1, "how many episodes to film", EPISODES),
    )
}

HELP = """usage: r2r2 eval RUN [--name value]...

Play episodes with a run's final policies, without exploration. A video shows the first
episodes of the member, or of the first of several; it needs no display.
"""


def eval_command(argv: list[str]) -> int:
    """`r2r2 eval RUN`: returns of the final policies, per episode."""
    if wants_help(argv):
        print(f"{HELP}\n{fields_help(FIELDS, top='options')}")
        return 0
    words = split(argv)
    given: dict[str, Any] = {
        path: parse_value(FIELDS[path], text)
        for path, text in texts(words.options, FIELDS).items()
    }
    run = Path(only(words.alone, "run", "the folder of a run, as in 'r2r2 eval RUN'"))
    use_this_folder()
    cache_compiled_programs()
    console = Console()
    if "video" in given:
        length, target = given.pop("video_episodes", 1), Path(given.pop("video"))
        with FilmBar(console) as bar:
            film = record_video(
                run, target, given.get("member"), length, on_progress=bar
            )
        console.print(said_of(film), soft_wrap=True, markup=False, highlight=False)
    elif length := given.pop("video_episodes", 0):
        raise UserError(f"video_episodes is {length}, but there is no --video")
    console.print(_table(evaluate_run(run, **given)))
    return 0


def said_of(video: Video) -> str:
    """A film in a line: who plays, how well, and how long it takes."""
    who = f"{video.member.task}:{video.member.seed}"
    returns = ", ".join(f"{x:.1f}" for x in video.returns)
    length = f"{video.frames} frames, {video.frames / video.fps:.1f} s"
    return f"{video.path} shows {who} ({length}), return {returns}"


def _table(found: Evaluation) -> Table:
    table = Table("member", "mean", "std", "per episode")
    for member, returns in zip(found.members, found.returns, strict=True):
        episodes = " ".join(f"{x:.1f}" for x in returns)
        table.add_row(
            f"{member.task}:{member.seed}",
            f"{returns.mean():.1f}",
            "-" if len(returns) == 1 else f"{deviation(returns):.1f}",
            episodes,
        )
    return table
