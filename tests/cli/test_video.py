"""Videos of a run's final policy, from the command line and from Python.

`filmed` renders by itself; MuJoCo rendering is tested in tests/envs/test_render.py.
"""

import json
import re
import shutil
from functools import partial

import gymnasium
import pytest
from tiny import TINY

import filmed
from r2r2.api import RunOptions, train
from r2r2.cli.main import main
from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve
from r2r2.envs.spec import EnvFailure
from r2r2.storage.run_folder import read_manifest, write_manifest
from r2r2.training.evaluation import MAX_EVAL_STEPS
from r2r2.training.video import VideoOptions, record_video
from video_reader import read_video


def steps(frames):
    """Return the position of the dot in each frame."""
    return [round(float((f[15, :, 0] > 160).argmax()) / 5) for f in frames]


@pytest.fixture(scope="module")
def runs(cli_settings, tmp_path_factory):
    """Finished runs of two members, by task."""
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def run(task):
        if task not in made:
            fields = TINY | {"env": f"filmed:{task}", "steps": 10, "random_only": True}
            made[task] = folder / task
            train(resolve(fields), made[task], options=RunOptions(workers=0))
        return made[task]

    return run


def test_eval_records_the_first_member_and_evaluates_all(cli, workdir, runs):
    argv = ("--video", "out.mp4", "--video-episodes", "2", "--workers", "0")
    code, out, err = cli("eval", runs("Dot-v0"), "--episodes", "1", *argv)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == (
        "out.mp4: filmed:Dot-v0:0 (14 frames, 0.7 s), return 6.0, 6.0; final weights"
    )
    assert re.findall(r"Dot-v0:\d", "\n".join(lines[1:])) == ["Dot-v0:0", "Dot-v0:3"]
    _, fps, frames = read_video(workdir / "out.mp4")
    assert (fps, frames.shape) == (20, (14, 32, 40, 3))
    assert steps(frames) == [*range(7)] * 2
    assert frames.std() > 20
    assert [path.name for path in workdir.iterdir()] == ["out.mp4"]


def test_json_is_alone_on_standard_output(workdir, runs, capfd, monkeypatch):
    argv = ("--json", "--episodes=1", "--video=out.mp4", "--workers=0")
    run = str(runs("Dot-v0"))
    monkeypatch.setattr(gymnasium.spec("Dot-v0"), "entry_point", filmed.Loud)
    capfd.readouterr()
    assert main(["eval", run, *argv]) == 0
    out, err = capfd.readouterr()
    results = json.loads(out)
    assert results["video"] == "out.mp4"
    assert [member["returns"] for member in results["members"]] == [[6.0], [6.0]]
    assert "hello from Python" in err
    assert "hello from below" in err


def test_unfinished_run_is_recorded_from_its_checkpoint(cli, workdir, runs):
    run = shutil.copytree(runs("Dot-v0"), workdir / "run")
    manifest = read_manifest(run)
    write_manifest(run, manifest.members, "running", manifest.copies)
    argv = ("--video", "out.mp4", "--episodes", "1", "--workers", "0")
    code, out, _ = cli("eval", run, *argv)
    assert code == 0
    end = "checkpoint at step 10 of 10; the run is interrupted"
    assert out.splitlines()[0] == f"out.mp4: filmed:Dot-v0:0 (7 frames, 0.3 s), return 6.0; {end}"


def test_eval_records_the_given_member(cli, workdir, runs):
    argv = ("--member", "filmed:Dot-v0:3", "--video", "out.mp4", "--workers", "0")
    code, out, _ = cli("eval", runs("Dot-v0"), "--episodes", "1", *argv)
    assert code == 0
    assert out.startswith("out.mp4: filmed:Dot-v0:3 (7 frames, 0.3 s)")


def test_an_environment_without_rendering_is_rejected(rejected, runs, monkeypatch):
    run, steps_taken = runs("Dot-v0"), []
    monkeypatch.setattr(gymnasium.spec("Dot-v0"), "entry_point", filmed.Blind)
    monkeypatch.setattr(filmed.Dot, "step", lambda *given: steps_taken.append(given))
    sentence = rejected("eval", run, "--video", "out.mp4")
    assert "filmed:Dot-v0" in sentence
    assert "'rgb_array'" in sentence
    assert not steps_taken


@pytest.mark.parametrize("when", [0, 3])
def test_a_failed_video_keeps_the_old_file(workdir, runs, when):
    (workdir / "out.mp4").write_text("old")
    broken = partial(filmed.Dot, broken_at=when)
    with pytest.raises(EnvFailure if when else UserError, match="the lens"):
        record_video(runs("Dot-v0"), workdir / "out.mp4", env=broken)
    assert [path.name for path in workdir.iterdir()] == ["out.mp4"]
    assert (workdir / "out.mp4").read_text() == "old"


def test_progress_counts_the_frames(workdir, runs):
    seen = []
    options = VideoOptions(on_progress=lambda *x: seen.append(x))
    video = record_video(runs("Dot-v0"), workdir / "a.mp4", episodes=2, options=options)
    assert seen == [(n, 14) for n in range(1, 15)]
    assert (video.frames, video.fps, video.returns) == (14, 20, (6.0, 6.0))
    assert video.member == ("filmed:Dot-v0", 0)


@pytest.mark.parametrize("built", [True, False])
def test_a_user_environment_is_recorded(workdir, runs, built):
    env = filmed.Silent(render_mode="rgb_array") if built else filmed.Silent
    seen = []

    def watch(count, most):
        seen.append((count, most))
        if count == 9:
            raise KeyboardInterrupt  # it has no time limit, and would be cut off late

    options = VideoOptions(on_progress=watch)
    with pytest.raises(KeyboardInterrupt):
        record_video(runs("Dot-v0"), workdir / "a.mp4", env=env, options=options)
    assert seen == [(n, MAX_EVAL_STEPS + 1) for n in range(1, 10)]
    assert list(workdir.iterdir()) == []


def test_zero_episodes_are_rejected(workdir, runs):
    with pytest.raises(UserError, match="episodes"):
        record_video(runs("Dot-v0"), workdir / "a.mp4", episodes=0)
