"""The flows as charts."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from r2r2.report.charts import Axis, Chart, Line, Panel, Style
from r2r2.theory import experiments as ex
from r2r2.theory.experiments import DIM, STARTS, Outcome
from r2r2.theory.losses import Floats
from r2r2.theory.tables import MEASURES, weakest_feature

STYLES = {
    ex.SPL: Style(8, "dashed"),
    ex.NO_STOP: Style(9, "dotted"),
    ex.CENTRED_OUTPUT: Style(1, "dashed"),
    ex.VICREG: Style(4),
    ex.ABLATION: Style(3, "dashed"),
    ex.FULL: Style(0),
    ex.NON_CENTRED_LINE: Style(0),
    ex.CENTRED_LINE: Style(3, "dashed"),
}
NO_HINGE = Style(8, "dotted")
WEIGHT_STYLES = (Style(2), Style(0), Style(4), Style(9))
BANDS = f"Lines: medians over {STARTS} random starts; bands: from the smallest to the largest."
TIME = Axis("time of the gradient flow", log=True)
Value = Callable[[Outcome], Floats]
MEASURE = Axis("the measure named in each title", padded=True)


def variant_chart(outcomes: Sequence[Outcome], chain: str) -> Chart:
    """Return the flows of all variants on a chain: a panel for each measure."""
    shown = [
        x for x in outcomes if x.setting.experiment == "variants" and x.setting.chain.name == chain
    ]
    # Solid lines first: dashes stay visible on top of a line with the same values.
    shown.sort(key=lambda x: STYLES[x.setting.line].dash != "solid")
    panels = [
        Panel(title, [_time_line(x, _middle(x, name), x.setting.line) for x in shown])
        for name, title in MEASURES.items()
    ]
    return Chart(
        "flows",
        f"Six losses on the {chain}",
        f"Gradient flow of the loss for {DIM} features. With the stop-gradient, SPL climbs the "
        "trace objective and turns to the top eigenvectors. Without it, all directions but the "
        "constant one vanish: effective rank 1. Zero-centred latents can never contain the "
        "constant mode. Centred covariances keep it in the span, but do not see it: its share "
        "depends on the weights. Directions below 1 % of the largest do not count as part of the "
        "span, so the trace and the angle jump where one is lost. VICReg's weights are larger and "
        "make the flow faster, so it is followed for less time. "
        f"Medians over {STARTS} random starts.",
        TIME,
        MEASURE,
        panels,
    )


ANGLES = (Style(0), Style(2, "dashed"), Style(4, "dashed"), Style(9, "dotted"))


def angle_chart(outcomes: Sequence[Outcome], chain: str) -> Chart:
    """Return all principal angles to the top-k eigenspace over time: a panel for each variant."""
    panels = []
    for outcome in outcomes:
        if outcome.setting.experiment == "variants" and outcome.setting.chain.name == chain:
            angles = _middle(outcome, "angles")
            lines = [
                _time_line(outcome, angles[..., n], f"angle {n + 1} of {DIM}", style)
                for n, style in enumerate(ANGLES)
            ]
            panels.append(Panel(outcome.setting.line, lines))
    return Chart(
        "angles",
        f"Principal angles to the top {DIM} eigenvectors, {chain}",
        "An angle is 0 if the features span a direction of the eigenspace, and 90 degrees if they "
        "miss one completely. SPL brings all angles to 0. Zero-centred latents miss exactly one "
        "direction, the constant mode; the other angles go to 0. Without the stop-gradient the "
        "features keep only the constant mode: an angle jumps to 90 when its direction falls below "
        "1 % of the largest. Angles are sorted at every time, smallest first. "
        f"Medians over {STARTS} random starts.",
        TIME,
        Axis("angle in degrees", shared=True, padded=True),
        panels,
    )


def _middle(outcome: Outcome, field: str) -> Floats:
    """Return the median over starts of a measure, [1, records, ...]: six bands would hide lines."""
    middle: Floats = np.median(getattr(outcome.measures, field), axis=0, keepdims=True)
    return middle


def _time_line(outcome: Outcome, values: Floats, name: str, style: Style | None = None) -> Line:
    """Return the line of a measure [starts, records] over time, from the first step on."""
    return _band(Line(name, style or STYLES[name], outcome.times[1:]), values[:, 1:])


def _band(line: Line, values: Floats) -> Line:
    """Add the median and the range over starts of values [starts, points]."""
    line = line._replace(y=np.median(values, axis=0), detail=f"{STARTS} starts")
    if len(values) == 1:
        return line
    return line._replace(low=values.min(axis=0), high=values.max(axis=0))


SWEEP_TITLES = {
    ex.BOTH: "both weights",
    ex.RR_ONLY: "lambda_RR (lambda_Var = 0.01)",
    ex.VAR_ONLY: "lambda_Var (lambda_RR = 0.01)",
    ex.THRESHOLD: "v_th (both weights 0.01)",
}


def weight_charts(outcomes: Sequence[Outcome], chain: str) -> list[Chart]:
    """Return what weights and threshold do, with and without centring: one chart per measure."""
    outcomes = [x for x in outcomes if x.setting.chain.name == chain]
    axis = Axis("weight; in the last panel, threshold v_th", log=True)
    shares = _sweep_panels(outcomes, lambda x: x.last("constant_share"))
    deviations = _sweep_panels(outcomes, weakest_feature)
    return [
        Chart(
            "weights-share",
            "Weights and threshold: share of the constant mode",
            "Share of Z's squared norm that belongs to the constant mode at the end of the flow, "
            f"on the {chain}. "
            "Without centring it settles at a little more than 1/k = 0.25 once the terms have had "
            "time to act (at the smallest weights they had not). With centring nothing holds it: "
            f"it goes to 0 or takes almost all of Z as the weights change. {BANDS}",
            axis,
            Axis("share of the constant mode", shared=True, padded=True),
            shares,
        ),
        Chart(
            "weights-deviation",
            "Weights and threshold: the weakest feature",
            "Smallest standard deviation of a feature over v_th at the end of the flow, on the "
            f"{chain}; 1 if it meets the hinge. A centred L_RR has one direction too few for all "
            "features: with a weight above lambda_Var it makes one feature nearly constant. "
            f"{BANDS}",
            axis,
            Axis("smallest deviation / v_th", shared=True, padded=True),
            deviations,
        ),
    ]


def _sweep_panels(outcomes: Sequence[Outcome], value: Value) -> list[Panel]:
    panels = []
    for experiment, title in SWEEP_TITLES.items():
        groups = _by_line(outcomes, experiment)
        lines = [_sweep_line(name, STYLES[name], group, value) for name, group in groups.items()]
        panels.append(Panel(title, lines))
    return panels


def _by_line(outcomes: Sequence[Outcome], experiment: str) -> Mapping[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.setting.experiment == experiment:
            groups.setdefault(outcome.setting.line, []).append(outcome)
    return groups


def _sweep_line(name: str, style: Style, group: Sequence[Outcome], value: Value) -> Line:
    x = np.array([outcome.setting.x for outcome in group])
    return _band(Line(name, style, x), np.stack([value(outcome) for outcome in group], axis=1))


SPHERE_TIME = (
    f"These flows end at time {ex.SPHERE_END:g} (divided by 1 + lambda_RR + lambda_Var): later, "
    "some starts almost lose a direction, and their paths are not certain."
)
SPHERE_MEASURES = {
    "constant_share": "constant mode's share of Z",
    "constant_mode": "constant mode in the span",
    "mean_deviation": "mean deviation times sqrt(d)",
    "effective_rank": "effective rank",
}


def sphere_chart(outcomes: Sequence[Outcome]) -> Chart:
    """Return what the threshold does on the unit sphere, for each weight of the hinge."""
    base = _by_line(outcomes, ex.SPHERE_BASE)
    panels = []
    for field, title in SPHERE_MEASURES.items():
        lines = [_level(outcome, field) for group in base.values() for outcome in group]
        groups = _by_line(outcomes, ex.SPHERE).items()
        for (name, group), style in zip(groups, WEIGHT_STYLES, strict=True):
            lines.append(_sweep_line(name, style, group, partial(_scaled, field)))
        panels.append(Panel(title, lines))
    return Chart(
        "sphere",
        "Threshold of the hinge on the unit sphere",
        f"Latents of norm 1 with d = {DIM}, on the grid world, at the end of the flow. The paper's "
        f"v_th = 1 is at {DIM**0.5:g}. Above the largest deviation of any feature (between 1.25 "
        "and 2) nothing changes any more: the hinge is never met, and its gradient does not depend "
        "on the threshold. It drives the mean latent, and with it the constant mode, out of Z. Up "
        "to 0.75 the hinge closes and leaves the constant mode about where SPL put it. "
        f"{SPHERE_TIME} {BANDS}",
        Axis("threshold v_th in units of 1/sqrt(d)"),
        MEASURE,
        panels,
    )


def _scaled(field: str, outcome: Outcome) -> Floats:
    """Return a measure at the end; deviations in units of 1/sqrt(d)."""
    factor = DIM**0.5 if field == "mean_deviation" else 1.0
    return factor * outcome.last(field)


def _level(outcome: Outcome, field: str) -> Line:
    """Return a level line for the flow without a hinge."""
    ends = np.array([min(ex.SPHERE_THRESHOLDS), max(ex.SPHERE_THRESHOLDS)])
    values = np.repeat(_scaled(field, outcome)[:, None], 2, axis=1)
    line = Line(outcome.setting.line, NO_HINGE, ends, np.median(values, axis=0))
    return line._replace(detail=f"{STARTS} starts")


HINGES = {ex.NO_HINGE: NO_HINGE, ex.PAPER_HINGE: Style(9), ex.MET_HINGE: Style(0)}


def sphere_weight_chart(outcomes: Sequence[Outcome]) -> Chart:
    """Return what the weight of the redundancy term does on the unit sphere."""
    groups = _by_line(outcomes, ex.SPHERE_RR).items()
    panels = [
        Panel(title, [_sweep_line(x, HINGES[x], group, partial(_scaled, f)) for x, group in groups])
        for f, title in SPHERE_MEASURES.items()
    ]
    return Chart(
        "sphere-weights",
        "Weight of the redundancy term on the unit sphere",
        f"Latents of norm 1 with d = {DIM}, on the grid world, at the end of the flow, with "
        f"lambda_Var = {ex.PAPER_WEIGHT:g} or no hinge. A larger weight brings back the constant "
        "mode that the hinge with v_th = 1 drives out, and raises the effective rank. For d = 128 "
        "the term is far weaker, compared with the hinge, than for d = 4: see the last column of "
        f"the table below. {BANDS}",
        Axis("lambda_RR", log=True),
        MEASURE,
        panels,
    )


SHOWN_THRESHOLDS = {0.5: Style(2), 0.75: Style(0), 1.0: Style(4), 2.0: Style(9)}


def sphere_time_chart(outcomes: Sequence[Outcome]) -> Chart:
    """Return the flows on the sphere with the paper's weight over time."""
    titles = ("constant mode's share of Z", "push of the hinge", "mean deviation times sqrt(d)")
    panels: dict[str, list[Line]] = {title: [] for title in titles}
    weight = f"lambda_Var = {ex.PAPER_WEIGHT:g}"
    shown = [x for group in _by_line(outcomes, ex.SPHERE_BASE).values() for x in group]
    shown += [x for x in _by_line(outcomes, ex.SPHERE)[weight] if x.setting.x in SHOWN_THRESHOLDS]
    for outcome in shown:
        x = outcome.setting.x
        name = f"v_th = {x:g}/sqrt(d)" if x else outcome.setting.line
        name += " = 1 (the paper's)" if x == DIM**0.5 else ""
        m, root = outcome.measures, DIM**0.5
        # A hinge that closes flickers between on and off: its mean over starts, without a band.
        push = outcome.push.mean(axis=0, keepdims=True)
        values = (m.constant_share, push, root * m.mean_deviation)
        for title, of_measure in zip(titles, values, strict=True):
            style = SHOWN_THRESHOLDS.get(x, NO_HINGE)
            panels[title].append(_time_line(outcome, of_measure, name, style))
    return Chart(
        "sphere-flows",
        "The hinge on the unit sphere over time",
        f"The paper's weight lambda_Var = {ex.PAPER_WEIGHT:g}. The push is the norm of the "
        "hinge's part of the velocity along the sphere, as a mean over starts. A threshold that "
        "can be met ends it when the features are wide enough. With v_th = 1 it fades only as "
        f"the mean latent goes to 0 and the deviations become equal. {BANDS}",
        TIME,
        MEASURE,
        [Panel(title, lines) for title, lines in panels.items()],
    )
