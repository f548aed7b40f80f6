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


def test_the_largest_fall_is_below_the_highest_earlier_value(outcomes):
    first = outcomes[0]
    trace = np.array([[1.0, 3.0, 2.5, 2.4], [1.0, 1.0, 1.2, 1.1]])
    fallen = first._replace(measures=first.measures._replace(trace=trace))
    assert tables.largest_fall(fallen) == pytest.approx(0.6)
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
    assert f" {high:.3f} with the paper's threshold of 1;" in sentence
    assert sentence.endswith(f"0.75/sqrt(d) leaves {low:.2f}.")
    assert f"{low:.3f}" != f"{high:.3f}"


def test_the_table_of_sweeps_has_the_range_over_all_settings_of_a_chain(outcomes):
    table = tables.sweep_table(outcomes)
    assert [row[0].text for row in table.rows] == [chain.name for chain in examples()]
    few = [
        x
        for x in outcomes
        if x.setting.chain.name == "grid world"
        and x.setting.line == ex.CENTRED_LINE
        and x.setting.x in (ex.FEW_THRESHOLDS if x.setting.experiment == "v_th" else ex.FEW_WEIGHTS)
    ]
    assert len(few) == 3 * len(ex.FEW_WEIGHTS) + len(ex.FEW_THRESHOLDS)
    shares = [np.median(x.last("constant_share")) for x in few]
    met = [
        np.median(np.minimum(1, x.last("deviation") / x.setting.variant.weights.variance_threshold))
        for x in few
    ]
    share, weakest = table.rows[0][3:]
    assert share.numbers == pytest.approx({"low": min(shares), "high": max(shares)})
    assert float(weakest.text) == pytest.approx(min(met), abs=0.005)


def test_charts_of_weights_show_one_chain(outcomes):
    for chart in charts.weight_charts(outcomes, "grid world"):
        assert len(chart.panels) == len(ex.SWEEPS)
        for panel in chart.panels:
            for line in panel.lines:
                points = ex.THRESHOLDS if panel.title.startswith("v_th") else ex.WEIGHTS
                assert tuple(line.x) == points


def test_a_feature_above_the_threshold_counts_as_one(outcomes):
    low = [x for x in outcomes if x.setting.experiment == ex.THRESHOLD and x.setting.x == 0.1]
    assert all((x.last("deviation") > 0.1).all() for x in low)
    assert all((tables.weakest_feature(x) == 1).all() for x in low)
