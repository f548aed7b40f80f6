"""Results of other programs: read as they are, or refused with the line."""

import math

import pytest

from made import make_csv
from r2r2.config.errors import UserError
from r2r2.report.load import file_runs, read_results
from r2r2.stats.scores import Method
from r2r2.storage.evaluations import HEADER, Row

ROW = Row("a", "Ant-v5", 0, "return", 10, 1.5)
LINE = "a,Ant-v5,0,return,10,1.5"


def file(path, content):
    (path / "a.csv").write_bytes(content.encode())
    return path / "a.csv"


def test_a_files_names_are_methods_of_unknown_settings(tmp_path):
    runs = {("td7_utd20", "Ant-v5", 0): [1.0, 2.0], ("mine", "Ant-v5", 0): [3.0]}
    path = make_csv(tmp_path / "other.csv", runs, metric="avg_return")
    first, second = file_runs(path, "other.csv")
    unknown = ("from other.csv, whose settings are not known",)
    assert first.results.method == Method("td7", 20, unknown)
    assert second.results.method == Method("mine", None, unknown)
    assert [row.value for row in first.results.rows] == [1.0, 2.0]
    assert {row.metric for row in first.results.rows} == {"return"}
    assert first.status == "file"


def test_a_file_without_returns_is_refused(tmp_path):
    path = make_csv(tmp_path / "a.csv", {("x", "Ant-v5", 0): [1.0]}, metric="loss")
    with pytest.raises(UserError, match="holds no returns; allowed is a metric"):
        file_runs(path, "a.csv")


@pytest.mark.parametrize(
    "content",
    [
        f"{HEADER}\n{LINE}\n",
        f"{HEADER}\n{LINE}",
        f"{HEADER}\r\n{LINE}\r\n",
        f"\ufeff{HEADER}\n{LINE}\n",
        f"{HEADER}\n\n{LINE}\n\n",
        "seed,value,note,metric,env_step,env_name,exp_name\n"
        "0,1.5,x,return,10,Ant-v5,a\n",
    ],
    ids=["plain", "no last end", "windows", "mark", "empty lines", "other order"],
)
def test_files_of_other_programs_are_read_to_the_last_line(tmp_path, content):
    assert read_results(file(tmp_path, content)) == [ROW]


def test_a_value_that_is_not_finite_stays(tmp_path):
    (row,) = read_results(file(tmp_path, f"{HEADER}\na,Ant-v5,0,return,10,nan\n"))
    assert math.isnan(row.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "line 1 .* it has no column"),
        ("hello\n", "line 1 .* it has no column 'env_name' of 'exp_name,"),
        (f"{HEADER}\n{LINE}\na,b\n", "line 3 is damaged"),
        (f"{HEADER}\na,Ant-v5,x,return,10,1.5\n", "line 2 .* 'x'"),
        (f"{HEADER}\na,Ant-v5,0,return,10,much\n", "line 2 .* 'much'"),
        (f"{HEADER}\na,Ant-v5,0,return,10,-1e101\n", "line 2 .* beyond any return"),
        (f"{HEADER}\na,Ant-v5,-1,return,10,1\n", "line 2 .* counts from 0 on"),
        (f"{HEADER}\na,Ant-v5,0,return,{2**63},1\n", "line 2 .* counts from 0 on"),
        (f"{HEADER}\na,Ant-v5,{'9' * 5000},return,1,1\n", "line 2 is damaged"),
        (f'{HEADER}\n"a,Ant-v5,0,return,10,1.5\n', "is damaged: unexpected end"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_line(tmp_path, content, said):
    with pytest.raises(UserError, match=said):
        read_results(file(tmp_path, content))


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="it is not UTF-8"):
        read_results(tmp_path / "a.csv")
