"""`r2r2 eval`: the returns of a run's final policies, and a video of them."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from r2r2.api import Evaluation, evaluate_run
from r2r2.cli.argparser import FILE, ArgumentParser, field_table
from r2r2.cli.main import add_working_folder_to_path, enable_compilation_cache
from r2r2.cli.train import WORKERS
from r2r2.config.errors import UserError
from r2r2.config.fields import ANY, EPISODES
from r2r2.training.evaluation import deviation
from r2r2.training.video import Video, record_video

PARSER = ArgumentParser(
    "eval",
    "RUN [--option VALUE]...",
    """\
Evaluate the final policies of a run, without exploration, on new episodes.
A video shows the first episodes of the first member, or of --member; it needs
no display.
""",
    """\
  r2r2 eval RUN
  r2r2 eval RUN --member Hopper-v5:3 --episodes 50
  r2r2 eval RUN --video out.mp4
""",
    field_table(
        ("member", str, "", "evaluate one member only", ANY),
        ("episodes", int, 10, "episodes per member", EPISODES),
        WORKERS,
        ("video", str, "", "record a video to this mp4 file", FILE),
        ("video_episodes", int, 1, "episodes in the video", EPISODES),
    ),
    positional=True,
)


def run(argv: list[str]) -> int:
    """Run `r2r2 eval` and return its exit code."""
    given = PARSER.parse(argv)
    path = Path(PARSER.pop_argument(given, "a run folder, as in 'r2r2 eval RUN'"))
    if "video_episodes" in given and "video" not in given:
        raise UserError("--video-episodes: only used with --video")
    add_working_folder_to_path()
    enable_compilation_cache()
    console = Console()
    if "video" in given:
        print(_describe(_record(path, given, console)))
    console.print(_table(evaluate_run(path, **given)))
    return 0


def _record(path: Path, given: dict[str, Any], console: Console) -> Video:
    """Record a video, with a progress bar if there is a terminal."""
    progress = Progress(
        TextColumn("recording"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("frames at most, ETA"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    episodes, target = given.pop("video_episodes", 1), Path(given.pop("video"))
    task = progress.add_task("", total=None)

    def on_progress(frames: int, limit: int | None) -> None:
        progress.update(task, completed=frames, total=limit)

    with progress:
        return record_video(path, target, given.get("member"), episodes, on_progress=on_progress)


def _describe(video: Video) -> str:
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
