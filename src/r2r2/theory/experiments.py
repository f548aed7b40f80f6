"""The flows of `r2r2 theory`: variants on every chain, and sweeps of threshold and weights."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from r2r2.config.common import R2R2, Representation
from r2r2.theory.chains import STATES, Chain
from r2r2.theory.flow import (
    STEP,
    Flow,
    Measures,
    Variant,
    measure,
    random_start,
    simulate,
    tangential,
)
from r2r2.theory.lemmas import Eigenspace, top_eigenspace
from r2r2.theory.losses import Floats, redundancy, variance_hinge

DIM = 4  # features, so k = 4 eigenvectors
START_SIZE = 0.5  # root mean square of a feature at the start, below the hinge's threshold of 1
STARTS = 5
END = 500.0  # time; the slowest rate of SPL's flow on the grid world is 0.11
# On the sphere Z^T Z is not kept. After a longer time some starts have almost lost a direction; the
# optimal latent model is then so badly conditioned that explicit steps do not follow the flow.
SPHERE_END = 100.0
# Steps that change no documented share by more than 0.003 when halved, except on the sphere with
# lambda_Var = 1: there a hinge that closes makes the velocity jump by more.
SPHERE_STEP = STEP / 8
VICREG_STEP = STEP / 4
WEIGHTS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
THRESHOLDS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0)
FEW_WEIGHTS = (0.01, 0.1, 1.0)  # of the sweeps on the other chains
FEW_THRESHOLDS = (0.1, 1.0, 3.0)
SPHERE_WEIGHTS = (0.001, 0.01, 0.1, 1.0)
# Thresholds on the sphere in units of 1/sqrt(d); the paper's 1 is sqrt(d) of them, here 2.
SPHERE_THRESHOLDS = (0.25, 0.5, 0.75, 1.0, 1.25, 2.0, 4.0)
PAPER_WEIGHT = R2R2.lambda_var

SPL = "SPL with stop-gradient"
NO_STOP = "without stop-gradient"
CENTRED_OUTPUT = "zero-centred latents"
VICREG = "centred covariance, VICReg's weights"
ABLATION = "centred covariance, R2R2's weights"
FULL = "R2R2"
# VICReg weights invariance, variance and covariance by 25, 25 and 1, and divides the sum of squared
# covariances by d instead of d (d - 1). The 1e-4 under its root is left out.
VICREG_WEIGHTS = Representation(lambda_rr=(DIM - 1) / 25, lambda_var=1.0, zero_centred=True)
ABLATION_WEIGHTS = Representation(lambda_rr=0.01, lambda_var=0.01, zero_centred=True)
VARIANTS = (
    Variant(SPL, Representation()),
    Variant(NO_STOP, Representation(), stop_gradient=False),
    Variant(CENTRED_OUTPUT, Representation(), centred_output=True),
    Variant(VICREG, VICREG_WEIGHTS),
    Variant(ABLATION, ABLATION_WEIGHTS),
    Variant(FULL, R2R2),
)


class Setting(NamedTuple):
    """One group of flows that differ by their random starts only."""

    experiment: str  # "variants", "both weights", ... or "sphere"
    line: str  # the line of a chart that it belongs to
    x: float  # its place on that line
    chain: Chain
    variant: Variant


class Outcome(NamedTuple):
    """What the flows of a setting did over time."""

    setting: Setting
    times: Floats  # [records]
    measures: Measures  # of [starts, records]
    push: Floats  # norm of the hinge's part of the velocity, [starts, records]
    eigenspace: Eigenspace  # top-k of the chain

    def last(self, name: str) -> Floats:
        """Return a measure at the end, [starts]."""
        values: Floats = getattr(self.measures, name)[:, -1]
        return values


BOTH, RR_ONLY, VAR_ONLY, THRESHOLD = "both weights", "lambda_RR", "lambda_Var", "v_th"
SWEEPS = (BOTH, RR_ONLY, VAR_ONLY, THRESHOLD)
SPHERE, SPHERE_BASE, SPHERE_RR = "sphere", "sphere, no hinge", "sphere, lambda_RR"
NO_HINGE, PAPER_HINGE, MET_HINGE = "no hinge", "v_th = 1 (the paper's)", "v_th = 0.75/sqrt(d)"
NON_CENTRED_LINE, CENTRED_LINE = "not centred (R2R2)", "centred (VICReg)"


def settings(chains: Sequence[Chain]) -> list[Setting]:
    """Return all settings; sweeps are finest on the first chain, the sphere's are on it only."""
    first = chains[0]
    found = [Setting("variants", v.name, 0.0, c, v) for c in chains for v in VARIANTS]
    for chain in chains:
        fine = chain is first
        for line, centred in ((NON_CENTRED_LINE, False), (CENTRED_LINE, True)):
            found += _sweeps(chain, line, centred, fine)
    return found + _sphere(first) + _sphere_redundancy(first)


