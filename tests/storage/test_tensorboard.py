import importlib.util
import math

import numpy as np
import pytest

from r2r2.config.errors import UserError
from r2r2.storage.tensorboard import FLUSH_SECONDS, TensorBoardWriter
from tensorboard_reader import records, scalars


def test_numbers_are_written_by_event_and_step(tmp_path):
    board = TensorBoardWriter(tmp_path / "board")
    fields = {"return": np.float32(1.5), "length": 7, "random": True, "why": "x"}
    board.write("episode", 2000, "a_s0", fields)
    board.write("evaluation", 4000, "a_s0", {"mean": np.float64(2.5), "std": math.nan})
    board.write("episode", 3000, "b_s1", {"return": -1.0, "truth": np.bool_(True)})
    board.write("policy_checkpoint", 3000, "c_s0", {})
    board.write("end", 9, None, {"owed": 3})
    board.close()
    board.close()
    assert sorted(p.name for p in (tmp_path / "board").iterdir()) == [*("a_s0", "b_s1", "run")]
    *finite, last = scalars(tmp_path / "board" / "a_s0")
    assert finite == [
        (2000, "episode/return", 1.5),
        (2000, "episode/length", 7.0),
        (4000, "evaluation/mean", 2.5),
    ]
    assert last[:2] == (4000, "evaluation/std")
    assert math.isnan(last[2])
    assert scalars(tmp_path / "board" / "b_s1") == [(3000, "episode/return", -1.0)]
    assert scalars(tmp_path / "board" / "run") == [(9, "end/owed", 3.0)]


def test_numbers_are_flushed_during_the_run(tmp_path):
    now = 0.0
    board = TensorBoardWriter(tmp_path, clock=lambda: now)
    board.write("a", 1, "m", {"x": 1})
    now = FLUSH_SECONDS + 1
    board.write("a", 2, "m", {"x": 2})
    assert [step for step, *_ in scalars(tmp_path / "m")] == [1, 2]
    board.close()


def test_resumed_run_shows_exactly_its_log(tmp_path):
    first = TensorBoardWriter(tmp_path)
    for step in (1, 2, 3):
        first.write("a", step, "m", {"x": 10.0 * step})
    first.close()
    fixed = {"member": "m", "decision_step": 0, "update_step": 0}
    events = [
        {"event": "a", "time": 2.0, "env_step": 1, "x": 10.0, **fixed},
        {"event": "b", "time": 3.5, "env_step": 1, "y": "nan", "why": "z", **fixed},
    ]
    second = TensorBoardWriter(tmp_path)
    second.rewrite(events)
    second.write("a", 2, "m", {"x": 7.0})
    second.close()
    *ours, (step, name, value), last = scalars(tmp_path / "m")
    assert (ours, last) == ([(1, "a/x", 10.0)], (2, "a/x", 7.0))
    assert (step, name) == (1, "b/y")
    assert math.isnan(value)
    (path,) = (tmp_path / "m").iterdir()
    *_, old, new, _ = [event.wall_time for event in records(path)]
    assert new - old == pytest.approx(1.5, abs=0.2)


def test_missing_library_is_rejected(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "tensorboardX" else find(name, *rest),
    )
    with pytest.raises(UserError) as error:
        TensorBoardWriter(tmp_path / "board")
    assert str(error.value) == (
        "--tensorboard: tensorboardX is not installed; install it with "
        "pip install 'r2r2[tensorboard]'"
    )
    assert list(tmp_path.iterdir()) == []
