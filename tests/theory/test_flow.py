"""What the gradient flows lead to: the argument of the paper, and its limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import symmetric

from r2r2 import R2R2, Representation
from r2r2.theory import experiments as ex
from r2r2.theory.chains import STATES, examples, grid_world, random_ergodic
from r2r2.theory.experiments import DIM, VARIANTS, hinge_push, sphere_sizes
from r2r2.theory.flow import Flow, Variant, coefficients, measure, random_start, simulate, velocity
from r2r2.theory.lemmas import top_eigenspace
from r2r2.theory.losses import redundancy, self_prediction, variance_hinge
from r2r2.theory.tables import top_trace

GRID = grid_world(3, 4)
TOP = top_eigenspace(GRID, DIM)
STARTS = [random_start(STATES, DIM, 0.5, np.random.default_rng(seed)) for seed in range(3)]


@pytest.fixture(scope="module")
def ends():
    """The measures of every variant on the grid world at the end, by its name."""
    flows = [Flow(variant, GRID, start) for variant in VARIANTS for start in STARTS]
    paths = simulate(flows, 300.0)
    found = {}
    for number, variant in enumerate(VARIANTS):
        z = paths.z[3 * number : 3 * number + 3]
        found[variant.name] = measure(z, GRID, TOP.basis)
    return found


def last(ends, name, field):
    return getattr(ends[name], field)[:, -1]


def test_with_stop_gradient_the_features_turn_to_the_top_eigenvectors(ends):
    assert (last(ends, ex.SPL, "angle") < 1e-3).all()
    best = (TOP.eigenvalues.real**2).sum()
    np.testing.assert_allclose(last(ends, ex.SPL, "trace"), best, rtol=1e-6)
    np.testing.assert_allclose(last(ends, ex.SPL, "constant_mode"), 1, atol=1e-6)
    # The flow keeps Phi^T Phi, so the constant mode has one of k equal shares.
    np.testing.assert_allclose(last(ends, ex.SPL, "constant_share"), 1 / DIM, atol=1e-3)


def test_the_trace_objective_never_falls_on_a_symmetric_chain(ends):
    assert np.diff(ends[ex.SPL].trace, axis=1).min() > -1e-6


def test_without_stop_gradient_it_collapses_to_the_constant(ends):
    assert (last(ends, ex.NO_STOP, "effective_rank") < 1.001).all()
    assert (last(ends, ex.NO_STOP, "constant_share") > 0.999).all()
    assert (last(ends, ex.NO_STOP, "deviation") < 1e-3).all()


def test_zero_centred_latents_lose_the_constant_mode(ends):
    assert (last(ends, ex.CENTRED_OUTPUT, "constant_mode") < 1e-12).all()
    assert (last(ends, ex.CENTRED_OUTPUT, "angle") > 89.99).all()
    # At best the next four eigenvectors.
    others = np.sort(np.linalg.eigvalsh(GRID) ** 2)[::-1][1 : DIM + 1].sum()
    assert (last(ends, ex.CENTRED_OUTPUT, "trace") < others + 1e-6).all()


def test_zero_centring_loses_one_direction_and_a_collapse_all_but_one(ends):
    angles = ends[ex.CENTRED_OUTPUT].angles[:, -1]
    np.testing.assert_allclose(angles, [[0, 0, 0, 90]] * 3, atol=1e-2)
    np.testing.assert_allclose(ends[ex.NO_STOP].angles[:, -1], [[0, 90, 90, 90]] * 3, atol=1e-2)
    for measures in ends.values():
        assert (np.diff(measures.angles, axis=-1) >= 0).all()
        np.testing.assert_array_equal(measures.angles[..., -1], measures.angle)


def test_r2r2_keeps_the_constant_mode_and_meets_the_hinge(ends):
    assert (last(ends, ex.FULL, "constant_mode") > 1 - 1e-6).all()
    assert (last(ends, ex.FULL, "constant_share") > 0.2).all()
    assert (last(ends, ex.FULL, "deviation") > 0.99).all()
    assert (last(ends, ex.FULL, "angle") < 0.1).all()


def test_a_centred_covariance_does_not_hold_the_share_of_the_constant_mode(ends):
    assert (last(ends, ex.ABLATION, "constant_share") < 0.1).all()
    assert (last(ends, ex.ABLATION, "constant_mode") > 0.99).all()  # but it stays in the span
    strong = Representation(lambda_rr=1.0, lambda_var=1.0, zero_centred=True)
    paths = simulate([Flow(Variant("", strong), GRID, STARTS[0])], 400.0)
    assert measure(paths.z[0, -1], GRID, TOP.basis).constant_share > 0.9


@settings(max_examples=40, deadline=None)
@given(symmetric(), st.integers(0, 2**32 - 1), st.data())
def test_the_velocity_of_spl_climbs_the_trace_objective(p, seed, data):
    k = data.draw(st.integers(1, len(p)))
    phi = random_start(len(p), k, len(p) ** -0.5, np.random.default_rng(seed))
    velocity = -self_prediction(p, phi).gradient
    np.testing.assert_allclose(phi.T @ velocity, 0, atol=1e-8)  # keeps Phi^T Phi
    t = phi.T @ p @ phi
    slope = 2 * np.sum(t * (velocity.T @ p @ phi + phi.T @ p @ velocity))
    assert slope > -1e-9


def test_the_hinge_alone_widens_features_at_a_known_rate():
    """A feature's deviation has slope n lambda_Var / (n - 1), so times are those of the flow."""
    for weight in (0.5, 3.0):
        weights = Representation(lambda_spl=0.0, lambda_var=weight, variance_threshold=1e3)
        paths = simulate([Flow(Variant("", weights), GRID, STARTS[0])], 40.0)
        deviations = paths.z[0].std(axis=-2, ddof=1)
        widened = weight * STATES / (STATES - 1) * paths.times[0, :, None]
        np.testing.assert_allclose(deviations, deviations[:1] + widened, rtol=1e-6)


