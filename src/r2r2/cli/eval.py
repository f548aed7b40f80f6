"""`r2r2 eval`: the returns of a run's final policies, and a video of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

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
from r2r2.cli.argparser import FILE, ArgumentParser
from r2r2.cli.main import (
    add_working_folder_to_path,
    enable_compilation_cache,
    print_plain,
)
from r2r2.cli.train import WORKERS
from r2r2.config.errors import UserError
from r2r2.config.fields import ANY, EPISODES, FieldSpec
from r2r2.training.evaluation import deviation
from r2r2.training.video import Video, record_video

SPECS = (
    FieldSpec("member", str, "", "evaluate one member only", ANY),
    FieldSpec("episodes", int, 10, "episodes per member", EPISODES),
    WORKERS,
    FieldSpec("video", str, "", "record a video to this mp4 file", FILE),
    FieldSpec("video_episodes", int, 1, "episodes in the video", EPISODES),
)

DESCRIPTION = """\
Evaluate the final policies of a run, without exploration, on new episodes.
A video shows the first episodes of the first member, or of --member; it needs
no display.
"""

EXAMPLES = """\
  r2r2 eval RUN
  r2r2 eval RUN --member Hopper-v5:3 --episodes 50
  r2r2 eval RUN --video out.mp4
"""


def make_parser(_: Sequence[str] = ()) -> ArgumentParser:
    """Return the parser of `r2r2 eval`."""
    usage = "RUN [--option VALUE]..."
    parser = ArgumentParser("eval", usage, DESCRIPTION, EXAMPLES, positional=True)
    parser.add_fields({spec.path: spec for spec in SPECS})
    return parser


def run(argv: list[str]) -> int:
    """Run `r2r2 eval` and return its exit code."""
    parser = make_parser()
    given = parser.parse(argv)
    path = Path(parser.pop_argument(given, "a run folder, as in 'r2r2 eval RUN'"))
    if "video_episodes" in given and "video" not in given:
        raise UserError("--video-episodes: only used with --video")
    add_working_folder_to_path()
    enable_compilation_cache()
    console = Console()
    if "video" in given:
        episodes, target = given.pop("video_episodes", 1), Path(given.pop("video"))
        with VideoProgress(console) as progress:
            video = record_video(
                path, target, given.get("member"), episodes, on_progress=progress
            )
        print_plain(console, describe_video(video))
    console.print(_table(evaluate_run(path, **given)))
    return 0


class VideoProgress:
    """A progress bar for a video in a terminal; removed when the video is done."""

    def __init__(self, console: Console):
        self._progress = Progress(
            TextColumn("recording"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("frames at most, ETA"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None)

    def __call__(self, frames: int, most: int | None) -> None:
        """Show the number of frames; the first call opens the bar."""
        if frames == 1:
            self._progress.start()
        self._progress.update(self._task, completed=frames, total=most)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def describe_video(video: Video) -> str:
    """Return a line with the video's member, length and returns."""
    member = f"{video.member.task}:{video.member.seed}"
    returns = ", ".join(f"{x:.1f}" for x in video.returns)
    length = f"{video.frames} frames, {video.frames / video.fps:.1f} s"
    return f"{video.path}: {member} ({length}), return {returns}"


def _table(evaluation: Evaluation) -> Table:
    table = Table("member", "mean", "std", "per episode")
    for member, returns in zip(evaluation.members, evaluation.returns, strict=True):
        table.add_row(
            f"{member.task}:{member.seed}",
            f"{returns.mean():.1f}",
            "-" if len(returns) == 1 else f"{deviation(returns):.1f}",
            " ".join(f"{x:.1f}" for x in returns),
        )
    return table
