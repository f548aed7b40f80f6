"""Every code block of the documentation is run by a test, is data, or says why it is not run."""

import itertools
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from doc_pages import ROOT, TESTED_ELSEWHERE, all_blocks, pages, read

from r2r2.config.agents import AGENTS
from r2r2.config.resolve import resolve
from r2r2.experiments.experiment import finalize_cells, find_experiment
from r2r2.experiments.tuning_file import load_tuning_study

# Output, or data that nothing reads.
DATA = ("text", "output", "console", "mermaid", "json", "csv")
RUN = ("bash", "sh", "python", "toml")  # by the tests of this folder
COMPILED = ("c",)  # in a file that a block of commands of the page compiles
# All markers `<!-- not run: REASON -->`: whoever adds one adds it here, too.
NOT_RUN = {
    ("docs/cluster.md", "needs a Ray cluster"): 1,
    ("docs/cluster.md", "needs a SLURM cluster"): 1,
    ("docs/cluster.md", "needs several machines"): 2,
    ("docs/performance.md", "measures for minutes"): 5,
    ("docs/precision.md", "measures for minutes"): 1,
    ("docs/update_speed.md", "measures for minutes"): 1,
    ("docs/update_speed.md", "needs a GPU"): 1,
    ("docs/scale.md", "simulates for a minute"): 1,
    ("docs/tutorials/from-stable-baselines3.md", "needs Stable-Baselines3"): 1,
}
BLOCKS = all_blocks()


def test_every_block_is_run_or_marked():
    wrong = [
        f"{x.place}: language {x.language!r}: expected one of {', '.join((*RUN, *DATA))}, or a "
        "marker <!-- not run: REASON --> above the block"
        for x in BLOCKS
        if x.language not in (*RUN, *DATA)
        and not x.not_run
        and not (x.language in COMPILED and is_compiled(x))
        and (x.page, x.language) not in TESTED_ELSEWHERE
    ]
    assert not wrong, "\n".join(wrong)


def is_compiled(block):
    """Return whether a later block of the page compiles the file that a block shows."""
    command = re.compile(rf"^cc .*\b{re.escape(block.named_file)}\b", re.MULTILINE)
    later = [x for x in BLOCKS if x.page == block.page and x.line > block.line]
    shells = [x.code for x in later if x.language in ("bash", "sh") and not x.not_run]
    return bool(block.named_file) and any(map(command.search, shells))


def test_markers_are_listed():
    assert Counter((x.page, x.not_run) for x in BLOCKS if x.not_run) == NOT_RUN


def test_data_are_not_commands_or_code():
    wrong = [
        x.place
        for x in BLOCKS
        if x.language in DATA and re.match(r"\$ |r2r2 [a-z]+($| -|.*--)|import |>>> ", x.code)
    ]
    assert not wrong


@pytest.mark.parametrize(("page", "language"), TESTED_ELSEWHERE)
def test_other_tests_read_their_pages(page, language):
    assert any((x.page, x.language) == (page, language) for x in BLOCKS)
    assert Path(page).name in (ROOT / TESTED_ELSEWHERE[page, language]).read_text()


def test_code_is_fenced():
    """Indented code has no language, so that no test knows what it is."""
    wrong = []
    for page in pages():
        above = ""  # the last line that is not indented
        lines = (ROOT / page).read_text().splitlines()
        inside = fenced_lines(lines)
        for number, (before, line) in enumerate(itertools.pairwise(lines), start=2):
            if line and not line.startswith(" "):
                above = line
            nested = re.match(r"[-*+] |\d+[.)] |!!! |\?\?\?|=== ", above)
            if line.startswith("    ") and not before and not nested and number not in inside:
                wrong.append(f"{page}:{number}")
    assert not wrong


def fenced_lines(lines):
    inside, fenced = set(), False
    for number, line in enumerate(lines, start=1):
        fence = line.lstrip().startswith(("```", "~~~"))
        if fence or fenced:
            inside.add(number)
        fenced ^= fence
    return inside


@pytest.mark.parametrize("block", [x for x in BLOCKS if x.file], ids=lambda x: x.place)
def test_blocks_show_files_as_they_are(block):
    assert block.code == (ROOT / block.file).read_text()


@pytest.mark.parametrize(
    "block", [x for x in BLOCKS if x.language == "toml"], ids=lambda x: x.place
)
def test_toml_is_valid(block, tmp_path):
    """A file is a study, an experiment or a config."""
    path = tmp_path / "file.toml"
    path.write_text(block.code)
    tables = tomllib.loads(block.code)
    if "space" in tables:
        load_tuning_study(path)
    elif "grids" in tables:
        assert finalize_cells(find_experiment(str(path)))
    else:
        resolve({"env": "Hopper-v5"}, tables)


def test_outputs_of_the_quick_preset_are_those_of_today():
    preset = AGENTS["td7+r2r2"].preset
    steps, noise = preset["steps"], preset["agent.exploration_noise"]
    assert f"done {steps:,}/{steps:,} 100%" in read("docs/start.md")
    report = read("docs/tutorials/reading-a-report.md")
    assert f"steps={steps} (default" in report
    assert f"In a run of {steps // 1_000} evaluations" in report
    assert f"exploration_noise={noise}," in read("docs/figures/train.svg")
