"""Run folders of the first version of their format, which must stay readable."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from r2r2 import evaluate_run
from r2r2.api import ended_run
from r2r2.config.run import DiagnosticsConfig
from r2r2.storage.checkpoints import latest_valid
from r2r2.storage.evaluations import Row, read_evaluations
from r2r2.storage.events import read_events
from r2r2.storage.run_folder import open_run
from r2r2.training.resume_plan import ResumePlan, plan_resume
from r2r2.training.saved_config import find_config

FORMAT_1 = Path(__file__).parent / "format_1"
FINISHED, LEFT = FORMAT_1 / "finished", FORMAT_1 / "left"


def test_finished_run_is_read():
    folder = open_run(FINISHED)
    assert folder.members == ("Pendulum-v1_s0",)
    events = read_events(folder.events)
    counts = [(event["event"], event["decision_step"]) for event in events]
    assert counts == [
        ("episode", 200),
        ("episode", 400),
        ("policy_checkpoint", 400),
        ("evaluation", 220),
        ("losses", 420),
        ("evaluation", 440),
    ]
    rows = read_evaluations(folder.evaluations)
    name = rows[0].exp_name
    assert rows == [
        Row(name, "Pendulum-v1", 0, "return", 220, -1565.0268988308724),
        Row(name, "Pendulum-v1", 0, "return", 440, -1573.973387859666),
    ]


def test_finished_run_is_recognized():
    config = find_config(FINISHED)
    assert (config.env, config.steps) == (("Pendulum-v1",), 440)
    assert config.diagnostics == DiagnosticsConfig()  # a field that it does not have
    assert ended_run(config, FINISHED)


def test_finished_run_is_evaluated():
    """Returns equal those of the version that wrote the run, so all weights are in place."""
    evaluation = evaluate_run(FINISHED, episodes=2, workers=0)
    np.testing.assert_allclose(evaluation.returns, [[-809.557160, -1420.094185]], rtol=1e-3)


def test_interrupted_run_can_resume(tmp_path):
    path, messages = tmp_path / "run", []
    shutil.copytree(LEFT, path)
    checkpoint, damaged = latest_valid(path / "checkpoints")
    assert (checkpoint.number, checkpoint.step, damaged) == (2, 31, [])
    assert len(checkpoint.segments) == 2
    assert plan_resume(path, find_config(path), messages.append) == ResumePlan(checkpoint)
    assert messages == [f"{path}: resuming from step 31"]


@pytest.mark.parametrize(
    ("versions", "precision"),
    [
        ({"platform": "gpu", "matmul_precision": "default"}, "mixed"),
        ({"platform": "gpu", "matmul_precision": "tensorfloat32"}, "tf32"),
        ({"platform": "cpu", "matmul_precision": "default"}, "tf32"),
    ],
)
def test_gpu_runs_without_a_stated_precision_keep_theirs(tmp_path, versions, precision):
    path = tmp_path / "run"
    shutil.copytree(FINISHED, path)
    (path / "versions.json").write_text(json.dumps(versions))
    assert find_config(path).precision == precision
