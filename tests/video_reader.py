"""Decode videos with ffmpeg."""

import re
import subprocess
from typing import NamedTuple

import imageio_ffmpeg
import numpy as np


class DecodedVideo(NamedTuple):
    stream: str  # as described by ffmpeg
    fps: float
    frames: np.ndarray  # [count, rows, columns, 3]


def read_video(path):
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path)]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-fps_mode", "passthrough", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    (stream,) = re.findall(r"Stream #0:0.*: (Video: h264.*)", done.stderr.decode())
    columns, rows = map(int, re.search(r", (\d+)x(\d+)", stream).groups())
    fps = float(re.search(r"([\d.]+) fps", stream).group(1))
    frames = np.frombuffer(done.stdout, np.uint8).reshape(-1, rows, columns, 3)
    return DecodedVideo(stream, fps, frames)
