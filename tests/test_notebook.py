"""examples/quickstart.ipynb runs from the first cell to the last."""

from pathlib import Path

import nbclient
import nbformat
import numpy as np
import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"


def text_of(cell):
    """Return the text that a cell printed or displayed."""
    outputs = [output.get("text") or output.get("data", {}) for output in cell.outputs]
    return "\n".join(x if isinstance(x, str) else x.get("text/plain", "") for x in outputs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the Jupyter packages
def test_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "steps=6_000" in code[0].source
    code[0].source = code[0].source.replace("steps=6_000", "steps=1_200")
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    train, curve, spectrum, act, export = code
    assert "done" in text_of(train)
    assert "1,200/1,200 100%" in text_of(train)
    assert all(any("image/png" in x.get("data", {}) for x in c.outputs) for c in (curve, spectrum))
    assert "return of one episode" in text_of(act)
    lines = [x for x in text_of(export).splitlines() if x.startswith(("r2r2:", "exported:"))]
    ours, theirs = (float(line.split("[")[1].rstrip("]")) for line in lines)
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
