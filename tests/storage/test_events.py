import contextlib
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2r2.config.errors import UserError
from r2r2.storage.events import COMMON_FIELDS, EventLog, StepCounts, read_events


def ticking(*times):
    return iter(times).__next__


def write(path, events):
    with EventLog(path) as log:
        for name, fields in events:
            log.write(name, StepCounts(1, 2, 3), fields=fields)


def test_event_is_one_line_with_time_and_steps(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path, ticking(100.0, 102.5, 103.0)) as log:
        log.write("episode", StepCounts(2000, 1000, 500), "dog-run_s0", {"return": 1.5})
        log.write("finished", StepCounts())
    first, second = path.read_text().splitlines()
    assert json.loads(first) == {
        "event": "episode",
        "time": 2.5,
        "member": "dog-run_s0",
        "env_step": 2000,
        "decision_step": 1000,
        "update_step": 500,
        "return": 1.5,
    }
    assert json.loads(second)["time"] == 3.0
    assert json.loads(second)["member"] is None
    assert tuple(json.loads(second)) == COMMON_FIELDS


def test_events_round_trip(tmp_path):
    events = [("a", {"x": 1}), ("b", {"text": "line\nbreak é \ud800", "yes": True})]
    write(tmp_path / "log", events)
    first, second = read_events(tmp_path / "log")
    assert (first["event"], first["x"]) == ("a", 1)
    assert second["text"] == "line\nbreak é \ud800"
    assert second["yes"] is True


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("nan"), '"nan"'),
        (float("inf"), '"inf"'),
        (float("-inf"), '"-inf"'),
        (np.float32("nan"), '"nan"'),
        (np.float64("-inf"), '"-inf"'),
        (np.float32(0.5), "0.5"),
        (np.int64(7), "7"),
        (np.bool_(True), "true"),
        (np.str_("text"), '"text"'),
        (None, "null"),
        ([1.5, math.nan], '[1.5, "nan"]'),
    ],
)
def test_values_are_valid_json(tmp_path, value, written):
    write(tmp_path / "log", [("a", {"value": value})])
    assert (tmp_path / "log").read_text().endswith(f'"value": {written}}}\n')


@settings(deadline=None)
@given(st.floats())
def test_floats_round_trip(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("float") / "log"
    write(path, [("a", {"value": value})])
    back = float(read_events(path)[0]["value"])
    assert back == value or (math.isnan(back) and math.isnan(value))


def test_numpy_steps_are_plain_numbers(tmp_path):
    with EventLog(tmp_path / "log") as log:
        log.write("a", StepCounts(np.int32(1), np.int64(2), np.int32(3)))
    assert read_events(tmp_path / "log")[0]["decision_step"] == 2


@pytest.mark.parametrize("name", COMMON_FIELDS)
def test_common_field_names_are_reserved(tmp_path, name):
    with EventLog(tmp_path / "log") as log, pytest.raises(ValueError, match=name):
        log.write("a", StepCounts(), fields={name: 1})
    assert (tmp_path / "log").read_text() == ""


def test_array_value_writes_nothing(tmp_path):
    with EventLog(tmp_path / "log") as log, pytest.raises(TypeError):
        log.write("a", StepCounts(), fields={"x": np.zeros(2)})
    assert (tmp_path / "log").read_text() == ""


def test_event_is_readable_while_the_log_is_open(tmp_path):
    with EventLog(tmp_path / "log") as log:
        log.write("a", StepCounts())
        assert len(read_events(tmp_path / "log")) == 1
    with pytest.raises(ValueError, match="closed"):
        log.write("b", StepCounts())


def test_reopened_log_continues_after_the_last_complete_line(tmp_path):
    write(tmp_path / "log", [("a", {}), ("b", {})])
    content = (tmp_path / "log").read_bytes()
    (tmp_path / "log").write_bytes(content[:-5])
    write(tmp_path / "log", [("c", {})])
    assert [e["event"] for e in read_events(tmp_path / "log")] == ["a", "c"]


def test_log_truncated_at_any_byte_keeps_complete_events(tmp_path):
    path = tmp_path / "log"
    write(path, [("a", {"x": 1}), ("b", {"x": float("nan")}), ("c", {"x": "é"})])
    content, events = path.read_bytes(), read_events(path)
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        assert read_events(path) == events[: content[:length].count(b"\n")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not valid JSON"),
        ("", "not valid JSON"),
        ('{"x": NaN}', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("9" * 5000, "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"event": "a"}', "missing field 'time'"),
    ],
)
def test_damaged_line_is_rejected_with_its_number(tmp_path, line, why):
    path = tmp_path / "log"
    write(path, [("a", {})])
    path.write_text(path.read_text() + line + "\n" + path.read_text())
    with pytest.raises(UserError) as error:
        read_events(path)
    assert str(error.value) == f"{path}: line 2 is damaged: {why}"


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_parsed_or_rejected(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("bytes") / "log"
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        read_events(path)
