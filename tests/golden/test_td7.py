"""TD7 with and without R2R2, update by update, against the original implementation.

The recorded random numbers are fed to the functions that training itself runs.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import (
    CHECKPOINTS,
    NETWORKS,
    TD7_FILES,
    digest,
    golden,
    hyper,
    initial_state,
    official,
    one_step_episodes,
    spec,
    td7_config,
    update_once,
)

from r2r2.agents.networks.layers import twin_values
from r2r2.agents.td7 import td7, value_target
from r2r2.compute import update as updates
from r2r2.replay import buffer as ring
from r2r2.replay import sum_tree

# golden/README.md, section 1.4: [rtol, atol].
SCALARS = {"narrow": (2e-5, 1e-5), "wide": (1e-4, 2e-4)}
VALUES = {"narrow": (2e-5, 1e-5), "wide": (1e-4, 5e-3)}
WEIGHTS = {"narrow": (5e-6, 1e-5), "wide": (5e-6, 1e-4)}  # after the first, the last


def recorded_replay(file) -> ring.Replay:
    """The recorded transitions; row 2 i is transition i."""
    seen = ring.Transition(
        action=jnp.asarray(file["buffer/action"]),
        reward=jnp.asarray(file["buffer/reward"][:, 0]),
        terminated=jnp.asarray(file["buffer/not_done"][:, 0] == 0),
        ended=jnp.ones(len(file["buffer/action"]), bool),
        next_obs=jnp.asarray(file["buffer/next_state"]),
        obs=jnp.asarray(file["buffer/state"]),
        lost=jnp.zeros(len(file["buffer/action"]), bool),
    )
    return one_step_episodes(spec(file), seen)


class Run:
    """Makes the recorded updates with our functions and checks their results."""

    def __init__(self, name: str, precision: str):
        self.file, self.precision = golden(name), precision
        self.size = "wide" if name.endswith("wide") else "narrow"
        self.config = td7_config(self.file)
        self.agent = td7(self.config, spec(self.file))
        replay = recorded_replay(self.file)
        state = initial_state(self.file)
        keys = jax.random.key(0)[None]
        states = jax.jit(partial(updates.initial_states, self.agent))(keys, 1)
        fleet = jax.jit(partial(updates.init, self.agent))(states, replay)
        learner = jax.tree.map(lambda x: x[0], fleet)
        self.learner = learner._replace(state=state)
        self.data = updates.Data(replay.rows)
        self.update = jax.jit(partial(update_once, self.agent))
        self.sync = jax.jit(partial(updates.sync, self.agent))

    def draws(self, i: int):
        uniforms = jnp.asarray(self.file["upd/uniform"][i], float)[:, None]
        return uniforms, jnp.asarray(self.file["upd/target_noise_raw"][i], float)

    def check(self, name: str, actual, bounds: tuple[float, float]) -> None:
        rtol, atol, key = *bounds, name
        # The table of all priorities is recorded in float32 alone.
        if self.precision == "float64" and name != "upd/priority_after":
            rtol, atol, key = 1e-9, 1e-9, f"f64/{name}"
        expected = self.file[key]
        if "upd/" in name:
            expected = expected[self.i]
        shaped = np.reshape(np.asarray(actual), expected.shape)
        np.testing.assert_allclose(shaped, expected, rtol=rtol, atol=atol, err_msg=name)

    def step(self, i: int) -> None:
        self.i = i
        self.check_values(*self.draws(i))
        zero = jax.tree.map(jnp.zeros_like, self.learner.metrics)
        before = self.learner._replace(metrics=zero)
        step = jnp.asarray(i + 1)
        self.learner = self.update(self.data, before, 0, self.draws(i), step)
        if (i + 1) % self.config.target_period == 0:
            self.learner = self.sync(self.learner)
        self.check_losses()
        self.check_priorities()

    def check_values(self, uniforms, noise) -> None:
        state, tree = self.learner.state, self.learner.priorities.tree
        index = sum_tree.sample(tree, uniforms)
        np.testing.assert_array_equal(index, 2 * self.file["upd/ind"][self.i])
        batch = ring.fetch(self.data.rows, 0, index)
        low, high = state.values.low, state.values.high
        self.check("upd/min_target_used", low, VALUES[self.size])
        self.check("upd/max_target_used", high, VALUES[self.size])
        zs = state.fixed_encoder.zs(batch.obs)
        zsa = state.fixed_encoder.zsa(zs, batch.action)
        q = twin_values(state.critic, batch.obs, batch.action, zsa, zs)
        target, _ = value_target(self.config, state, batch, noise)
        self.check("upd/Q", q.T, VALUES[self.size])
        self.check("upd/Q_target", target, VALUES[self.size])
        error = np.abs(q - np.asarray(target)[None])
        self.check("upd/td_error", error.T, VALUES[self.size])

    def check_losses(self) -> None:
        means = {
            name: np.asarray(metric.total) / np.asarray(metric.times)
            for name, metric in self.learner.metrics.items()
            if metric.times
        }
        names = {"upd/encoder_loss": "loss/encoder", "upd/critic_loss": "loss/critic"}
        if hyper(self.file, "lambda_rr"):
            names |= {
                "upd/encoder_mse": "representation/spl",
                "upd/L_RR": "representation/redundancy",
                "upd/L_Var": "representation/variance",
            }
        for recorded, ours in names.items():
            self.check(recorded, means[ours], SCALARS[self.size])
        actor = means.get("loss/actor", np.nan)
        self.check("upd/actor_loss", actor, SCALARS[self.size])

    def check_priorities(self) -> None:
        priorities, values = self.learner.priorities, self.learner.state.values
        bounds = VALUES[self.size]
        rows = len(self.file["buffer/state"])
        live, dead = priorities.tree.weights[: 2 * rows].reshape(rows, 2).T
        assert not dead.any()
        self.check("upd/priority_after", live, bounds)
        chosen = live[self.file["upd/ind"][self.i]]
        self.check("upd/batch_priority", chosen, bounds)
        self.check("upd/max_priority_after", priorities.highest, bounds)
        self.check("upd/running_min_after", values.seen_low, bounds)
        self.check("upd/running_max_after", values.seen_high, bounds)
        self.check("upd/min_target_after", values.low, bounds)
        self.check("upd/max_target_after", values.high, bounds)

    def check_weights(self, tag: str, atol: float) -> None:
        off, total = 0, 0
        for network in NETWORKS:
            for name, tensor in official(self.learner.state, network).items():
                full = f"{network}/{name}"
                if self.precision == "float64":
                    shown = digest(self.file, tensor, full)
                    self.check(f"{tag}/{full}", shown, (0, 0))
                    continue
                expected, shown = self.file.get(f"{tag}/{full}"), tensor
                if expected is None:
                    expected = self.file[f"digest/{tag}/{full}"][2:]
                    shown = digest(self.file, tensor, full)[2:]
                error = np.abs(shown - expected)
                np.testing.assert_array_less(error, 20 * atol)
                off, total = off + np.sum(error > atol), total + error.size
        # Adam's first steps are sign-like: where a gradient is rounding noise, a
        # float32 weight may go the other way.
        assert off <= 1e-4 * total


@pytest.mark.parametrize("name", TD7_FILES)
@pytest.mark.usefixtures("path")
def test_updates(name, precision):
    run = Run(name, precision)
    total = hyper(run.file, "T")
    first, last = WEIGHTS[run.size]
    check_actions(run, "init")
    run.step(0)
    run.check_weights("after1", first)
    for i in range(1, total):
        run.step(i)
    run.check_weights(f"after{total}", last)
    check_actions(run, f"after{total}")


def check_actions(run: Run, tag: str) -> None:
    state, file = run.learner.state, run.file
    obs = jnp.asarray(file["act/states"], float)
    bounds = (1e-4, 5e-3) if run.size == "wide" else (1e-5, 1e-5)
    acting, agent = run.agent.behavior_policy(state), run.agent
    run.check(f"act/{tag}", agent.greedy(acting, obs), bounds)
    if tag != "init":
        noise = jnp.asarray(file["act/explore_noise"], float)
        run.check(f"act/{tag}_explore", agent.explore(acting, obs, noise), bounds)
        kept = agent.greedy(agent.eval_policy(state), obs)
        run.check(f"act/{tag}_checkpoint", kept, bounds)


@pytest.mark.parametrize("name", [f for f in TD7_FILES if f.endswith("wide")])
def test_the_closed_form_start_is_the_recorded_one(name):
    file = golden(name)
    with jax.enable_x64(True):
        state = initial_state(file)
    for network in NETWORKS + CHECKPOINTS:
        for weight, tensor in official(state, network).items():
            recorded = file.get(f"digest/init/{network}/{weight}")
            if recorded is not None:
                shown = digest(file, tensor, f"{network}/{weight}")
                np.testing.assert_allclose(shown, recorded, rtol=1e-12, atol=1e-12)
                np.testing.assert_array_equal(shown[2:], recorded[2:])


@pytest.mark.parametrize("table", ["full", "partial"])
def test_lap_draws_the_recorded_rows(table, precision):
    names = ("priority", "size", "uniform", "index")
    part = {name: golden("td7")[f"lap_table/{table}/{name}"] for name in names}
    size, rows = int(part["size"]), len(part["priority"])
    tree = sum_tree.assign(
        sum_tree.init(rows, fanout=rows),
        jnp.arange(size),
        jnp.asarray(part["priority"][:size], float),
    )
    drawn = sum_tree.sample(tree, jnp.asarray(part["uniform"], float)[:, None])
    np.testing.assert_array_equal(drawn, part["index"])