def _sweeps(chain: Chain, line: str, centred: bool, fine: bool) -> list[Setting]:
    points: list[tuple[str, float, Representation]] = []
    for w in WEIGHTS if fine else FEW_WEIGHTS:
        points += [
            (BOTH, w, Representation(lambda_rr=w, lambda_var=w, zero_centred=centred)),
            (RR_ONLY, w, Representation(lambda_rr=w, lambda_var=0.01, zero_centred=centred)),
            (VAR_ONLY, w, Representation(lambda_rr=0.01, lambda_var=w, zero_centred=centred)),
        ]
    for threshold in THRESHOLDS if fine else FEW_THRESHOLDS:
        weights = Representation(
            lambda_rr=0.01, lambda_var=0.01, variance_threshold=threshold, zero_centred=centred
        )
        points.append((THRESHOLD, threshold, weights))
    return [Setting(name, line, x, chain, Variant(line, w)) for name, x, w in points]


def _sphere(chain: Chain) -> list[Setting]:
    none = Variant(NO_HINGE, Representation(lambda_rr=0.01), on_sphere=True)
    found = [Setting(SPHERE_BASE, none.name, 0.0, chain, none)]
    for weight in SPHERE_WEIGHTS:
        line = f"lambda_Var = {weight:g}"
        for factor in SPHERE_THRESHOLDS:
            weights = Representation(
                lambda_rr=0.01, lambda_var=weight, variance_threshold=factor / DIM**0.5
            )
            variant = Variant(line, weights, on_sphere=True)
            found.append(Setting(SPHERE, line, factor, chain, variant))
    return found


def _sphere_redundancy(chain: Chain) -> list[Setting]:
    """Return a sweep of lambda_RR on the sphere, with three hinges."""
    hinges = (
        (NO_HINGE, 0.0, 1.0),
        (PAPER_HINGE, PAPER_WEIGHT, 1.0),
        (MET_HINGE, PAPER_WEIGHT, 0.75 / DIM**0.5),
    )
    found = []
    for line, weight, threshold in hinges:
        for w in WEIGHTS:
            weights = Representation(lambda_rr=w, lambda_var=weight, variance_threshold=threshold)
            variant = Variant(line, weights, on_sphere=True)
            found.append(Setting(SPHERE_RR, line, w, chain, variant))
    return found


def run_experiments(
    chains: Sequence[Chain],
    on_progress: Callable[[float], None] = lambda _: None,
    end: float = END,
    starts: int = STARTS,
) -> list[Outcome]:
    """Simulate all settings, those of equal steps at once, and return what came of them."""
    todo = settings(chains)
    groups: dict[tuple[float, float], list[int]] = {}
    for number, setting in enumerate(todo):
        groups.setdefault(_end_and_step(setting, end), []).append(number)
    work = {key: len(members) * key[0] / key[1] for key, members in groups.items()}
    total, done = sum(work.values()), 0.0
    outcomes: dict[int, Outcome] = {}
    for key, members in groups.items():
        share, before = work[key] / total, done

        def report(x: float, share: float = share, before: float = before) -> None:
            on_progress(min(before + share * x, 1.0))

        results = _run([todo[n] for n in members], key, starts, report)
        outcomes.update(zip(members, results, strict=True))
        done += share
    return [outcomes[number] for number in range(len(todo))]


