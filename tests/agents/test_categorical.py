import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2r2.agents.losses import categorical


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_project_distribution(wrap):
    # Atoms 0, 1, 2.  0.5 at 0.5: a quarter each to 0 and 1.  0.3 at 1: all to 1.
    # 0.2 at 1.75: 0.05 to 1, 0.15 to 2.  Sums: 0.25, 0.6, 0.15.
    mass, places = jnp.array([[0.5, 0.3, 0.2]]), jnp.array([[0.5, 1.0, 1.75]])
    shown = wrap(categorical.project_distribution)(mass, places, jnp.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(shown, [[0.25, 0.6, 0.15]], rtol=1e-6)


def test_mass_beyond_the_ends_is_at_the_ends():
    places = jnp.array([[-9.0, 9.0, 2.0]])
    shown = categorical.project_distribution(
        jnp.array([[0.5, 0.3, 0.2]]), places, jnp.array([0.0, 1.0, 2.0])
    )
    np.testing.assert_allclose(shown, [[0.5, 0.0, 0.5]], rtol=1e-6)


@settings(max_examples=50)
@given(st.lists(st.floats(-5, 5, width=32), min_size=7, max_size=7))
def test_projection_preserves_mass_and_mean(places):
    values = categorical.atoms(-5, 5, 7)
    mass = jnp.arange(1.0, 8.0)[None] / 28
    shown = categorical.project_distribution(mass, jnp.array([places]), values)
    assert (np.asarray(shown) >= -1e-7).all()
    np.testing.assert_allclose(jnp.sum(shown), 1, rtol=1e-5)
    mean = jnp.sum(shown[0] * values)
    np.testing.assert_allclose(mean, jnp.sum(mass[0] * jnp.array(places)), atol=1e-4)


def test_bellman_atoms():
    # Row 0: 1 + 0.5 (v - 2) at v = 0, 4: 0 and 2.  Row 1 terminated: its reward.
    shown = categorical.bellman_atoms(
        reward=jnp.array([1.0, 7.0]),
        terminated=jnp.array([False, True]),
        entropy=jnp.array([2.0, 2.0]),
        values=jnp.array([0.0, 4.0]),
        discount=0.5,
    )
    np.testing.assert_allclose(shown, [[0.0, 2.0], [7.0, 7.0]])


def test_min_by_mean_chooses_per_row_and_the_first_of_equals():
    values = jnp.array([0.0, 1.0])
    low, high = jnp.log(jnp.array([0.9, 0.1])), jnp.log(jnp.array([0.2, 0.8]))
    same = jnp.log(jnp.array([0.5, 0.5]))
    critics = jnp.stack([jnp.stack([low, high, same]), jnp.stack([high, low, same])])
    np.testing.assert_allclose(categorical.expectation(critics, values)[0], [0.1, 0.8, 0.5], 1e-6)
    np.testing.assert_allclose(
        categorical.min_by_mean(critics, values), jnp.stack([low, low, same])
    )


def test_min_by_mean_of_one_critic():
    log_probs = jax.nn.log_softmax(jnp.arange(6.0).reshape(1, 2, 3))
    smallest = categorical.min_by_mean(log_probs, jnp.arange(3.0))
    np.testing.assert_array_equal(smallest, log_probs[0])


def test_cross_entropy_sums_critics_and_averages_the_batch():
    # Row 0: -(0.5 log 0.5 + 0.5 log 0.5) = 0.693; row 1: -log 0.25 = 1.386.
    rows = jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.75]]))
    target = jnp.array([[0.5, 0.5], [1.0, 0.0]])
    twins = categorical.cross_entropy(jnp.stack([rows, rows]), target)
    np.testing.assert_allclose(twins, 2 * (np.log(2) + np.log(4)) / 2, rtol=1e-6)
    gradient = jax.grad(lambda t: categorical.cross_entropy(rows[None], t))(target)
    assert not gradient.any()


def test_projection_needs_no_matrix_of_bins():
    """A weight for every pair of atoms would take 101 times as much."""
    values, mass = categorical.atoms(-5, 5, 101), jnp.ones((256, 101))
    compiled = jax.jit(categorical.project_distribution).lower(mass, mass, values).compile()
    used = compiled.memory_analysis().temp_size_in_bytes
    assert used <= 12 * mass.nbytes
