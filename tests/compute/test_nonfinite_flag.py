"""A loss that is not finite: who is told of, and in which batch it came first."""

import jax
import jax.numpy as jnp
import pytest

from r2r2.agents.base import Metric
from r2r2.compute.update import NonFiniteFlag, watched

SILENT = NonFiniteFlag(jnp.zeros((), dtype=bool), jnp.zeros(2, dtype=int))


def metrics(**totals):
    return {k: Metric(jnp.asarray(x), jnp.ones(())) for k, x in totals.items()}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("wrong", [jnp.nan, jnp.inf, -jnp.inf])
def test_the_first_batch_stands(wrap, wrong):
    alarm = wrap(watched)(SILENT, metrics(critic=1.0, actor=-2.0), jnp.array([1, 2]))
    assert not alarm.raised
    alarm = wrap(watched)(alarm, metrics(critic=1.0, actor=wrong), jnp.array([3, 4]))
    assert alarm.raised
    for later in (wrong, 1.0):
        rows = jnp.array([5, 6])
        alarm = wrap(watched)(alarm, metrics(critic=later, actor=1.0), rows)
        assert alarm.raised
        assert alarm.batch.tolist() == [3, 4]


def test_infinities_do_not_cancel():
    totals = metrics(critic=jnp.inf, actor=-jnp.inf)
    assert watched(SILENT, totals, jnp.array([1, 2])).raised


def test_an_alarm_is_its_members_alone():
    alarms = jax.tree.map(lambda x: jnp.stack([x, x]), SILENT)
    losses = {"loss": Metric(jnp.array([1.0, jnp.nan]), jnp.ones(2))}
    rows = jnp.array([[1, 2], [3, 4]])
    found = jax.vmap(watched)(alarms, losses, rows)
    assert found.raised.tolist() == [False, True]
    assert found.batch.tolist() == [[0, 0], [3, 4]]
