"""The documentation as data: its pages, code blocks, headings and links."""

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PROJECT_FILES = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md"),
    ".github/PULL_REQUEST_TEMPLATE.md",
)
GENERATED = ROOT / "docs" / "example_report"  # its tables are output of `r2r2 report`
# Blocks that other tests run, because they check more than that the code runs.
TESTED_ELSEWHERE = {
    ("docs/callbacks.md", "python"): "tests/test_callbacks_page.py",
    ("docs/data.md", "python"): "tests/training/test_start_data.py",
    ("docs/environments.md", "python"): "tests/envs/test_environments_page.py",
    ("docs/export.md", "c"): "tests/export/test_documentation.py",
    ("docs/export.md", "python"): "tests/export/test_documentation.py",
    ("docs/extending.md", "python"): "tests/test_extending.py",
}
MARKER = re.compile(r"<!-- not run: (.+) -->")
FILE_MARKER = re.compile(r"<!-- file: (.+) -->")
NAMED_FILE = re.compile(r"(?:# (\w+\.(?:py|toml))|/\* (\w+\.c) \*/)\n")  # the first line
DIRECTIVE = re.compile(r"::: (r2r2(?:\.\w+)+)")  # of mkdocstrings, which makes the name an anchor
FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,}|~{3,}) *(?P<info>.*)")


class Block(NamedTuple):
    """A code block of a page."""

    page: str  # path below the repository
    line: int  # of its opening fence, from 1
    language: str
    code: str
    not_run: str  # the reason of a marker directly above; empty if it is to be run
    file: str  # the file whose content it shows, if a marker names one

    @property
    def place(self) -> str:
        """The block as an error names it."""
        return f"{self.page}:{self.line}"

    @property
    def named_file(self) -> str:
        """The name of the file whose content it is, if its first line is this name."""
        named = NAMED_FILE.match(self.code)
        return named[1] or named[2] if named else ""


class Section(NamedTuple):
    """The text of a page without its code blocks, and the blocks."""

    prose: list[str]  # by line; lines of code blocks are empty
    blocks: list[Block]


def pages() -> list[str]:
    """Return the paths of all pages, below the repository."""
    files = [ROOT / name for name in PROJECT_FILES]
    files += sorted((ROOT / "docs").rglob("*.md"))
    inside = [path for path in files if path.is_file() and GENERATED not in path.parents]
    return [path.relative_to(ROOT).as_posix() for path in inside]


def read(page: str) -> str:
    """Return the text of a page."""
    return (ROOT / page).read_text()


def split(page: str, text: str) -> Section:
    """Separate the code blocks of a page from its prose."""
    prose, blocks = [], []
    lines = iter(enumerate(text.splitlines(), start=1))
    above = ""  # the last line of prose that is not empty
    for number, line in lines:
        prose.append(line)
        fence = FENCE.fullmatch(line)
        if not fence:
            above = line.strip() or above
            continue
        prose[-1] = ""
        code = []
        for _, inner in lines:
            prose.append("")
            if inner.strip() == fence["fence"]:
                break
            code.append(inner)
        language = (fence["info"].split() or [""])[0]
        body = textwrap.dedent("\n".join(code)) + "\n"
        reason, file = (pattern.fullmatch(above) for pattern in (MARKER, FILE_MARKER))
        blocks.append(
            Block(
                page, number, language, body, reason[1] if reason else "", file[1] if file else ""
            )
        )
        above = ""
    return Section(prose, blocks)


def blocks(page: str) -> list[Block]:
    """Return the code blocks of a page, in order."""
    return split(page, read(page)).blocks


def all_blocks() -> list[Block]:
    """Return the code blocks of all pages."""
    return [block for page in pages() for block in blocks(page)]


def prose(page: str) -> list[str]:
    """Return the lines of a page, with empty lines in place of code blocks."""
    return split(page, read(page)).prose


def headings(page: str) -> set[str]:
    """Return the anchors of the headings of a page that GitHub and MkDocs form alike.

    A page of the API has those of the names that it documents, which only the site has.
    """
    anchors: dict[str, int] = {}
    for line in prose(page):
        if directive := DIRECTIVE.fullmatch(line):
            anchors[directive[1]] = 0
        if heading := re.match(r"#{1,6} +(.*?)(?: *\{#([\w-]+)\})? *#*$", line):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1])
            anchor = heading[2] or re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
            if "--" not in anchor and anchor.isascii():
                anchors[anchor] = anchors.get(anchor, -1) + 1
    return {anchor for anchor, repetitions in anchors.items() if not repetitions}


def links(page: str) -> list[tuple[int, str]]:
    """Return the targets of the links and images of a page, with their lines."""
    found = []
    for number, line in enumerate(prose(page), start=1):
        text = re.sub(r"`[^`]*`", "", line)
        found += [(number, target) for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", text)]
        found += [(number, target) for target in re.findall(r"(?:src|href)=\"([^\"]+)\"", text)]
    return found


def code_spans(page: str) -> list[tuple[int, str]]:
    """Return the texts in backticks of a page, with their lines; they do not span lines."""
    return [
        (number, span)
        for number, line in enumerate(prose(page), start=1)
        for span in re.findall(r"`([^`\n]+)`", line)
    ]
