"""A run that goes on where another number of evaluations is played at once."""

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

MEMBERS = [Member("Pendulum-v1", 0), Member("Pendulum-v1", 1)]
RECIPES = [EnvFactory("Pendulum-v1", 1)] * 2
CONFIG = types.SimpleNamespace(
    eval_every=10,
    eval_average=1,
    eval_episodes=4,
    steps=100,
    agent=types.SimpleNamespace(discount=0.9),
)
AGENT = types.SimpleNamespace(
    greedy=lambda policy, obs: jnp.tanh(obs @ policy[:, None])
)
POLICIES = jnp.array([[0.1, 0.2, 0.3], [0.3, 0.1, -0.2]])


class World:
    """What a checkpoint needs of a run whose members are under evaluation."""

    def __init__(self, monkeypatch, cores):
        monkeypatch.setattr(evaluate, "available_cores", lambda: cores)
        monkeypatch.setattr(evaluate, "SLOTS_PER_CORE", 4)
        pairs = zip(MEMBERS, RECIPES, strict=True)
        places = [EnvSlot(member, factory, "training") for member, factory in pairs]
        self.pool = EnvPool([*places, *eval_slots(MEMBERS, RECIPES, 4)], workers=0)
        self.found, self.values, self.config = {}, {}, CONFIG
        journal = types.SimpleNamespace(evaluation=self.book, event=self.note)
        self.evals = EvalScheduler(
            CONFIG, AGENT, MEMBERS, self.pool, journal, shared_env=False
        )
        self.members, self.rollout = MEMBERS, Rollout(MEMBERS, self.pool.spec)

    def running_seeds(self):
        seeds = {member: self.rollout.seed(member) for member in (0, 1)}
        return seeds | self.evals.running_seeds()

    def first(self, member):
        return self.evals.first_obs(member)

    def book(self, member, counts, returns):
        self.found[member] = returns

    def note(self, event, member, counts, fields):
        assert event == "value"
        self.values[member] = fields

    def play(self, turns=10**6):
        for _ in range(turns):
            if not self.evals.busy:
                break
            self.evals.record(self.pool.step(self.evals.request()))
        return self.found


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_evaluations_come_to_the_same_on_other_cores(monkeypatch, cores):
    whole = World(monkeypatch, cores=2)
    whole.evals.due = {0: (10, 0), 1: (10, 0)}
    whole.evals.start(EvalPolicies(POLICIES))
    whole.pool.try_reset([0, 1], [whole.rollout.seed(member) for member in (0, 1)])
    for member in (0, 1):
        whole.evals.value_bias.begin(member, np.arange(len(whole.first(member))))
    whole.play(turns=50)
    saved, running = whole.evals.saved(), whole.running_seeds()
    states = dict(zip(running, whole.pool.save_states(list(running)), strict=True))

    other = World(monkeypatch, cores)
    assert other.evals.restore(saved) == ()
    assert _restore_envs(other, saved.notes["width"], states) == []
    expected, found = whole.play(), other.play()
    for member in (0, 1):
        np.testing.assert_array_equal(found[member], expected[member])
    assert whole.values.keys() == {0, 1}
    assert other.values == whole.values
