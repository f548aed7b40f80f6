"""Non-finite metrics: which members have them, and in which batch they came first."""

import jax
import jax.numpy as jnp
import pytest

from r2r2.agents.base import Metric
from r2r2.compute.update import NonFiniteFlag, check_finite

CLEAR = NonFiniteFlag(jnp.zeros((), dtype=bool), jnp.zeros(2, dtype=int))


def metrics(**totals):
    return {k: Metric(jnp.asarray(x), jnp.ones(())) for k, x in totals.items()}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("wrong", [jnp.nan, jnp.inf, -jnp.inf])
def test_the_first_nonfinite_batch_is_kept(wrap, wrong):
    alarm = wrap(check_finite)(CLEAR, metrics(critic=1.0, actor=-2.0), jnp.array([1, 2]))
    assert not alarm.raised
    alarm = wrap(check_finite)(alarm, metrics(critic=1.0, actor=wrong), jnp.array([3, 4]))
    assert alarm.raised
    for later in (wrong, 1.0):
        rows = jnp.array([5, 6])
        alarm = wrap(check_finite)(alarm, metrics(critic=later, actor=1.0), rows)
        assert alarm.raised
        assert alarm.batch.tolist() == [3, 4]


def test_infinities_do_not_cancel():
    totals = metrics(critic=jnp.inf, actor=-jnp.inf)
    assert check_finite(CLEAR, totals, jnp.array([1, 2])).raised


def test_members_are_flagged_separately():
    alarms = jax.tree.map(lambda x: jnp.stack([x, x]), CLEAR)
    losses = {"loss": Metric(jnp.array([1.0, jnp.nan]), jnp.ones(2))}
    rows = jnp.array([[1, 2], [3, 4]])
    flags = jax.vmap(check_finite)(alarms, losses, rows)
    assert flags.raised.tolist() == [False, True]
    assert flags.batch.tolist() == [[0, 0], [3, 4]]
