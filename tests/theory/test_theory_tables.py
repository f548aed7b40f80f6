"""Tables, charts and sentences show the measures of the flows that they name."""

import numpy as np
import pytest

from r2r2.theory import charts, page, tables
from r2r2.theory import experiments as ex
from r2r2.theory.chains import examples
from r2r2.theory.experiments import DIM, run_experiments


@pytest.fixture(scope="module")
def outcomes():
    return run_experiments(examples(), end=8.0, starts=2)


def on_sphere(outcomes, threshold):
    wanted = (ex.SPHERE, f"lambda_Var = {ex.PAPER_WEIGHT:g}", threshold)
    return next(x for x in outcomes if x.setting[:3] == wanted)


def test_the_largest_fall_is_between_two_records(outcomes):
    first = outcomes[0]
    trace = np.array([[1.0, 3.0, 2.5, 2.9], [1.0, 1.0, 1.2, 1.1]])
    fallen = first._replace(measures=first.measures._replace(trace=trace))
    assert tables.largest_fall(fallen) == pytest.approx(0.5)
    climbing = first._replace(measures=first.measures._replace(trace=np.sort(trace, axis=1)))
    assert tables.largest_fall(climbing) == 0


def test_deviations_on_the_sphere_are_in_units_of_the_root_of_d(outcomes):
    panel = next(p for p in charts.sphere_chart(outcomes).panels if "sqrt(d)" in p.title)
    line = next(x for x in panel.lines if x.name == f"lambda_Var = {ex.PAPER_WEIGHT:g}")
    expected = np.median(on_sphere(outcomes, 0.75).last("mean_deviation")) * np.sqrt(DIM)
    assert line.y[list(line.x).index(0.75)] == pytest.approx(expected)


def test_findings_are_of_the_thresholds_that_they_name(outcomes):
    *_, sentence = page.findings(outcomes)
    low, high = (
        float(np.median(on_sphere(outcomes, x).last("constant_share"))) for x in (0.75, DIM**0.5)
    )
    assert f"to {high:.3f};" in sentence
    assert sentence.endswith(f"0.75/sqrt(d) leaves {low:.2f}.")
    assert f"{low:.3f}" != f"{high:.3f}"