def test_the_velocity_of_zero_centred_latents_is_centred():
    p = random_ergodic(STATES, np.random.default_rng(0))
    z = np.stack(STARTS) - np.stack(STARTS).mean(axis=1, keepdims=True)
    centred = next(variant for variant in VARIANTS if variant.name == ex.CENTRED_OUTPUT)
    moved = velocity(coefficients([Flow(centred, p, start) for start in z]), z)
    assert np.abs(moved).max() > 0.01
    np.testing.assert_allclose(moved.mean(axis=1), 0, atol=1e-12)


def test_on_a_chain_that_is_not_symmetric_the_trace_may_fall():
    p = random_ergodic(STATES, np.random.default_rng(0))
    paths = simulate([Flow(VARIANTS[0], p, start) for start in STARTS], 60.0)
    traces = measure(paths.z, p, top_eigenspace(p, DIM).basis).trace
    assert np.diff(traces, axis=1).min() < -1e-3


def test_negative_eigenvalues_can_keep_the_flow_from_the_top_eigenvectors():
    plain, lazy = (c.matrix for c in examples() if c.name in ("random symmetric", "lazy symmetric"))
    flows = [Flow(VARIANTS[0], p, start) for p in (plain, lazy) for start in STARTS]
    z = simulate(flows, 400.0).z[:, -1].reshape(2, 3, STATES, DIM)
    angles = [
        measure(of_chain, p, top_eigenspace(p, DIM).basis).angle
        for of_chain, p in zip(z, (plain, lazy), strict=True)
    ]
    assert angles[0].max() > 89
    assert angles[1].max() < 0.01


def test_the_trace_of_the_top_eigenspace_is_that_of_its_basis():
    """On a chain without orthogonal eigenvectors it exceeds the sum of squared eigenvalues."""
    chains = {chain.name: chain for chain in examples()}
    for name, normal in (("grid world", True), ("random ergodic", False)):
        chain = chains[name]
        space = top_eigenspace(chain.matrix, DIM)
        nothing = np.empty(0)
        setting = ex.Setting("variants", ex.SPL, 0.0, chain, VARIANTS[0])
        outcome = ex.Outcome(setting, nothing, None, nothing, space)
        inner = space.basis.T @ chain.matrix @ space.basis
        assert top_trace(outcome) == pytest.approx(np.trace(inner.T @ inner))
        squares = float((np.abs(space.eigenvalues) ** 2).sum())
        assert (top_trace(outcome) < squares + 1e-9) == normal


def test_stop_gradient_keeps_the_second_moment():
    z = simulate([Flow(VARIANTS[0], GRID, STARTS[0])], 100.0).z[0, -1]
    np.testing.assert_allclose(z.T @ z, STARTS[0].T @ STARTS[0], atol=2e-3)  # of 3; the step size


def test_half_the_step_has_a_sixteenth_of_the_error():
    weights = Representation(lambda_rr=0.01, lambda_var=0.01)
    flows = [Flow(Variant("", weights), GRID, STARTS[0])]
    ends = [simulate(flows, 6.0, step=0.4 / n).z[:, -1] for n in (1, 2, 4)]
    coarse, fine = (np.abs(z - ends[2]).max() for z in ends[:2])
    assert 8 < coarse / fine < 32


# The unit sphere


def sphere(threshold, weight=0.01):
    weights = Representation(lambda_rr=0.01, lambda_var=weight, variance_threshold=threshold)
    return Variant("", weights, on_sphere=True)


def test_on_the_sphere_the_velocity_is_tangential():
    z = np.stack(STARTS) / np.linalg.norm(np.stack(STARTS), axis=-1, keepdims=True)
    moved = velocity(coefficients([Flow(sphere(1.0), GRID, start) for start in z]), z)
    assert np.abs(moved).max() > 0.01
    np.testing.assert_allclose((moved * z).sum(axis=-1), 0, atol=1e-12)


