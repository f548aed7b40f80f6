"""The numbers of the theory as tables."""

from collections.abc import Sequence

import numpy as np

from r2r2.report.tables import Entry, Table, make_table, number_entry
from r2r2.theory import experiments as ex
from r2r2.theory.chains import Chain, structure
from r2r2.theory.experiments import DIM, SPL, STARTS, Outcome, sphere_sizes
from r2r2.theory.flow import measure
from r2r2.theory.lemmas import SPECTRAL, check_assumptions, check_compatibility, check_lemmas
from r2r2.theory.losses import Floats

YES_NO = {True: "yes", False: "no"}
FALL = 1e-6  # of the trace objective; less is rounding and step size
REACHED = 0.1  # degrees from the eigenspace
SPHERE_DIMS = (4, 32, 128)


def residual_entry(value: float) -> Entry:
    """Return the entry of a residual, with two digits."""
    return number_entry(value, f"{value:.1e}" if value else "0")


def lemma_table(chains: Sequence[Chain]) -> Table:
    """Return the assumptions and the residuals of every chain, below a row of bounds."""
    checks = [check_lemmas(chain.matrix, DIM) for chain in chains]
    bounds = [residual_entry(check.bound) for check in checks[0]]
    rows: list[list[Entry | str]] = [["stated bound", *["-"] * 6, *bounds, "-"]]
    for chain, of_chain in zip(chains, checks, strict=True):
        assumptions = [YES_NO[x] for x in structure(chain.matrix)]
        residuals = [residual_entry(check.residual) for check in of_chain]
        verdict = YES_NO[all(check.holds for check in of_chain)]
        largest = residual_entry(max(check.residual for check in of_chain))
        rows.append([chain.name, verdict, largest, *assumptions, *residuals, chain.description])
    names = [check.statement for check in checks[0]]
    assumed = ("symmetric", "doubly stochastic", "irreducible", "aperiodic")
    return make_table(
        "lemmas",
        "Lemmas 1 and 3 and Proposition 2: residuals",
        ["chain", "all hold", "largest residual", *assumed, *names, "description"],
        rows,
        [
            f"Chains have {len(chains[0].matrix)} states. H = I - 11^T/n; u is the constant vector "
            f"of norm 1; Phi is an orthonormal basis of the top {DIM} right eigenvectors. The "
            "lost norm is that of Phi - H Phi. Of several eigenvalues of modulus 1, the one "
            "nearest to 1 counts as the first. All in float64."
        ],
    )


def assumption_table(chains: Sequence[Chain], outcomes: Sequence[Outcome]) -> Table:
    """Return what holds and what does not hold where a chain is not symmetric, as measured."""
    spl = {x.setting.chain.name: x for x in outcomes if x.setting.line == SPL}
    rows: list[list[Entry | str]] = []
    for chain in chains:
        one, circle, *violations = check_assumptions(chain.matrix, DIM)
        flow = spl[chain.name]
        counts = [number_entry(x, str(x)) for x in (one, circle)]
        measured = [_property_entry(x) for x in violations]
        trace = _property_entry(largest_fall(flow), FALL)
        rows.append([chain.name, *measured, trace, *_limit_entries(flow), *counts])
    header = (
        *("chain", "real spectrum", "orthogonal eigenvectors", "HP = PH", "H Phi stays invariant"),
        *("trace never falls", "trace at the end / top-k", "starts that reach the top-k"),
        *("eigenvalues equal to 1", "of modulus 1"),
    )
    return make_table(
        "assumptions",
        "Outside the assumptions: what still holds",
        header,
        rows,
        [
            "A number is the size of the violation: the largest imaginary part, the largest inner "
            "product of two eigenvectors of different eigenvalues, the norm of HP - PH, how far P "
            "moves a unit vector out of the span of H Phi, and how far the trace objective of "
            "SPL's flow falls below its highest value so far (at the recorded times).",
            f"The next columns are SPL's flow with stop-gradient from {STARTS} starts: the median "
            "of its trace objective over that of the top-k eigenspace (which is the largest "
            "possible for symmetric chains only), and how many starts "
            f"end within {REACHED} degrees of it. '-': the k-th and the next eigenvalue have the "
            "same modulus, so there is no single top-k eigenspace.",
        ],
    )


def largest_fall(outcome: Outcome) -> float:
    """Return how far the trace objective falls below its highest earlier value, at most."""
    trace = outcome.measures.trace
    return float((np.maximum.accumulate(trace, axis=1) - trace).max())


def _property_entry(violation: float, bound: float = SPECTRAL) -> Entry:
    return number_entry(violation, "holds" if violation <= bound else f"no: {violation:.2g}")


def _limit_entries(flow: Outcome) -> list[Entry]:
    if not flow.eigenspace.unique:
        return [Entry("-"), Entry("-")]
    ratio = number_entry(float(np.median(flow.last("trace"))) / top_trace(flow))
    angles = flow.last("angle")
    reached = int(np.sum(angles < REACHED))
    return [ratio, number_entry(reached, f"{reached} of {len(angles)}")]


def top_trace(outcome: Outcome) -> float:
    """Return the trace objective of the top-k eigenspace.

    It is the sum of the squared moduli of the eigenvalues only if they have orthogonal
    eigenvectors; otherwise it is larger.
    """
    basis, p = outcome.eigenspace.basis, outcome.setting.chain.matrix
    return float(measure(basis, p, basis).trace)


