"""The numbers of docs/theory.md are those of the files and functions that it names."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from r2r2.theory.chains import examples
from r2r2.theory.experiments import DIM, sphere_sizes
from r2r2.theory.lemmas import check_assumptions, check_compatibility, check_lemmas

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "theory.md").read_text()
TEXT = " ".join(PAGE.split())


def rows(header):
    """Return the cells of the table with this header."""
    _, _, below = PAGE.partition(f"{header}\n")
    lines = below.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def runs(study):
    path = ROOT / "benchmarks" / "results" / f"theory_{study}_2cores.json"
    return json.loads(path.read_text())["table"]


def text(seeds, name, digits):
    values = np.array([seed["returns"][-1] if name == "return" else seed[name] for seed in seeds])
    mean, low, high = (f"{x:.{digits}f}" for x in (values.mean(), values.min(), values.max()))
    return f"{mean} ({low} to {high})"


def test_the_runs_on_the_sphere():
    shown = rows(
        "| lambda_Var | v_th | share of the constant mode | effective rank | last return |"
    )
    expected = [
        [
            text(run["seeds"], "constant_share", 3),
            text(run["seeds"], "effective_rank", 1),
            text(run["seeds"], "return", 0),
        ]
        for run in runs("sphere")
    ]
    assert [row[2:] for row in shown] == expected
    weights = [run["fields"].get("lambda_var") for run in runs("sphere")]
    assert [row[0] for row in shown] == ["no R2R2", *(f"{x:g}" for x in weights[1:])]


def test_the_runs_of_td7():
    shown = rows("| method | UTD | share of the constant mode | effective rank |")
    expected = []
    for run in runs("utd"):
        ablated = " --zero-centred" if run["fields"].get("zero_centred") else ""
        share, rank = (
            text(run["seeds"], name, digits)
            for name, digits in (("constant_share", 3), ("effective_rank", 1))
        )
        method = f"`{run['fields']['agent']}{ablated}`"
        expected.append([method, str(run["fields"]["utd"]), share, rank])
    assert shown == expected


def test_assumptions_and_residuals():
    shown = {
        row[0]: row[1:3] for row in rows(next(x for x in PAGE.splitlines() if "commutes" in x))
    }
    assert list(shown) == [chain.name for chain in examples()]
    for chain in examples():
        found = check_assumptions(chain.matrix, DIM)
        measured = [found.not_orthogonal, found.not_commuting]
        assert shown[chain.name] == [f"no: {x:.2g}" if x > 1e-9 else "holds" for x in measured]
        assert max(check.residual for check in check_lemmas(chain.matrix, DIM)) < 1e-13


def test_bound_and_sizes():
    found = check_compatibility(examples()[0].matrix, DIM)
    assert f"here {found.centred_bound:.3f}, and {found.centred_redundancy:.3f}" in TEXT
    sizes = sphere_sizes(128)
    assert f"{sizes.largest_deviation:.4f} for d = 128 and N = 256" in TEXT
    ratio = sphere_sizes(DIM).gradient_ratio
    expected = f"is {sizes.gradient_ratio:.4f} of the hinge's, against {ratio:.2f} for d = {DIM}"
    assert expected in TEXT


@pytest.mark.parametrize("figure", re.findall(r"!\[[^]]*\]\(([^)]+)\)", PAGE))
def test_figures_exist(figure):
    assert (ROOT / "docs" / figure).read_text().startswith("<?xml")
