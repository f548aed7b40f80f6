"""A run on an environment with nested observations, asymmetric bounds and arguments."""

import numpy as np
import pytest
from interrupted import NEVER, OFTEN, assert_same, interrupt, tiny

from r2r2 import evaluate_run, resolve, train
from r2r2.cli.train import parse_train
from r2r2.config.errors import UserError
from r2r2.config.toml_io import parse_toml, to_toml
from r2r2.storage.arrays import read_arrays
from r2r2.training.saved_config import load_config
from r2r2.training.video import record_video

CONFIG = tiny(
    env="user_spaces:Robot",
    env_args={"goal": 0.5, "length": 12},
    seeds="1,2",
    steps=300,
    warmup=60,
    eval_every=100,
    replay_size=400,
)
TWO = NEVER._replace(workers=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run with two workers."""
    return train(CONFIG, tmp_path_factory.mktemp("whole") / "run", options=TWO)


@pytest.mark.slow
def test_nested_environment_is_resumed_exactly(whole, tmp_path):
    path = tmp_path / "run"
    often = OFTEN._replace(workers=2)
    interrupt(CONFIG, path, lambda progress: progress.decisions.min() >= 150, options=often)
    assert_same(train(CONFIG, path, options=OFTEN), whole)
    # The goal is a number of float64 that the observations hold exactly.
    arrays = read_arrays(whole.folder.weights("user_spaces.Robot_s1"))
    assert all(np.isfinite(array).all() for array in arrays.values() if array.dtype.kind == "f")


@pytest.mark.slow
def test_run_folder_rebuilds_the_same_environment(whole, tmp_path):
    path = whole.folder.path
    assert "\n[env_args]\ngoal = 0.5\nlength = 12\n" in (path / "config.toml").read_text()
    assert parse_train(["--config", str(path / "config.toml")]).config == load_config(whole.folder)
    evaluation = evaluate_run(path, episodes=2, workers=2)
    assert evaluation.returns.shape == (2, 2)
    video = record_video(path, tmp_path / "robot.mp4")
    assert video.frames == 1 + 12  # the length of an episode is an argument
    assert video.fps == 10
    # To a rounding error: the worker acts with NumPy, the video with JAX.
    np.testing.assert_allclose(video.returns[0], evaluation.returns[0, 0], rtol=1e-4)


@pytest.mark.slow
def test_other_arguments_are_another_run(whole):
    other = resolve(parse_toml(to_toml(CONFIG)), {"env_args": {"goal": 0.25}})
    pattern = r'another config \(env_args is \{"goal": 0.5, "length": 12\}, not \{"goal": 0.25\}\)'
    with pytest.raises(UserError, match=pattern):
        train(other, whole.folder.path, options=TWO)