def compatibility_table(chains: Sequence[Chain]) -> Table:
    """Return which terms can be 0 while the features span the constant mode."""
    found = [check_compatibility(chain.matrix, DIM) for chain in chains]
    worst = {
        "constant mode in the span of the features": min(x.constant_mode for x in found),
        "L_RR, not centred (R2R2)": max(x.redundancy for x in found),
        "L_Var, threshold 1": max(x.variance_hinge for x in found),
        "L_RR, centred": min(x.centred_redundancy for x in found),
        "lower bound of L_RR, centred": found[0].centred_bound,
    }
    return make_table(
        "compatibility",
        "Features with the constant mode: which penalties can be zero",
        ["quantity", "worst of all chains"],
        [[name, number_entry(x, f"{x:.4g}")] for name, x in worst.items()],
        [
            f"{DIM} features that span the top {DIM} eigenvectors, rotated so that each has the "
            "same part of the constant mode. R2R2's terms are both 0 there, up to rounding. The "
            "centred term cannot be: centring leaves such features in k - 1 directions, so they "
            "must be correlated. The lower bound holds for all features that span the constant "
            "mode and whose hinge is 0 (ours, proved in r2r2/theory/lemmas.py)."
        ],
    )


MEASURES = {
    "trace": "trace objective",
    "angle": "largest angle to the top-k, degrees",
    "constant_mode": "constant mode in the span",
    "constant_share": "constant mode's share of Z",
    "effective_rank": "effective rank",
    "deviation": "smallest feature deviation",
}


def variant_table(outcomes: Sequence[Outcome], chain: str) -> Table:
    """Return what each variant of the loss leads to on a chain."""
    shown = [
        x for x in outcomes if x.setting.experiment == "variants" and x.setting.chain.name == chain
    ]
    rows: list[list[Entry | str]] = [
        [x.setting.line, *(range_entry(x.last(name)) for name in MEASURES)] for x in shown
    ]
    return make_table(
        "variants",
        f"Where the flows end, {chain}",
        ["loss", *MEASURES.values()],
        rows,
        [
            f"Medians over {STARTS} random starts; in brackets the range, if it is not rounding. "
            f"The top-{DIM} eigenspace has trace objective {top_trace(shown[0]):.4g}. "
            "A direction counts if its singular value is above 1 % of the largest."
        ],
    )


def range_entry(values: Floats) -> Entry:
    """Return the median of values, with their range if it is visible."""
    low, middle, high = (float(x) for x in (values.min(), np.median(values), values.max()))
    text = f"{middle:.3f}".rstrip("0").rstrip(".")
    if high - low > 0.01 * max(1.0, abs(middle)):
        text += f" [{low:.3g}, {high:.3g}]"
    return Entry(text, numbers={"median": middle, "low": low, "high": high})


def sweep_table(outcomes: Sequence[Outcome]) -> Table:
    """Return the range of the medians over the same sweeps on every chain."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for x in outcomes:
        points = ex.FEW_THRESHOLDS if x.setting.experiment == ex.THRESHOLD else ex.FEW_WEIGHTS
        if x.setting.experiment in ex.SWEEPS and x.setting.x in points:
            groups.setdefault((x.setting.chain.name, x.setting.line), []).append(x)
    lines = (ex.NON_CENTRED_LINE, ex.CENTRED_LINE)
    rows: list[list[Entry | str]] = []
    for chain in dict.fromkeys(name for name, _ in groups):
        entries: list[Entry | str] = []
        for swept in (groups[chain, line] for line in lines):
            shares = [float(np.median(x.last("constant_share"))) for x in swept]
            met = [float(np.median(weakest_feature(x))) for x in swept]
            entries += [span_entry(shares), number_entry(min(met), f"{min(met):.2f}")]
        rows.append([chain, *entries])
    return make_table(
        "sweeps",
        "Weights and threshold on every chain",
        ["chain", *(f"{name}, {x}" for x in lines for name in ("share", "weakest feature"))],
        rows,
        [
            "Each sweep changes both weights, one weight or v_th, as in the figures: weights "
            f"{ex.FEW_WEIGHTS[0]} to {ex.FEW_WEIGHTS[-1]:g}, v_th {ex.FEW_THRESHOLDS[0]} to "
            f"{ex.FEW_THRESHOLDS[-1]:g}. Share: the smallest and the largest share of the constant "
            "mode in all sweeps. Weakest feature: the smallest deviation of a feature over v_th, "
            "in the worst setting; 1 if the hinge is met. Each number is a median over "
            f"{STARTS} random starts."
        ],
    )


def weakest_feature(outcome: Outcome) -> Floats:
    """Return the smallest deviation of a feature over v_th at the end, at most 1, [starts]."""
    threshold = outcome.setting.variant.weights.variance_threshold
    met: Floats = np.minimum(1, outcome.last("deviation") / threshold)
    return met


def span_entry(values: Sequence[float]) -> Entry:
    """Return the entry of the smallest and the largest of some values."""
    low, high = min(values), max(values)
    return Entry(f"{low:.2f} to {high:.2f}", numbers={"low": low, "high": high})


def sphere_table() -> Table:
    """Return the sizes of R2R2's terms on the unit sphere for latent sizes."""
    rows: list[list[Entry | str]] = []
    for sizes in map(sphere_sizes, SPHERE_DIMS):
        numbers = (sizes.largest_deviation, sizes.least_hinge, sizes.hinge, sizes.gradient_ratio)
        rows.append([str(sizes.dim), *(number_entry(x, f"{x:.3g}") for x in numbers)])
    header = (
        *("latent size d", "largest deviation of all features", "least possible L_Var"),
        *("L_Var of random unit latents", "gradient of L_RR / gradient of L_Var"),
    )
    note = (
        "Unit latents, batch of 256, threshold 1. The largest deviation is sqrt(N / ((N - 1) d)), "
        "so a threshold of 1 is never met by all of them. The last column compares norms of the "
        "gradients along the sphere, on latents drawn evenly from it."
    )
    return make_table("sphere-sizes", "R2R2's terms on the unit sphere", header, rows, [note])
