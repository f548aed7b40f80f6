import sys

import imageio_ffmpeg
import numpy as np
import pytest

from r2r2.config.errors import UserError
from r2r2.storage.video_file import check_video_path, write_mp4
from video_reader import read_video


def pictures(count, rows=33, columns=41):
    """Yield frames of a bright bar that moves to the right."""
    for t in range(count):
        frame = np.full((rows, columns, 3), 60, dtype=np.uint8)
        frame[:, 4 * t : 4 * t + 4] = 255
        yield frame


def test_video_round_trips(tmp_path):
    path = tmp_path / "a.mp4"
    assert write_mp4(path, pictures(8), fps=100 / 3) == 8
    stream, fps, frames = read_video(path)
    assert fps == 33.33
    assert "yuv420p" in stream
    assert frames.shape == (8, 32, 40, 3)  # the odd row and column are cut off
    drawn = np.stack(list(pictures(8)))[:, :32, :40]
    assert np.abs(frames - drawn.astype(float)).mean() < 5
    assert list(tmp_path.iterdir()) == [path]


def test_video_replaces_an_existing_one(tmp_path):
    path = tmp_path / "a.mp4"
    write_mp4(path, pictures(3), fps=10)
    write_mp4(path, pictures(5), fps=10)
    assert len(read_video(path).frames) == 5


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError])
def test_failed_write_leaves_the_old_video(tmp_path, error):
    path = tmp_path / "a.mp4"
    path.write_text("old")

    def torn():
        yield from pictures(3)
        raise error

    with pytest.raises(error):
        write_mp4(path, torn(), fps=10)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_encoder_error_is_reported(tmp_path, monkeypatch):
    encoder = tmp_path / "ffmpeg"
    encoder.write_text(f"#!{sys.executable}\nraise SystemExit('disk\\n full')\n")
    encoder.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(encoder))
    path = tmp_path / "a.mp4"
    many = pictures(200, 200, 900)  # more than fits into a pipe
    with pytest.raises(UserError) as error:
        write_mp4(path, many, fps=10)
    assert str(error.value) == (f"{path}: cannot write: disk full")
    assert list(tmp_path.iterdir()) == [encoder]


def test_invalid_path_is_rejected(tmp_path):
    (tmp_path / "folder.mp4").mkdir()
    for name, why in [
        ("a.gif", "expected a file name ending in .mp4"),
        ("mp4", "expected a file name ending in .mp4"),
        ("no/a.mp4", f"the folder '{tmp_path / 'no'}' does not exist"),
        ("folder.mp4", "is a folder; expected a file name"),
    ]:
        path = tmp_path / name
        with pytest.raises(UserError) as error:
            check_video_path(path)
        assert str(error.value) == f"{path}: {why}"
    check_video_path(tmp_path / "A.MP4")


def test_missing_encoder_is_rejected(tmp_path, monkeypatch):
    def missing():
        raise RuntimeError("no ffmpeg here")

    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", missing)
    with pytest.raises(UserError, match="ffmpeg not found: no ffmpeg here"):
        check_video_path(tmp_path / "a.mp4")
