"""The examples of docs/export.md, executed on an exported policy."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from policy_parts import sample
from r2r2.export.export import FORMATS, export_policy

TEXT = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
FROM_PYTHON, *EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
C = re.findall(r"```c\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export_policy(sample("td7").parts, "all", tmp_path_factory.mktemp("docs") / "policy")


# The last example imports JAX.
@pytest.mark.parametrize("number", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_python_examples_run(folder, number):
    assert len(EXAMPLES) == 3
    check = "\nassert actions.shape == (32, 3), actions.shape"
    command = [sys.executable, "-c", EXAMPLES[number] + check]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_run_is_trained_and_exported(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    train = re.search(r"^r2r2 (train .*) --out hopper$", TEXT, re.MULTILINE)[1].split()
    options = "--seeds=0,3", "--eval-episodes=1", "--workers=0", "--out=runs/hopper"
    for command in (["-m", "r2r2", *train, *options], ["-c", FROM_PYTHON]):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True)
        assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "policy").iterdir()}
    assert names == {"policy.onnx", "README.md", "export.json"}


def test_every_code_block_has_a_language():
    assert TEXT.count("```") == 2 * len(re.findall(r"^```(?:bash|c|python)$", TEXT, re.MULTILINE))


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_example_in_c_runs(folder, tmp_path):
    (example,) = C
    (tmp_path / "main.c").write_text(example)
    command = re.search(r"Compile it with `(cc [^`]*)`", TEXT)[1].split()
    subprocess.run([*command, "-I", folder], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "a.out"], capture_output=True, text=True, check=True)
    assert len([float(line) for line in done.stdout.split()]) == 3
    rejected = subprocess.run(
        [*command, "-ffast-math", "-I", folder], cwd=tmp_path, capture_output=True, text=True
    )
    assert rejected.returncode != 0
    assert "compile it without -ffast-math" in rejected.stderr


def test_every_format_is_documented():
    for name, files in FORMATS.items():
        assert f"| `{name}` | {', '.join(f'`{file}`' for file in files)} |" in TEXT
