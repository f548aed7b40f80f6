"""Films of a run's final policy, through the program and from Python.

`filmed` draws by itself; how MuJoCo draws is the matter of tests/envs/test_render.py.
"""

import re
from functools import partial

import pytest
from tiny import TINY

import filmed
from r2r2.api import RunOptions, train
from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve
from r2r2.envs.errors import EnvFailure
from r2r2.training.video import record_video
from video_reader import read_video


def steps(frames):
    """Where the dot is, by picture."""
    return [round(float((f[15, :, 0] > 160).argmax()) / 5) for f in frames]


@pytest.fixture(scope="module")
def runs(caches, tmp_path_factory):
    """Finished runs of two members, by task."""
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def run(task):
        if task not in made:
            fields = TINY | {"env": f"filmed:{task}", "steps": 10, "eval_every": 10}
            made[task] = folder / task
            train(resolve(fields), made[task], options=RunOptions(workers=0))
        return made[task]

    return run


def test_the_program_films_the_first_member_and_evaluates_all(r2r2, here, runs):
    argv = ("--video", "out.mp4", "--video-episodes", "2", "--workers", "0")
    code, out, err = r2r2("eval", runs("Dot-v0"), "--episodes", "1", *argv)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == (
        "out.mp4 shows filmed:Dot-v0:0 (14 frames, 0.7 s), return 6.0, 6.0"
    )
    assert re.findall(r"Dot-v0:\d", "\n".join(lines[1:])) == ["Dot-v0:0", "Dot-v0:3"]
    _, fps, frames = read_video(here / "out.mp4")
    assert (fps, frames.shape) == (20, (14, 32, 40, 3))
    assert steps(frames) == [*range(7)] * 2
    assert frames.std() > 20
    assert [path.name for path in here.iterdir()] == ["out.mp4"]


def test_one_member_is_filmed_if_it_is_named(r2r2, here, runs):
    argv = ("--member", "filmed:Dot-v0:3", "--video", "out.mp4", "--workers", "0")
    code, out, _ = r2r2("eval", runs("Dot-v0"), "--episodes", "1", *argv)
    assert code == 0
    assert out.startswith("out.mp4 shows filmed:Dot-v0:3 (7 frames, 0.3 s)")


def test_what_cannot_be_filmed_is_refused_before_it_is_played(
    r2r2, here, runs, monkeypatch
):
    run, played = runs("Blind-v0"), []
    monkeypatch.setattr(filmed.Dot, "step", lambda *given: played.append(given))
    code, out, err = r2r2("eval", run, "--video", "out.mp4")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("r2r2: env 'filmed:Blind-v0': cannot be built: ")
    assert err.endswith(
        "; a video needs an environment with the render mode 'rgb_array'\n"
    )
    assert not played
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("when", [0, 3])
def test_a_film_that_breaks_leaves_nothing_but_what_was_there(here, runs, when):
    (here / "out.mp4").write_text("old")
    broken = partial(filmed.Dot, broken_at=when)
    with pytest.raises(EnvFailure if when else UserError, match="the lens"):
        record_video(runs("Dot-v0"), here / "out.mp4", env=broken)
    assert [path.name for path in here.iterdir()] == ["out.mp4"]
    assert (here / "out.mp4").read_text() == "old"


def test_a_watcher_sees_every_picture_and_how_many_there_can_be(here, runs):
    seen = []
    video = record_video(
        runs("Dot-v0"),
        here / "a.mp4",
        episodes=2,
        on_progress=lambda *x: seen.append(x),
    )
    assert seen == [(n, 14) for n in range(1, 15)]
    assert (video.frames, video.fps, video.returns) == (14, 20, (6.0, 6.0))
    assert video.member == ("filmed:Dot-v0", 0)


@pytest.mark.parametrize("built", [True, False])
def test_an_environment_of_ones_own_is_filmed(here, runs, built):
    own = filmed.Silent(render_mode="rgb_array") if built else filmed.Silent
    seen = []

    def watch(count, most):
        seen.append((count, most))
        if count == 9:
            raise KeyboardInterrupt  # it has no time limit

    with pytest.raises(KeyboardInterrupt):
        record_video(runs("Dot-v0"), here / "a.mp4", env=own, on_progress=watch)
    assert seen == [(n, None) for n in range(1, 10)]
    assert list(here.iterdir()) == []


def test_no_episodes_are_refused(here, runs):
    with pytest.raises(UserError, match=r"episodes: expected .*, got 0"):
        record_video(runs("Dot-v0"), here / "a.mp4", episodes=0)
