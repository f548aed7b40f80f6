import jax
import jax.numpy as jnp
import numpy as np

from r2r2.agents.losses.value import lap_huber, lap_priority, td_target


def test_td_target_bootstraps_unless_terminated():
    # 1 + 0.9 * 10 = 10; a terminated row keeps its reward alone, even beside a NaN.
    target = td_target(
        jnp.array([1.0, 2.0]), jnp.array([False, True]), jnp.array([10.0, jnp.nan]), 0.9
    )
    np.testing.assert_allclose(target, [10.0, 2.0])


def test_lap_huber_sums_twins_and_averages_the_batch():
    # Row 1: 0.5^2 / 2 + 3 = 3.125.  Row 2: at 1 it is linear already, 1 + 0 = 1.
    # (3.125 + 1) / 2.  With the usual offset the first would be 2.625.
    error = jnp.array([[0.5, 1.0], [3.0, 0.0]])
    np.testing.assert_allclose(lap_huber(error, 1.0), 4.125 / 2)
    gradient = jax.grad(lambda e: lap_huber(e, 1.0))(error)
    np.testing.assert_allclose(gradient, [[0.25, 0.5], [0.5, 0.0]])


def test_lap_priority_takes_the_larger_twin_and_a_floor():
    # max(0.2, 0.5) is raised to 1; max(32, 2)^0.4 = 4.
    error = jnp.array([[0.2, 32.0], [0.5, 2.0]])
    np.testing.assert_allclose(lap_priority(error, 1.0, 0.4), [1.0, 4.0], rtol=1e-6)