def test_on_the_sphere_the_paper_threshold_drives_the_constant_mode_out():
    thresholds = (0.75 / DIM**0.5, 1.0, 9.0)
    flows = [Flow(sphere(t), GRID, start) for t in thresholds for start in STARTS]
    paths = simulate(flows, ex.SPHERE_END, step=0.2)
    np.testing.assert_allclose(np.linalg.norm(paths.z, axis=-1), 1, atol=1e-12)
    share = measure(paths.z[:, -1], GRID, TOP.basis).constant_share.reshape(3, -1)
    assert (share[0] > 0.15).all()
    # Where SciPy's LSODA ends, with a tolerance of 1e-9 and its own velocity.
    np.testing.assert_allclose(share[1], [0.0482, 0.0099, 0.0570], atol=5e-4)
    # Above the largest deviation the threshold has no effect at all.
    np.testing.assert_array_equal(paths.z[3:6], paths.z[6:9])
    whole = hinge_push(paths.z[3:6], sphere(1.0)._replace(on_sphere=False))
    np.testing.assert_allclose(whole, whole[0, 0])  # the gradient itself never changes its norm
    along = hinge_push(paths.z[3:6], sphere(1.0))
    assert (along[:, -1] < 0.5 * along.max(axis=1)).all()  # but it turns away from the sphere


def test_on_the_sphere_the_redundancy_term_works_against_the_hinge():
    flows = []
    for weight in (0.001, 3.0):
        weights = Representation(lambda_rr=weight, lambda_var=0.01)
        variant = Variant("", weights, on_sphere=True)
        flows += [Flow(variant, GRID, start) for start in STARTS]
    last = measure(simulate(flows, ex.SPHERE_END, step=0.2).z[:, -1], GRID, TOP.basis)
    share = last.constant_share.reshape(2, -1)
    assert share[0].max() < 0.05
    assert share[1].min() > 0.1


def test_the_push_on_the_sphere_is_what_the_hinge_adds_to_the_velocity():
    z = np.stack(STARTS) / np.linalg.norm(np.stack(STARTS), axis=-1, keepdims=True)
    with_hinge, without = (
        velocity(coefficients([Flow(sphere(1.0, weight), GRID, start) for start in z]), z)
        for weight in (0.02, 0.0)
    )
    added = np.linalg.norm(with_hinge - without, axis=(-2, -1))
    np.testing.assert_allclose(hinge_push(z, sphere(1.0, 0.02)), added, rtol=1e-9)


def test_a_balanced_sphere_has_no_push_left():
    z = np.concatenate([np.eye(3), -np.eye(3)])  # mean 0, equal deviations
    push = hinge_push(z, sphere(1.0))
    np.testing.assert_allclose(push, 0, atol=1e-15)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(2, 64), st.integers(0, 2**32 - 1))
def test_deviations_on_the_sphere_are_bounded(dim, batch, seed):
    z = np.random.default_rng(seed).normal(0.5, 1, (batch, dim))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    largest = np.sqrt(batch / ((batch - 1) * dim))
    assert z.std(axis=0, ddof=1).mean() <= largest * (1 + 1e-9)
    assert variance_hinge(z, 1.0).value >= 1 - largest - 1e-9


def test_sizes_on_the_sphere_are_those_of_simbav2_spl():
    sizes = sphere_sizes(128)
    assert sizes.least_hinge == pytest.approx(0.911, abs=1e-3)
    assert sizes.least_hinge <= sizes.hinge < 0.93
    # Recomputed from moves along the sphere: the slope of a term is that of scaled latents.
    rng = np.random.default_rng(128)
    z = rng.normal(size=(256, 128))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    terms = redundancy(z).gradient, variance_hinge(z).gradient
    norms = [np.sqrt(((t**2).sum(axis=1) - (t * z).sum(axis=1) ** 2).sum()) for t in terms]
    assert sizes.gradient_ratio == pytest.approx(norms[0] / norms[1])
    assert 1e-4 < sizes.gradient_ratio < 1e-3


def test_progress_is_reported_at_every_step():
    shares = []
    simulate([Flow(VARIANTS[0], GRID, STARTS[0])], 20.0, shares.append)
    np.testing.assert_allclose(np.diff([0, *shares]), 1 / 50)
    assert shares[-1] == 1


def test_experiments_cover_every_chain_variant_and_sweep():
    settings = ex.settings(examples())
    pairs = {(x.chain.name, x.line) for x in settings if x.experiment == "variants"}
    assert len(pairs) == len(examples()) * len(VARIANTS)
    swept = {x.experiment for x in settings}
    assert {ex.BOTH, ex.RR_ONLY, ex.VAR_ONLY, ex.THRESHOLD, ex.SPHERE} <= swept
    default = [x for x in settings if x.variant.weights == R2R2 and x.experiment == ex.BOTH]
    assert [x.x for x in default] == [0.01] * len(examples())
    for chain in examples():
        for name in ex.SWEEPS:
            points = {
                x.line for x in settings if x.chain.name == chain.name and x.experiment == name
            }
            assert points == {ex.NON_CENTRED_LINE, ex.CENTRED_LINE}
    on_sphere = [x for x in settings if x.experiment in (ex.SPHERE, ex.SPHERE_RR)]
    assert all(x.variant.on_sphere for x in on_sphere)
    assert {x.variant.weights.lambda_rr for x in on_sphere} == set(ex.WEIGHTS)
