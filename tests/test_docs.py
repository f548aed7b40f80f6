"""The examples of README.md and docs/*.md: Python runs, and commands have valid options."""

import re
import shlex
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import r2r2
from r2r2.cli.main import command_parser

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Runs of the examples are short and small; the code is otherwise executed as it stands.
SHORT = {
    **{"50_000": "60", "20_000": "60", "1_000": "10", "utd=20": "utd=2", "seeds=5": "seeds=4"},
    '"seeds": 5': '"seeds": 2, "width": 16, "latent": 16, "eval_episodes": 1',
}
SMALL = {
    **{"width": 16, "latent": 16, "warmup": 10, "eval_episodes": 1, "eval_every": 30},
    **{"workers": 0, "progress": False},
}


def blocks(page, language):
    """Return the code blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


# Pages whose examples have tests of their own, which check more.
TESTED_ELSEWHERE = ("callbacks.md", "data.md", "environments.md", "extending.md", "export.md")


def python_pages():
    pages = [page for page in PAGES if page.name not in TESTED_ELSEWHERE]
    return [pytest.param(page, id=page.name) for page in pages if blocks(page, "python")]


@pytest.mark.slow
@pytest.mark.parametrize("page", python_pages())
def test_python_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parent / "documentation")
    monkeypatch.setattr(r2r2, "Trainer", partial(r2r2.Trainer, **SMALL), raising=False)
    names = {"np": np, "gymnasium": gymnasium}
    names |= {"observation": np.zeros(11), "observations": np.zeros((4, 11))}
    for code in blocks(page, "python"):
        for long, short in SHORT.items():
            code = code.replace(long, short)
        exec(compile(code, page.name, "exec"), names)


def test_readme_shows_the_custom_loop_as_it_is():
    loop = (ROOT / "examples" / "custom_loop.py").read_text()
    assert any("make_agent" in block and block in loop for block in blocks(PAGES[0], "python"))


def commands():
    lines = [
        (page.name, line.partition("#")[0].strip())
        for page in PAGES
        for block in blocks(page, "bash")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [(page, line) for page, line in lines if line.startswith("r2r2 ")]


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_have_valid_options(page, line, monkeypatch):
    monkeypatch.chdir(ROOT)
    _, name, *arguments = shlex.split(line)
    if "--config" in arguments or "--resume" in arguments or ":" in line:
        arguments = [
            x for x in arguments if x.startswith("--") and x not in ("--config", "--resume")
        ]
        for option in arguments:
            assert option in command_parser(name, []).format_help(), f"{page}: {line}"
        return
    command_parser(name, arguments).parse(arguments)
