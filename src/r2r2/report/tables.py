"""Tables as plain data, and as CSV, Markdown and LaTeX.

A table holds what people read and the numbers behind it. Markdown and LaTeX show the
texts, with notes below the table; CSV has a column for every number, to calculate with.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from r2r2.storage.files import atomic_write


def markdown_text(text: str) -> str:
    r"""Text that Markdown, and the HTML in it, leave as it is.

    Example:
        >>> print(markdown_text("a|b_c <script>"))
        a\|b\_c &lt;script&gt;
    """
    plain = one_line(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|#~$])", r"\\\1", plain.replace(">", "&gt;"))


LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after the end of a row it would begin an option, and so would a star
    "*": "{*}",
    "±": r"$\pm$",
    "µ": r"$\mu$",
    **{character: "\\" + character for character in "#$%&_"},
}


def latex_text(text: str) -> str:
    r"""Text that any LaTeX sets as it is; what it has no letter for, by its number.

    Example:
        >>> print(latex_text("50 % of a_b & 3 ± 1"))
        50 \% of a\_b \& 3 $\pm$ 1
    """
    return "".join(
        LATEX.get(c, c if c.isascii() else f"{{[}}U+{ord(c):04X}]")
        for c in one_line(text)
    )


def one_line(text: str) -> str:
    """Text without line breaks and what else cannot be printed.

    Example:
        >>> one_line("a" + chr(10) + "b" + chr(27))
        'a b?'
    """
    spaced = re.sub(r"\s+", " ", text)
    return "".join(c if c.isprintable() else "?" for c in spaced)


LINE = 40  # letters, beyond which LaTeX breaks a text into lines
WIDE = 85  # letters, beyond which it makes a table smaller
RAISED = r"\textsuperscript{{{}}}"


class Entry(NamedTuple):
    """One place of a table."""

    text: str
    note: str = ""  # what must be known of it: what it lacks, say
    numbers: Mapping[str, float] = {}  # by name, unrounded; NaN where there is none


Cells = Sequence[Entry | str]  # a row before it is in a table: texts, or entries


class Table(NamedTuple):
    """Rows of entries under a header."""

    name: str  # of its files, without the ending
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def footnotes(self) -> tuple[str, ...]:
        """The entries' notes, each once; a mark is its place, from 1."""
        found = [entry.note for row in self.rows for entry in row if entry.note]
        return tuple(dict.fromkeys(found))


def table_of(
    name: str,
    title: str,
    header: Sequence[str],
    rows: Iterable[Cells],
    notes: Sequence[str] = (),
) -> Table:
    """A table, of texts and entries.

    Example:
        >>> table_of("a", "A", ["task", "score"], [["Hopper-v5", Entry("1.0")]]).rows
        ((Entry(text='Hopper-v5', note='', numbers={}), Entry(text='1.0', note='', ...
    """
    whole = tuple(
        tuple(Entry(one) if isinstance(one, str) else one for one in row)
        for row in rows
    )
    return Table(name, title, tuple(header), whole, tuple(notes))


def write_tables(tables: Iterable[Table], folder: Path) -> list[Path]:
    """Writes each table as `NAME.csv`, `NAME.md` and `NAME.tex`."""
    writers = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
    found: list[Path] = []
    for table in tables:
        for ending, write in writers.items():
            found.append(folder / f"{table.name}.{ending}")
            atomic_write(found[-1], write(table))
    return found


def to_csv(table: Table) -> str:
    """A table as CSV: a column for each number, and one for notes where there are some.

    Example:
        >>> score = Entry("1.3 [1.0, 1.6]", "2 of 5 seeds", {"mean": 1.25})
        >>> print(to_csv(table_of("a", "A", ["task", "td7"], [["dog-run", score]])))
        task,td7: mean,td7: note
        dog-run,1.25,2 of 5 seeds
        <BLANKLINE>
    """
    columns = [_columns(table, place) for place in range(len(table.header))]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(name for column in columns for name, _ in column)
    for row in table.rows:
        pairs = zip(columns, row, strict=True)
        writer.writerow(value(entry) for column, entry in pairs for _, value in column)
    return text.getvalue()


