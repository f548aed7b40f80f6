"""Runs that end when all members have reached a return."""

import math
import shutil

import numpy as np
import pytest
from runs import SMALL, select

from r2r2 import Callback, RunOptions, UserError, resolve, train
from r2r2.config.toml_io import digest, parse_toml, to_toml
from r2r2.experiments.run_report import Source, load_study
from r2r2.stats.scores import ShortfallKind
from r2r2.storage.events import read_events
from r2r2.storage.run_folder import read_manifest, write_manifest

STEPWISE = RunOptions(workers=0, checkpoint_every="20")
FLEET = {"env": "walks:Walk", "seeds": 3, "steps": 2000}
WHY = "every member has reached a return of -17 (stop_at_return)"


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A fleet whose members do not reach the return at the same time."""
    config = resolve(SMALL, FLEET, {"stop_at_return": -17})
    messages, ends = [], []

    class End(Callback):
        def on_end(self, info):
            ends.append(info)

    path = tmp_path_factory.mktemp("ended") / "run"
    result = train(config, path, options=STEPWISE, on_message=messages.append, callbacks=[End()])
    return config, result, messages, ends[0]


def test_run_ends_when_the_last_point_of_every_member_is_high_enough(ended):
    _, result, messages, end = ended
    events, latest, reached = read_events(result.folder.events), {}, []
    for event in select(events, "evaluation"):
        latest[event["member"]] = event["mean"]
        reached.append(len(latest) == 3 and min(latest.values()) >= -17)
    assert reached[-1]
    assert not any(reached[:-3])  # several evaluations may end in one iteration
    assert len(reached) > 3
    assert end.returns == latest == dict(zip(end.returns, result.returns, strict=True))
    (event,) = select(events, "end")
    assert (event["member"], event["why"]) == (None, WHY)
    step = event["decision_step"]
    assert 0 < step < 2000
    assert (result.interrupted, result.stop_reason) == (False, WHY)
    assert messages[-1] == f"ended at step {step:,} of 2,000: {WHY}"
    assert end[:4] == (result.folder.path, step, True, WHY)


def test_it_is_a_finished_run(ended):
    _, result, _, _ = ended
    folder = result.folder
    assert read_manifest(folder.path).status == "finished"
    assert all(folder.weights(name).exists() for name in folder.members)
    assert folder.curve.exists()


@pytest.mark.parametrize("steps", [2000, 5000])
def test_it_has_ended_for_more_steps_too(ended, steps):
    _, result, _, _ = ended
    before = (result.folder.path / "config.toml").read_bytes()
    messages = []
    more = resolve(SMALL, FLEET, {"stop_at_return": -17, "steps": steps})
    again = train(more, result.folder.path, on_message=messages.append)
    assert messages == [f"{result.folder.path}: has ended already with the same config: {WHY}"]
    assert again.stop_reason == WHY
    assert again._replace(returns=None) == result._replace(returns=None)
    assert (result.folder.path / "config.toml").read_bytes() == before
    with pytest.raises(UserError, match="contains a finished run with another config"):
        train(resolve(SMALL, FLEET), result.folder.path)


@pytest.mark.slow
def test_kill_before_the_end_was_recorded_ends_it_at_the_same_step(ended):
    config, result, _, _ = ended
    path, manifest = result.folder.path, read_manifest(result.folder.path)
    write_manifest(path, manifest.members, "running", copies=manifest.copies)
    again = train(config, path, options=STEPWISE)
    assert again.stop_reason == WHY
    assert read_manifest(path).status == "finished"
    np.testing.assert_array_equal(again.returns, result.returns)


def test_report_shows_an_early_end_and_no_missing_data(ended):
    _, result, _, _ = ended
    study = load_study([Source(result.folder.path, "run")])
    (cell,) = study.cells
    assert not cell.complete
    early = [x for x in cell.shortfalls if x.kind is ShortfallKind.ENDED_EARLY]
    assert [x.seed for x in early] == [0, 1, 2]
    assert str(early[0]).startswith("an early end at environment step ")
    assert str(early[0]).endswith(" of 2,000 (stop_at_return)")
    assert {x.kind for x in cell.shortfalls} == {ShortfallKind.ENDED_EARLY}


def test_truncated_log_of_a_run_that_ended_early_is_reported(ended, tmp_path):
    _, result, _, _ = ended
    copy = tmp_path / "copy"
    shutil.copytree(result.folder.path, copy)
    lines = (copy / "events.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"walks.Walk_s1"' not in line]
    (copy / "events.jsonl").write_text("".join(kept))
    shutil.rmtree(copy / "checkpoints")  # with their copies of the log
    manifest = read_manifest(copy)
    write_manifest(copy, manifest.members, "finished", copies=manifest.copies)
    (cell,) = load_study([Source(copy, "copy")]).cells
    logs = [x.seed for x in cell.shortfalls if x.kind is ShortfallKind.TRUNCATED_LOG]
    assert logs == [1]


@pytest.mark.slow
def test_unreached_return_changes_nothing(tmp_path):
    results = []
    for name, changes in {"without": {}, "with": {"stop_at_return": 1e6}}.items():
        config = resolve(SMALL, changes)
        results.append(train(config, tmp_path / name, options=STEPWISE))
    weights = [x.folder.weights(x.folder.members[0]).read_bytes() for x in results]
    assert weights[0] == weights[1]
    assert [x.stop_reason for x in results] == ["", ""]


@pytest.mark.slow
def test_return_of_the_last_point_does_not_end_a_run_early(tmp_path):
    config = resolve(SMALL, {"eval_every": 60, "stop_at_return": -5})
    result = train(config, tmp_path / "run", options=STEPWISE)
    assert result.stop_reason == ""
    assert all(event["member"] for event in select(read_events(result.folder.events), "end"))


def test_field_survives_toml_and_keeps_names_of_old_runs():
    default = resolve({"env": "Hopper-v5"})
    assert default.stop_at_return == math.inf
    assert "stop_at_return = inf\n" in to_toml(default)
    for value in (-3.5, 0, "1e3", "inf", math.inf):
        config = resolve({"env": "Hopper-v5", "stop_at_return": value})
        assert config.stop_at_return == float(value)
        assert resolve(parse_toml(to_toml(config))) == config
        assert (digest(config) == digest(default)) == (float(value) == math.inf)


@pytest.mark.parametrize("value", ["nan", "-inf", "never", True, 1e19])
def test_wrong_values_are_refused(value):
    with pytest.raises(UserError, match=r"stop_at_return: expected a number .*or inf"):
        resolve({"env": "Hopper-v5", "stop_at_return": value})
