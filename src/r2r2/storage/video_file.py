"""Pictures as an mp4 file that any player shows."""

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
from r2r2.storage.files import replacing


def check_target(path: Path) -> None:
    """Refuses a name that no video can be written to, before one is made."""
    if path.suffix.lower() != ".mp4":
        raise _unfit(path, "does not end in .mp4")
    if not path.parent.is_dir():
        raise _unfit(path, f"is in a folder that does not exist, '{path.parent}'")
    if path.is_dir():
        raise _unfit(path, "is a folder")
    _ffmpeg()


def write_mp4(path: Path, frames: Iterable[NDArray[np.uint8]], fps: float) -> int:
    """Writes pictures of one size as a video, whole or not at all; gives their number.

    The first decides the size; a last odd row or column is cut off, as the format's
    colours come in pairs.

    Args:
        path: the file, which may be there already.
        frames: [rows, columns, 3] each.
        fps: how many are shown per second.

    Raises:
        UserError: the video cannot be written.

    Example:
        >>> dark = np.zeros((16, 16, 3), dtype=np.uint8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_mp4(Path(folder) / "dark.mp4", [dark, dark], fps=25)
        2
    """
    check_target(path)
    rest = iter(frames)
    first = next(rest)
    with replacing(path) as temporary:
        command = _command(_even(first).shape, fps, temporary.absolute())
        count, trouble = _encode(command, chain([first], rest))
        if trouble:
            raise _unfit(path, f"cannot be written: {trouble}")
    return count


def _encode(command: list[str], frames: Iterable[NDArray[np.uint8]]) -> tuple[int, str]:
    """Hands pictures to ffmpeg; says how many, and what went wrong with it."""
    count = 0
    with tempfile.TemporaryFile() as said:
        # In a group of its own: an interruption is this process's to handle.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=said, process_group=0
        )
        pipe = cast(BinaryIO, process.stdin)
        try:
            for frame in frames:
                try:
                    pipe.write(_even(frame).tobytes())
                except BrokenPipeError:
                    break  # it has ended early, and says why
                count += 1
        except BaseException:
            process.kill()
            raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
            code = process.wait()
        said.seek(0)
        words = " ".join(said.read().decode(errors="replace").split())
    return count, (words or f"ffmpeg ended with {code}") if code else ""


def _command(shape: tuple[int, ...], fps: float, target: Path) -> list[str]:
    rows, columns, _ = shape
    rate = str(Fraction(fps).limit_denominator(1000))
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{columns}x{rows}"]
    # Players need this layout of colours, and the index in front to start at once.
    mp4 = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "20"]
    mp4 += ["-movflags", "+faststart", "-f", "mp4"]
    return [_ffmpeg(), "-v", "error", *raw, "-r", rate, "-i", "-", *mp4, str(target)]


def _even(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    rows, columns, _ = frame.shape
    return frame[: rows - rows % 2, : columns - columns % 2]


def _ffmpeg() -> str:
    try:
        return str(importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe())
    except RuntimeError as error:
        raise UserError(
            f"no ffmpeg was found to write a video with: {error}"
        ) from error


def _unfit(path: Path, why: str) -> UserError:
    return UserError(f"video is '{path}', which {why}")