def _end_and_step(setting: Setting, end: float) -> tuple[float, float]:
    """Return the time at which the flows of a setting end, and their step."""
    if setting.variant.on_sphere:
        return min(end, SPHERE_END), SPHERE_STEP
    return end, VICREG_STEP if setting.variant.weights == VICREG_WEIGHTS else STEP


def _run(
    todo: Sequence[Setting],
    end_and_step: tuple[float, float],
    starts: int,
    on_progress: Callable[[float], None],
) -> list[Outcome]:
    """Simulate settings at once."""
    end, step = end_and_step
    first = [
        random_start(STATES, DIM, START_SIZE, np.random.default_rng(seed)) for seed in range(starts)
    ]
    flows = [Flow(x.variant, x.chain.matrix, start) for x in todo for start in first]
    paths = simulate(flows, end, on_progress, step)
    chains = {x.chain.name: x.chain.matrix for x in todo}
    spaces = {name: top_eigenspace(p, DIM) for name, p in chains.items()}
    outcomes = []
    for number, setting in enumerate(todo):
        own = slice(number * starts, (number + 1) * starts)
        z, space = paths.z[own], spaces[setting.chain.name]
        measures = measure(z, setting.chain.matrix, space.basis)
        push = hinge_push(z, setting.variant)
        outcomes.append(Outcome(setting, paths.times[own.start], measures, push, space))
    return outcomes


def hinge_push(z: Floats, variant: Variant) -> Floats:
    """Return the norm of the hinge's part of a flow's velocity for latents [..., n, d].

    On the sphere only the tangential part counts. The whole gradient of an open hinge has a norm
    that never changes; its tangential part ends when the mean latent is 0 and all features have
    the same deviation, because the gradient then points along the latents.

    Example:
        >>> z = np.array([[0.3, 0.0], [-0.3, 0.0], [0.0, 0.3], [0.0, -0.3]])
        >>> on = [Representation(lambda_var=1.0, variance_threshold=x) for x in (0.1, 1.0, 9.0)]
        >>> pushes = [float(hinge_push(z, Variant("", weights))) for weights in on]
        >>> pushes[0], pushes[1] == pushes[2] > 0  # open, it does not depend on the threshold
        (0.0, True)
        >>> float(hinge_push(z / 0.3, Variant("", on[2], on_sphere=True)).round(12))
        0.0
    """
    weights = variant.weights
    gradient = variance_hinge(z, weights.variance_threshold).gradient
    if variant.on_sphere:
        gradient = tangential(z, gradient)
    scale = weights.lambda_var * z.shape[-2] * z.shape[-1]
    norms: Floats = scale * np.sqrt((gradient**2).sum(axis=(-2, -1)))
    return norms


class SphereSizes(NamedTuple):
    """R2R2's terms on unit latents, drawn evenly from the sphere."""

    dim: int
    batch: int
    largest_deviation: float  # that all features can have at once
    least_hinge: float  # smallest possible L_Var with a threshold of 1
    hinge: float  # L_Var of the random latents
    gradient_ratio: float  # of L_RR's tangential gradient to that of L_Var


def sphere_sizes(dim: int, batch: int = 256) -> SphereSizes:
    r"""Return the sizes of R2R2's terms for a latent size, with a threshold of 1.

    The squared deviations sum to $N/(N-1) (1 - \|\bar z\|^2)$, so all of them are at most
    $\sqrt{N / ((N - 1) d)}$ at once, and only if the mean latent is 0.

    Example:
        >>> round(sphere_sizes(128).largest_deviation, 4)
        0.0886
    """
    z = np.random.default_rng(dim).normal(size=(batch, dim))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    rr, var = redundancy(z), variance_hinge(z, 1.0)
    largest = float(np.sqrt(batch / ((batch - 1) * dim)))
    of_rr, of_var = (np.linalg.norm(tangential(z, term.gradient)) for term in (rr, var))
    return SphereSizes(dim, batch, largest, 1 - largest, float(var.value), float(of_rr / of_var))
