import contextlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2r2.config.errors import UserError
from r2r2.storage.evaluations import Row, append_evaluations, read_evaluations

HEADER = "exp_name,env_name,seed,metric,env_step,value\n"
ROWS = [
    Row("td7, r2r2", 'the "dog"', 0, "return", 10_000, 312.53),
    Row("td7, r2r2", "é", 1, "effective_rank", 1_000_000, float("-inf")),
]
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))
STEPS = st.integers(min_value=0, max_value=2**63 - 1)
VALUES = st.floats(allow_nan=False)


def test_table_is_long_format_csv(tmp_path):
    path = tmp_path / "evaluations.csv"
    append_evaluations(path, [Row("demo", "Hopper-v5", 3, "return", 5000, 12.5)])
    append_evaluations(path, [Row("demo", "Hopper-v5", 4, "return", 5000, 0.1)])
    assert path.read_bytes().decode() == (
        HEADER + "demo,Hopper-v5,3,return,5000,12.5\ndemo,Hopper-v5,4,return,5000,0.1\n"
    )


def test_no_rows_write_only_the_header(tmp_path):
    append_evaluations(tmp_path / "csv", [])
    assert (tmp_path / "csv").read_text() == HEADER
    assert read_evaluations(tmp_path / "csv") == []


@settings(deadline=None)
@given(st.lists(st.builds(Row, NAMES, NAMES, STEPS, NAMES, STEPS, VALUES)))
def test_rows_round_trip(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "csv"
    append_evaluations(path, rows)
    assert read_evaluations(path) == rows


@settings(deadline=None)
@given(st.floats())
def test_values_round_trip(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("csv") / "csv"
    append_evaluations(path, [ROWS[0]._replace(value=value)])
    (back,) = read_evaluations(path)
    assert back.value == value or (math.isnan(back.value) and math.isnan(value))


def test_numpy_values_keep_their_precision(tmp_path):
    row = Row("a", "b", np.int64(3), "return", np.int32(7), np.float32(0.1))
    append_evaluations(tmp_path / "csv", [row])
    (back,) = read_evaluations(tmp_path / "csv")
    assert back == ("a", "b", 3, "return", 7, float(np.float32(0.1)))


@pytest.mark.parametrize("field", ["exp_name", "env_name", "metric"])
@pytest.mark.parametrize("end", ["\r", "\n"])
def test_line_break_in_a_name_writes_nothing(tmp_path, field, end):
    row = ROWS[0]._replace(**{field: f"a{end}b"})
    with pytest.raises(ValueError, match="line break"):
        append_evaluations(tmp_path / "csv", [ROWS[0], row])
    assert not (tmp_path / "csv").exists()


def test_table_truncated_at_any_byte_keeps_complete_rows(tmp_path):
    path = tmp_path / "csv"
    append_evaluations(path, ROWS)
    content = path.read_bytes()
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        if length < len(HEADER):
            with pytest.raises(UserError, match=r"line 1 is damaged: not the header"):
                read_evaluations(path)
        else:
            assert read_evaluations(path) == ROWS[: content[:length].count(b"\n") - 1]


def test_truncated_table_can_be_appended_to(tmp_path):
    path = tmp_path / "csv"
    append_evaluations(path, ROWS)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        append_evaluations(path, ROWS[:1])
        kept = max(content[:length].count(b"\n") - 1, 0)
        assert read_evaluations(path) == [*ROWS[:kept], ROWS[0]]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "a,b,0,return,0",
        "a,b,0,return,0,1,2",
        "a,b,zero,return,0,1",
        "a,b,0,return,1.5,1",
        "a,b,0,return,0,one",
        'a,"b,0,return,0,1',
        'a,"b"b,0,return,0,1',
        "a,b\rc,0,return,0,1",
        "a" * 200_000 + ",b,0,return,0,1",
    ],
)
def test_damaged_line_is_rejected_with_its_number(tmp_path, line):
    path = tmp_path / "csv"
    good = "a,b,0,return,0,1\n"
    path.write_bytes(f"{HEADER}{good}{line}\n{good}".encode())
    with pytest.raises(UserError) as error:
        read_evaluations(path)
    fields = HEADER.strip()
    assert str(error.value) == (f"{path}: line 3 is damaged: expected {fields}")


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_parsed_or_rejected(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("bytes") / "csv"
    path.write_bytes(HEADER.encode() + content)
    with contextlib.suppress(UserError):
        read_evaluations(path)
