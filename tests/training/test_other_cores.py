"""Evaluations that are resumed with another number of parallel episodes."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.envs.spec import Member
from r2r2.envs.vector.pool import EnvPool
from r2r2.envs.vector.step_types import EnvFactory, EnvSlot
from r2r2.training import evaluation as evaluate
from r2r2.training.checkpointing import _restore_envs
from r2r2.training.eval_scheduler import EvalScheduler
from r2r2.training.evaluation import EvalPolicies, eval_slots
from r2r2.training.rollout import Rollout
from small_policies import linear_actors

MEMBERS = [Member("Pendulum-v1", 0), Member("Pendulum-v1", 1)]
FACTORIES = [EnvFactory("Pendulum-v1", 1)] * 2
CONFIG = types.SimpleNamespace(
    eval_every=10,
    eval_average=1,
    eval_episodes=4,
    steps=100,
    agent=types.SimpleNamespace(discount=0.9),
)
POLICIES = jnp.array([[[0.1], [0.2], [0.3]], [[0.3], [0.1], [-0.2]]])


class State:
    """What a checkpoint needs of a run whose members are evaluated."""

    def __init__(self, monkeypatch, cores, workers):
        monkeypatch.setattr(evaluate, "available_cores", lambda: cores)
        monkeypatch.setattr(evaluate, "SLOTS_PER_CORE", 4)
        pairs = zip(MEMBERS, FACTORIES, strict=True)
        places = [EnvSlot(member, factory, "training") for member, factory in pairs]
        places += eval_slots(MEMBERS, FACTORIES, 4)
        self.pool = EnvPool(places, workers, actors=linear_actors([0, 1]))
        self.resteps, self.values, self.config = {}, {}, CONFIG
        journal = types.SimpleNamespace(evaluation=self.record, event=self.log_value)
        journal.best_mean, journal.restore_best_weights = lambda _: np.inf, lambda _: None
        self.evals = EvalScheduler(CONFIG, MEMBERS, self.pool, journal, shared_env=False)
        self.members, self.rollout = MEMBERS, Rollout(MEMBERS, self.pool.spec)

    def running_seeds(self):
        seeds = {member: self.rollout.seed(member) for member in (0, 1)}
        return seeds | self.evals.running_seeds()

    def first(self, member):
        return self.evals.first_obs(member)

    def record(self, member, counts, resteps, cut):
        self.resteps[member] = resteps

    def log_value(self, event, member, counts, fields):
        assert event == "value"
        self.values[member] = fields

    def play(self, steps=10**6):
        for _ in range(steps):
            if not self.evals.busy:
                break
            self.evals.play()
            self.evals.take(wait=True)
        return self.resteps


# Workers have played steps that are not recorded yet.
@pytest.mark.parametrize(("cores", "workers"), [(1, 0), (2, 0), (4, 0), (2, 2), (4, 2)])
def test_resumed_evaluations_have_the_same_result_on_other_cores(monkeypatch, cores, workers):
    first = State(monkeypatch, cores=2, workers=workers)
    first.evals.due = {0: (10, 0), 1: (10, 0)}
    first.evals.start(EvalPolicies(POLICIES))
    first.pool.try_reset([0, 1], [first.rollout.seed(member) for member in (0, 1)])
    for member in (0, 1):
        first.evals.value_bias.begin(member, np.arange(len(first.first(member))))
    first.play(steps=50)
    saved, running = first.evals.saved(), first.running_seeds()
    states = dict(zip(running, first.pool.save_states(list(running)), strict=True))

    second = State(monkeypatch, cores, workers)
    assert second.evals.restore(saved) == ()
    assert _restore_envs(second, saved.notes["width"], states) == []
    expected, returns = first.play(), second.play()
    for member in (0, 1):
        np.testing.assert_array_equal(returns[member], expected[member])
    assert first.values.keys() == {0, 1}
    assert second.values == first.values
    for state in (first, second):
        state.pool.close()
