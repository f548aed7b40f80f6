"""MP4 video files, encoded by ffmpeg."""

import contextlib
import importlib
import subprocess
import tempfile
from collections.abc import Iterable
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from r2r2.config.errors import UserError
from r2r2.storage.files import atomic_replace


def check_video_path(path: Path) -> None:
    """Check that a video can be written to a path, before any frame is rendered."""
    if path.suffix.lower() != ".mp4":
        raise UserError(f"{path}: expected a file name ending in .mp4")
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder '{path.parent}' does not exist")
    if path.is_dir():
        raise UserError(f"{path}: is a folder; expected a file name")
    _ffmpeg()


def write_mp4(path: Path, frames: Iterable[NDArray[np.uint8]], fps: float) -> int:
    """Write frames [rows, columns, 3], cut to even sizes, as a video; return their number."""
    check_video_path(path)
    rest = iter(frames)
    first = next(rest)
    with atomic_replace(path) as temporary:
        command = _command(_crop_even(first).shape, fps, temporary.absolute())
        count, error = _encode(command, chain([first], rest))
        if error:
            raise UserError(f"{path}: cannot write: {error}")
    return count


def _encode(command: list[str], frames: Iterable[NDArray[np.uint8]]) -> tuple[int, str]:
    """Pipe frames to ffmpeg; return their number and ffmpeg's error, if any."""
    count = 0
    with tempfile.TemporaryFile() as stderr:
        # In its own process group, so that Ctrl-C reaches only this process.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=stderr, process_group=0)
        pipe = cast(BinaryIO, process.stdin)
        try:
            for frame in frames:
                try:
                    pipe.write(_crop_even(frame).tobytes())
                except BrokenPipeError:
                    break  # ffmpeg has exited; stderr says why
                count += 1
        except BaseException:
            process.kill()
            raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
            code = process.wait()
        stderr.seek(0)
        message = " ".join(stderr.read().decode(errors="replace").split())
    return count, (message or f"ffmpeg exited with status {code}") if code else ""


def _command(shape: tuple[int, ...], fps: float, target: Path) -> list[str]:
    rows, columns, _ = shape
    rate = str(Fraction(fps).limit_denominator(1000))
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{columns}x{rows}"]
    # Players need this pixel format, and the index in front to start at once.
    mp4 = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "20"]
    mp4 += ["-movflags", "+faststart", "-f", "mp4"]
    return [_ffmpeg(), "-v", "error", *raw, "-r", rate, "-i", "-", *mp4, str(target)]


def _crop_even(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    rows, columns, _ = frame.shape
    return frame[: rows - rows % 2, : columns - columns % 2]


def _ffmpeg() -> str:
    try:
        return str(importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe())
    except RuntimeError as error:
        raise UserError(f"--video: ffmpeg not found: {error}") from error
