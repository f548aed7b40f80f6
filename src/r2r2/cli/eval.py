"""`r2r2 eval`: the returns of a run's policies, and a video of them."""

import contextlib
import json
import math
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from r2r2.api import Evaluation, enable_compilation_cache, evaluate_run
from r2r2.cli.argparser import FILE, ArgumentParser, field_table
from r2r2.cli.main import add_working_folder_to_path, use_command_device, warn_of_damage
from r2r2.cli.train import DEVICE_OPTION, WORKERS, print_stopped
from r2r2.config.errors import UserError
from r2r2.config.fields import ANY, ANY_DEVICE, EPISODES
from r2r2.envs.vector.pool import available_cores
from r2r2.storage.run_folder import open_run
from r2r2.training.evaluation import WEIGHTS, deviation
from r2r2.training.video import Video, VideoOptions, record_video

PARSER = ArgumentParser(
    "eval",
    "RUN [--option VALUE]...",
    """\
Evaluate the policies of a run, without exploration, on new episodes: those at
its end, or of the latest checkpoint if it is not finished, also while it is
being trained. --weights best takes the policy of each member's best evaluation
in training. The results are saved in the run's folder 'evals'; --json prints
the same document and nothing else. A video shows the first episodes of the
first member, or of --member; it needs no display.
""",
    """\
  r2r2 eval RUN
  r2r2 eval RUN --member Hopper-v5:3 --episodes 50
  r2r2 eval RUN --video out.mp4
  r2r2 eval RUN --weights best --json > results.json
""",
    field_table(
        ("member", str, "", "evaluate one member only", ANY),
        ("episodes", int, 10, "episodes per member", EPISODES),
        ("weights", str, "last", "last, or best evaluation's", WEIGHTS),
        DEVICE_OPTION,
        WORKERS,
        ("json", bool, False, "print the results as JSON", ANY),
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
    with use_command_device(given.pop("device", ANY_DEVICE)):
        return _run(path, given)


def _run(path: Path, given: dict[str, Any]) -> int:
    enable_compilation_cache()
    as_json = given.pop("json", False)
    if (workers := given.get("workers", 0)) > (cores := available_cores()):
        problem = f"workers: using at most {cores} of {workers}, one per core"
        print(f"r2r2: warning: {problem}", file=sys.stderr)
    with _redirect_stdout() if as_json else contextlib.nullcontext():
        video = _record(path, given, as_json) if "video" in given else None
        evaluation = evaluate_run(path, **given)
    results = _results(path, evaluation, video)
    saved = None
    try:
        saved = str(open_run(path).save_eval(results))
    except UserError as error:  # the folder may belong to somebody else
        print(f"r2r2: warning: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps(results | {"file": saved}, indent=2, allow_nan=False))
    else:
        print(evaluation.policies.description)
        Console(emoji=False).print(_table(evaluation))
        print(f"saved: {saved}" if saved else "not saved")
    print_stopped(open_run(path).stopped())
    warn_of_damage(path)
    return 0


@contextlib.contextmanager
def _redirect_stdout() -> Generator[None]:
    """Send what environments and libraries print, in any process, to standard error."""
    sys.stdout.flush()
    descriptor = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(descriptor, 1)
        os.close(descriptor)


def _results(path: Path, evaluation: Evaluation, video: Video | None) -> dict[str, Any]:
    """Return an evaluation as JSON values; None: an unknown or non-finite number."""
    members, returns, policies = evaluation
    rows = zip(members, policies.steps, policies.means, returns, strict=True)
    return {
        "run": str(path),
        "status": policies.status,
        "weights": policies.weights,
        "description": policies.description,
        "episodes": returns.shape[1],
        "members": [
            {
                "member": f"{member.task}:{member.seed}",
                "step": step,
                "mean": _number(own.mean()),
                "std": _number(deviation(own)),
                "returns": [_number(x) for x in own],
                "best_mean_in_training": _number(best),
            }
            for member, step, best, own in rows
        ],
        "video": video and str(video.path),
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _record(path: Path, given: dict[str, Any], as_json: bool) -> Video:
    """Record a video, with a progress bar if there is a terminal, and print its line."""
    console = Console(emoji=False, stderr=as_json)
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

    options = VideoOptions(given.get("weights", "last"), on_progress)
    with progress:
        video = record_video(path, target, given.get("member"), episodes, options=options)
    print(_describe(video))  # also with --json, when it goes to standard error
    return video


def _describe(video: Video) -> str:
    """Return a line with the video's member, length and returns."""
    member = f"{video.member.task}:{video.member.seed}"
    returns = ", ".join(f"{x:.1f}" for x in video.returns)
    length = f"{video.frames} frames, {video.frames / video.fps:.1f} s"
    return f"{video.path}: {member} ({length}), return {returns}; {video.policies.description}"


def _table(evaluation: Evaluation) -> Table:
    table = Table("member", "step", "mean", "std", "per episode")
    rows = zip(evaluation.members, evaluation.policies.steps, evaluation.returns, strict=True)
    for member, step, returns in rows:
        table.add_row(
            f"{member.task}:{member.seed}",
            "-" if step is None else f"{step:,}",
            f"{returns.mean():.1f}",
            "-" if len(returns) == 1 else f"{deviation(returns):.1f}",
            " ".join(f"{x:.1f}" for x in returns),
        )
    return table