def to_markdown(table: Table) -> str:
    r"""A table as Markdown, under its title and above its notes.

    Example:
        >>> print(to_markdown(table_of("a", "A|B", ["x"], [[Entry("1", "few")]])))
        ### A\|B
        <BLANKLINE>
        | x |
        |---|
        | 1<sup>1</sup> |
        <BLANKLINE>
        1. few
        <BLANKLINE>
    """
    lines = [f"### {markdown_text(table.title)}", ""]
    lines.append(_piped(markdown_text(name) for name in table.header))
    lines.append("|" + "---|" * len(table.header))
    lines += map(_piped, _marked(table, markdown_text, "<sup>{}</sup>"))
    notes = map(markdown_text, table.footnotes)
    lines += ["", *(f"{mark}. {note}" for mark, note in enumerate(notes, start=1))]
    lines += ["", *(f"{markdown_text(note)}\n" for note in table.notes)]
    return "\n".join(lines).rstrip("\n") + "\n"


def to_latex(table: Table) -> str:
    r"""A table as LaTeX, which needs `\usepackage{booktabs,graphicx}` and nothing else.

    A wide one is made as narrow as the text.
    """
    kinds = "".join(_kind(table, place) for place in range(len(table.header)))
    wide = sum(_width(table, place) for place in range(len(table.header))) > WIDE
    lines = [
        r"% needs \usepackage{booktabs,graphicx}",
        r"\begin{table}[htbp]",
        r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{latex_text(table.title)}}}",
        *([r"\resizebox{\linewidth}{!}{%"] if wide else []),
        rf"\begin{{tabular}}{{@{{}}{kinds}@{{}}}}",
        r"\toprule",
        _ampersands(latex_text(name) for name in table.header),
        r"\midrule",
    ]
    lines += map(_ampersands, _marked(table, latex_text, RAISED))
    lines += [r"\bottomrule", r"\end{tabular}" + ("}" if wide else "")]
    notes = map(latex_text, table.footnotes)
    below = [RAISED.format(mark) + note for mark, note in enumerate(notes, start=1)]
    below += [latex_text(note) for note in table.notes]
    lines += [rf"\par\smallskip\raggedright {line}" for line in below]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _marked(
    table: Table, escaped: Callable[[str], str], mark: str
) -> Iterable[list[str]]:
    """The texts of each row, with marks that lead to the notes."""
    marks = {note: place for place, note in enumerate(table.footnotes, start=1)}
    for row in table.rows:
        yield [
            escaped(entry.text) + (mark.format(marks[entry.note]) if entry.note else "")
            for entry in row
        ]


def _columns(
    table: Table, place: int
) -> list[tuple[str, Callable[[Entry], float | str]]]:
    """The columns of a CSV file that a column of a table becomes."""
    name, entries = table.header[place], [row[place] for row in table.rows]
    numbers = list(dict.fromkeys(key for entry in entries for key in entry.numbers))
    if not numbers:
        found: list[tuple[str, Callable[[Entry], float | str]]]
        found = [(name, lambda entry: entry.text)]
    else:
        found = [(f"{name}: {key}", _number(key)) for key in numbers]
    if any(entry.note for entry in entries):
        found.append((f"{name}: note", lambda entry: entry.note))
    return found


def _number(key: str) -> Callable[[Entry], float | str]:
    return lambda entry: entry.numbers.get(key, "")


def _width(table: Table, place: int) -> int:
    """Letters that a column takes, with the gap beside it."""
    texts = [table.header[place], *(row[place].text for row in table.rows)]
    return min(max(map(len, texts)), LINE) + 2


def _kind(table: Table, place: int) -> str:
    """How LaTeX sets a column: long texts in lines, numbers to the right."""
    entries = [row[place] for row in table.rows]
    if any(len(entry.text) > LINE for entry in entries):
        return r"p{0.4\linewidth}"
    return "r" if any(entry.numbers for entry in entries) else "l"


def _piped(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _ampersands(cells: Iterable[str]) -> str:
    return rf"{' & '.join(cells)} \\"
