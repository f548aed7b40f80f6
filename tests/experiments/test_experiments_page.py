"""The examples of docs/experiments.md."""

import re
from pathlib import Path

from r2r2.experiments.experiment import KEYS, finalize_cells, find_experiment, preset_names

PAGE = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()


def test_example_files_are_experiments(tmp_path):
    examples = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    sizes = []
    for number, text in enumerate(examples):
        path = tmp_path / f"example{number}.toml"
        path.write_text(text)
        cells = finalize_cells(find_experiment(str(path)))
        sizes.append((len(cells), sum(len(cell.seeds) for cell in cells)))
    assert sizes == [(16, 80), (6, 18)]


def test_every_preset_and_key_is_explained():
    rows = re.findall(r"^\| `([\w-]+)` \| .* \| ([\d,]+) \| ([\d,]+) \|$", PAGE, re.MULTILINE)
    assert {row[0] for row in rows} == set(preset_names()) - {"smoke"}
    for name, cells, runs in rows:
        experiment = find_experiment(name)
        assert len(experiment.cells()) == int(cells.replace(",", ""))
        assert experiment.run_count == int(runs.replace(",", ""))
    assert all(f"`{key}`" in PAGE or f"[{key}]" in PAGE for key in KEYS)
