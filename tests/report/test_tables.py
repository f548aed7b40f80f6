"""Tables as CSV, Markdown and LaTeX: exact numbers and escaped names."""

import csv
import io
import math
import re
import shutil
import subprocess

import pytest

from r2r2.report.tables import (
    Entry,
    format_number,
    latex_text,
    make_table,
    markdown_text,
    to_csv,
    to_latex,
    to_markdown,
    write_tables,
)

HOSTILE = (
    "<script>alert(1)</script>",
    "a|b",
    "a_b^c",
    "R&D 100% $5 #1 ~{x}",
    "line\nbreak\r\nand\ttab",
    "\\input{/etc/passwd}",
    "[x] *bold* `code` ![i](u)",
    '"quoted", 1;2',
    "é ± µ \u202e \x1b[2J \U0001f389",
    "",
)


def hostile():
    rows = [[name, Entry("1.0", name, {"mean": 1.0})] for name in HOSTILE]
    return make_table("hostile", HOSTILE[0], ["task", HOSTILE[1]], rows, HOSTILE)


def read(table):
    return list(csv.reader(io.StringIO(to_csv(table))))


def test_csv_has_a_column_for_every_number_and_for_notes():
    score = {"mean": 1 / 3, "low": 0.1, "seeds": 5}
    rows = [["dog-run", Entry("0.33", "", score)], ["dog-walk", Entry("-", "no evaluation")]]
    assert read(make_table("a", "A", ["task", "td7"], rows)) == [
        ["task", "td7: mean", "td7: low", "td7: seeds", "td7: note"],
        ["dog-run", repr(1 / 3), "0.1", "5", ""],
        ["dog-walk", "", "", "", "no evaluation"],
    ]


def test_numbers_have_digits_suited_to_their_size():
    texts = [format_number(x) for x in (3281.94, 12.345, 0.01234, -0.5, 0.0)]
    assert texts == ["3,281.9", "12.35", "0.0123", "-0.500", "0.00"]


def test_csv_writes_nan():
    rows = [[Entry("5.0", "", {"mean": 5.0, "low": math.nan})]]
    assert read(make_table("a", "A", ["x"], rows))[1] == ["5.0", "nan"]


def test_csv_round_trip_of_names():
    rows = read(hostile())
    assert [row[0] for row in rows[1:]] == list(HOSTILE)
    assert [row[2] for row in rows[1:]] == list(HOSTILE)


def test_equal_notes_share_a_mark():
    rows = [[Entry("1", "few"), Entry("2", "odd")], [Entry("3", "few"), Entry("4")]]
    table = make_table("a", "A", ["x", "y"], rows, ["in general"])
    assert table.footnotes == ("few", "odd")
    lines = to_markdown(table).splitlines()
    assert "| 1<sup>1</sup> | 2<sup>2</sup> |" in lines
    assert "| 3<sup>1</sup> | 4 |" in lines
    assert [line for line in lines if line[:2] in ("1.", "2.")] == ["1. few", "2. odd"]
    assert lines[-1] == "in general"
    assert r"3\textsuperscript{1} & 4 \\" in to_latex(table).splitlines()


def test_markdown_escapes_names():
    text = to_markdown(hostile())
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == len(HOSTILE) + 2
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3}
    assert set(re.findall(r"<[^>]*>", text)) <= {"<sup>", "</sup>"}
    assert not re.search(r"(?<!\\)[*_`\[]", text)
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("name", HOSTILE)
def test_latex_escapes_names(name):
    text = latex_text(name)
    assert text.isascii()
    assert "\n" not in text
    known = r"\\(?:text[a-z]+\{\}|[#$%&_{}])|\$\\(?:pm|mu)\$|\{[\[*]\}"
    assert not re.search(r"[\\{}$&#^_~%<>|*\[]", re.sub(known, "", text))


def test_latex_rows_have_equal_columns():
    lines = to_latex(hostile()).splitlines()
    start, end = lines.index(r"\toprule"), lines.index(r"\bottomrule")
    rows = [line for line in lines[start + 1 : end] if line != r"\midrule"]
    assert len(rows) == len(HOSTILE) + 1
    for row in rows:
        assert row.endswith(r" \\")
        assert len(re.findall(r"(?<!\\)&", row)) == 1


def test_wide_latex_table_is_scaled():
    header = [f"column {n}" for n in range(12)]
    wide = to_latex(make_table("a", "A", header, [header]))
    assert wide.count(r"\resizebox") == 1
    assert r"\end{tabular}}" in wide
    assert r"\resizebox" not in to_latex(make_table("a", "A", ["x"], [["y"]]))


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs LaTeX")
def test_latex_compiles(tmp_path):
    wide = make_table("wide", "W", HOSTILE, [HOSTILE, HOSTILE])
    write_tables([hostile(), wide], tmp_path)
    (tmp_path / "all.tex").write_text(
        r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}"
        r"\input{hostile.tex}\input{wide.tex}\end{document}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True)
    assert result.returncode == 0, result.stdout[-2000:]


def test_write_tables(tmp_path):
    paths = write_tables([hostile()], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "hostile.csv",
        "hostile.md",
        "hostile.tex",
    ]
    assert set(paths) == set(tmp_path.iterdir())
    assert markdown_text("a|b") in (tmp_path / "hostile.md").read_text()
