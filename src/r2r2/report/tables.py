"""Tables as plain data, and as CSV, Markdown and LaTeX.

An entry of a table holds its text and the numbers behind it. Markdown and LaTeX show the texts,
with notes below the table; CSV has a column for every number.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from r2r2.report.study import describe
from r2r2.stats.aggregates import mean_score
from r2r2.stats.bootstrap import Interval
from r2r2.stats.samples import Floats
from r2r2.stats.scores import Shortfall
from r2r2.stats.suites import SAMPLES, SEED, bootstrap_interval
from r2r2.storage.files import atomic_write

INTERVALS = (
    f"Intervals are 95 % percentile bootstrap intervals with {SAMPLES:,} resamples of "
    f"seeds within tasks (generator seed {SEED}); a single seed has none."
)
DEVIATIONS = (
    "Means over seeds ± standard deviation (ddof 1). The CSV file also has 95 % intervals "
    "of the mean."
)
LINE_LENGTH = 40  # characters; LaTeX breaks longer texts into lines
TABLE_WIDTH = 85  # characters; wider LaTeX tables are scaled down
SUPERSCRIPT = r"\textsuperscript{{{}}}"
LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after the end of a row, "[" and "*" would start an option
    "*": "{*}",
    "±": r"$\pm$",
    "µ": r"$\mu$",
    **{character: "\\" + character for character in "#$%&_"},
}


class Entry(NamedTuple):
    """One entry of a table."""

    text: str
    note: str = ""  # footnote, for example its shortfalls
    numbers: Mapping[str, float] = {}  # by name, not rounded; NaN where undefined


EMPTY = Entry("-")
TableRow = Sequence[Entry | str]


class Table(NamedTuple):
    """Rows of entries under a header."""

    name: str  # of its files, without extension
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def footnotes(self) -> tuple[str, ...]:
        """The notes of the entries, each once; they are numbered from 1."""
        notes = [entry.note for row in self.rows for entry in row if entry.note]
        return tuple(dict.fromkeys(notes))

    @property
    def columns(self) -> list[tuple[str, list[Entry]]]:
        """The name and the entries of each column."""
        return [(name, [row[index] for row in self.rows]) for index, name in enumerate(self.header)]


class ScoreSummary(NamedTuple):
    """Scores over seeds."""

    mean: float
    std: float  # ddof 1; NaN for one seed
    low: float  # of the 95 % interval of the mean; NaN for one seed
    high: float
    seeds: int


def make_table(
    name: str,
    title: str,
    header: Sequence[str],
    rows: Iterable[TableRow],
    notes: Sequence[str] = (),
) -> Table:
    """Return a table from rows of texts and entries."""
    entries = tuple(
        tuple(Entry(item) if isinstance(item, str) else item for item in row) for row in rows
    )
    return Table(name, title, tuple(header), entries, tuple(notes))


def summarize(scores: Floats) -> ScoreSummary:
    """Return mean, deviation and the interval of the mean of scores [seeds]."""
    if not len(scores) or not np.isfinite(scores).all():
        return ScoreSummary(math.nan, math.nan, math.nan, math.nan, len(scores))
    ends = interval_ends(bootstrap_interval(mean_score, {"": scores}))
    std = float(np.std(scores, ddof=1)) if len(scores) > 1 else math.nan
    return ScoreSummary(float(scores.mean()), std, *ends, len(scores))


def interval_ends(interval: Interval | None) -> tuple[float, float]:
    """Return the ends of an interval as numbers; NaN without an interval."""
    return (float(interval.low), float(interval.high)) if interval else (math.nan, math.nan)


def format_number(value: float, like: float | None = None) -> str:
    """Return a number with the digits suited to its size, or to that of another."""
    size = abs(value if like is None else like)
    if not math.isfinite(value) or not math.isfinite(size):
        return str(value)
    digits = 1 if size >= 100 else 2 if size >= 1 or not size else 3
    if 0 < size < 0.1:
        digits = 2 - math.floor(math.log10(size))
    return f"{value:,.{min(digits, 9)}f}"


def format_interval(value: float, low: float, high: float, digits: int | None = None) -> str:
    """Return a number with its interval, if it has one."""
    texts = [
        format_number(x, value) if digits is None else f"{x:.{digits}f}" for x in (value, low, high)
    ]
    if math.isnan(low) or math.isnan(high):
        return texts[0]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]"


def interval_entry(
    value: float, low: float, high: float, note: str = "", digits: int | None = None
) -> Entry:
    """Return the entry of a number with its interval."""
    numbers = {"value": value, "low": low, "high": high}
    return Entry(format_interval(value, low, high, digits), note, numbers)


def score_entry(
    scores: Floats, shortfalls: Iterable[Shortfall] = (), normalized: bool = False
) -> Entry:
    """Return the scores of a cell: with an interval if normalized, else with a deviation."""
    summary, note = summarize(scores), describe(shortfalls)
    if normalized or not summary.seeds:
        return summary_entry(summary, note, digits=2)
    text = format_number(summary.mean)
    if summary.seeds > 1:
        text += f" ± {format_number(summary.std, like=summary.mean)}"
    return Entry(text, note, summary._asdict())


def summary_entry(summary: ScoreSummary, note: str = "", digits: int | None = None) -> Entry:
    """Return the entry of a mean with its interval; a dash without seeds."""
    if not summary.seeds:
        return Entry("-", note)
    text = format_interval(summary.mean, summary.low, summary.high, digits)
    return Entry(text, note, summary._asdict())


def number_entry(value: float, text: str = "") -> Entry:
    """Return the entry of a number without an interval; a dash for NaN."""
    shown = "-" if math.isnan(value) else text or format_number(value)
    return Entry(shown, numbers={"value": value})


def write_tables(tables: Iterable[Table], folder: Path) -> list[Path]:
    """Write each table as `NAME.csv`, `NAME.md` and `NAME.tex`; return the paths."""
    formats = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
    paths: list[Path] = []
    for table in tables:
        for extension, to_text in formats.items():
            paths.append(folder / f"{table.name}.{extension}")
            atomic_write(paths[-1], to_text(table))
    return paths


def to_csv(table: Table) -> str:
    """Return a table as CSV, with a column for each number and one for notes."""
    columns: list[list[float | str]] = []
    for name, entries in table.columns:
        keys = list(dict.fromkeys(key for entry in entries for key in entry.numbers))
        for key in keys:
            columns.append([f"{name}: {key}", *[entry.numbers.get(key, "") for entry in entries]])
        if not keys:
            columns.append([name, *(entry.text for entry in entries)])
        if any(entry.note for entry in entries):
            columns.append([f"{name}: note", *(entry.note for entry in entries)])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(zip(*columns, strict=True))
    return text.getvalue()


def to_markdown(table: Table) -> str:
    """Return a table as Markdown, with its title above and its notes below."""
    header, *rows = [
        f"| {' | '.join(texts)} |" for texts in _texts(table, markdown_text, "<sup>{}</sup>")
    ]
    lines = [f"### {markdown_text(table.title)}", "", header]
    lines += ["|" + "---|" * len(table.header), *rows, ""]
    notes = map(markdown_text, table.footnotes)
    lines += [*(f"{mark}. {note}" for mark, note in enumerate(notes, start=1)), ""]
    lines += [f"{markdown_text(note)}\n" for note in table.notes]
    return "\n".join(lines).rstrip("\n") + "\n"


def to_latex(table: Table) -> str:
    r"""Return a table as LaTeX with `\usepackage{booktabs,graphicx}`, scaled down if it is wide."""
    alignment, width = "", 0
    for name, entries in table.columns:
        longest = max([len(entry.text) for entry in entries], default=0)
        right = any(entry.numbers for entry in entries)
        alignment += r"p{0.4\linewidth}" if longest > LINE_LENGTH else "r" if right else "l"
        width += min(max(longest, len(name)), LINE_LENGTH) + 2
    wide = width > TABLE_WIDTH
    header, *rows = [rf"{' & '.join(texts)} \\" for texts in _texts(table, latex_text, SUPERSCRIPT)]
    notes = map(latex_text, table.footnotes)
    below = [SUPERSCRIPT.format(mark) + note for mark, note in enumerate(notes, 1)]
    below += [latex_text(note) for note in table.notes]
    lines = [
        r"% needs \usepackage{booktabs,graphicx}",
        r"\begin{table}[htbp]",
        r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{latex_text(table.title)}}}",
        *([r"\resizebox{\linewidth}{!}{%"] if wide else []),
        rf"\begin{{tabular}}{{@{{}}{alignment}@{{}}}}",
        *(r"\toprule", header, r"\midrule", *rows, r"\bottomrule"),
        r"\end{tabular}" + ("}" if wide else ""),
        *(rf"\par\smallskip\raggedright {line}" for line in below),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def markdown_text(text: str) -> str:
    """Return text escaped for Markdown and the HTML in it."""
    plain = printable(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|#~$])", r"\\\1", plain.replace(">", "&gt;"))


def latex_text(text: str) -> str:
    """Return text escaped for any LaTeX, with unknown characters as code points."""
    return "".join(
        LATEX.get(c, c if c.isascii() else f"{{[}}U+{ord(c):04X}]") for c in printable(text)
    )


def printable(text: str) -> str:
    """Return text in one line, without characters that cannot be printed."""
    return "".join(c if c.isprintable() else "?" for c in re.sub(r"\s+", " ", text))


def _texts(table: Table, escape: Callable[[str], str], mark: str) -> Iterable[list[str]]:
    """Yield the texts of the header and of each row, with marks of the footnotes."""
    yield [escape(name) for name in table.header]
    marks = {note: mark.format(n) for n, note in enumerate(table.footnotes, start=1)}
    for row in table.rows:
        yield [escape(entry.text) + marks.get(entry.note, "") for entry in row]
