"""Every code block of the documentation is run by a test, is data, or says why it is not run."""

import doctest
import itertools
import re
import sys
import tomllib
from collections import Counter
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from doc_pages import ROOT, all_blocks, blocks, pages

import r2r2
from r2r2.config.resolve import resolve
from r2r2.experiments.experiment import finalize_cells, find_experiment
from r2r2.experiments.tuning_file import load_tuning_study

# Output, or data that nothing reads.
DATA = ("text", "output", "console", "mermaid", "json", "csv")
RUN = ("bash", "sh", "python", "toml")  # by the tests of this folder
# Blocks that other tests run, because they check more than that the code runs.
TESTED_ELSEWHERE = {
    ("docs/callbacks.md", "python"): "tests/test_callbacks_page.py",
    ("docs/data.md", "python"): "tests/training/test_start_data.py",
    ("docs/environments.md", "python"): "tests/envs/test_environments_page.py",
    ("docs/export.md", "c"): "tests/export/test_documentation.py",
    ("docs/export.md", "python"): "tests/export/test_documentation.py",
    ("docs/extending.md", "python"): "tests/test_extending.py",
}
# All markers `<!-- not run: REASON -->`: whoever adds one adds it here, too.
NOT_RUN = {
    ("docs/cluster.md", "needs a Ray cluster"): 1,
    ("docs/cluster.md", "needs a SLURM cluster"): 1,
    ("docs/cluster.md", "needs several machines"): 2,
    ("docs/performance.md", "measures for minutes"): 6,
    ("docs/performance.md", "needs a GPU"): 1,
    ("docs/scale.md", "simulates for a minute"): 1,
}
BLOCKS = all_blocks()


def test_every_block_is_run_or_marked():
    wrong = [
        f"{x.place}: language {x.language!r}: expected one of {', '.join((*RUN, *DATA))}, or a "
        "marker <!-- not run: REASON --> above the block"
        for x in BLOCKS
        if x.language not in (*RUN, *DATA)
        and not x.not_run
        and (x.page, x.language) not in TESTED_ELSEWHERE
    ]
    assert not wrong, "\n".join(wrong)


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


# Python blocks run as they stand, except that runs are short and small:
SHORT = {
    r"\bsteps=[\d_]{4,}": "steps=60",
    r"\bwarmup=[\d_]{3,}": "warmup=10",
    r"\butd=\d+": "utd=2",
    r"\bseeds=5\b": "seeds=4",
    r"\bepisodes=\d+": "episodes=1",
}
SMALL_TRAINER = {
    **{"width": 16, "latent": 16, "warmup": 10, "eval_episodes": 1, "eval_every": 30},
    **{"workers": 0, "progress": False},
}
SMALL_FIELDS = {"width": 16, "latent": 16, "batch_size": 16, "eval_episodes": 1}
# Names that examples use without defining them.
GIVEN = {
    "np": np,
    "gymnasium": gymnasium,
    "observation": np.zeros(11),
    "observations": np.zeros((4, 11)),
}


def python_pages():
    have = {x.page for x in BLOCKS if x.language == "python"}
    return sorted(page for page in have if (page, "python") not in TESTED_ELSEWHERE)


def small_config(*layers):
    """Resolve a config, with small sizes for fields that are not given."""
    config = resolve(*layers)
    try:
        return resolve(SMALL_FIELDS, *layers)
    except r2r2.UserError:  # an agent without one of these fields
        return config


def shortened(code):
    for long, short in SHORT.items():
        code = re.sub(long, short, code)
    return code


@pytest.fixture
def small_runs(tmp_path, monkeypatch):
    """Make runs small; use the tests' folder of modules and an empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])
    trainer = partial(r2r2.Trainer, **SMALL_TRAINER)
    monkeypatch.setattr(r2r2, "Trainer", trainer, raising=False)
    monkeypatch.setattr(r2r2, "resolve", small_config, raising=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", python_pages())
def test_python_blocks_run(page, small_runs):
    names = dict(GIVEN, __name__="__main__")
    for block in blocks(page):
        if block.language == "python" and not block.not_run:
            run_python(block, names)


def run_python(block, names):
    code = shortened(block.code)
    if code.startswith(">>> "):
        session = doctest.DocTestParser().get_doctest(code, names, block.place, None, block.line)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        assert not runner.run(session, clear_globs=False).failed
        names.update(session.globs)
        return
    # Lines of a traceback are those of the page.
    exec(compile("\n" * block.line + code, str(ROOT / block.page), "exec"), names)
