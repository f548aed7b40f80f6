"""docs/callbacks.md: its Python blocks run, and its table is that of the code."""

import re
from pathlib import Path

import pytest

import r2r2
from r2r2.training.callbacks import HOOKS

PAGE = Path(__file__).parents[1] / "docs" / "callbacks.md"


def test_table_has_every_hook_and_every_field():
    rows = re.findall(r"^\| `(on_\w+)` \| .* \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert tuple(hook for hook, _ in rows) == HOOKS
    for _, fields in rows:
        names = re.findall(r"`(\w+)`", fields)
        if names:
            assert getattr(r2r2, names[0])._fields == tuple(names[1:])


@pytest.mark.slow
def test_blocks_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 5
    names = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    out = capsys.readouterr().out
    assert re.search(r"Pendulum-v1_s0: -\d+ at step \d+", out)
    assert "td7+r2r2, 600 steps, batch size 16\n" in out
    assert "finished: True; all steps were made\n" in out
    assert re.search(r"^checkpoint \d+.json of step 600$", out, re.MULTILINE)
