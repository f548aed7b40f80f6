"""Where a run is from, in its `versions.json`."""

import json

import pytest

from r2r2 import RunOptions, UserError, resolve, train
from r2r2.cli.train import WITH_RESUME

SMALL = {"width": 8, "latent": 8, "eval_episodes": 1}
CONFIG = resolve({"env": "Pendulum-v1", "steps": 10, "random_only": True, **SMALL})


def recorded(folder):
    return json.loads((folder / "versions.json").read_text())


def test_experiment_and_scale_are_recorded(tmp_path):
    options = RunOptions(workers=0, experiment="main-table", scale=0.01)
    train(CONFIG, tmp_path / "run", options=options)
    assert recorded(tmp_path / "run")["experiment"] == "main-table"
    assert recorded(tmp_path / "run")["scale"] == 0.01


def test_other_runs_have_neither(tmp_path):
    train(CONFIG, tmp_path / "run", options=RunOptions(workers=0))
    assert not {"experiment", "scale"} & set(recorded(tmp_path / "run"))


@pytest.mark.parametrize("values", [{"scale": 0}, {"scale": 1.5}, {"scale": "1"}, {"scale": True}])
def test_a_wrong_scale_is_rejected(tmp_path, values):
    with pytest.raises(UserError, match="scale: expected a number > 0 and <= 1, got"):
        train(CONFIG, tmp_path / "run", options=RunOptions(workers=0, **values))
    with pytest.raises(UserError, match="experiment: expected a text, got 3"):
        train(CONFIG, tmp_path / "run", options=RunOptions(workers=0, experiment=3))
    assert not (tmp_path / "run").exists()


def test_the_command_line_has_no_such_options():
    assert not {"experiment", "scale"} & set(WITH_RESUME)
    assert "device" in WITH_RESUME
