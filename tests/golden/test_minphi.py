"""Minimalist phi, update by update, against the original implementation.

The recorded random numbers are fed to the functions that training itself runs.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import (
    closed_form,
    digest,
    golden,
    hyper,
    one_step_episodes,
    recordings,
    spec,
    update_once,
)

from r2r2.agents.minphi import minphi
from r2r2.compute import update as updates
from r2r2.config.agent_configs import MinPhiConfig
from r2r2.replay.buffer import Transition

FILES = recordings("minimalist_phi", "minimalist_phi_phantom", "minimalist_phi_wide")
NETWORKS = {
    "encoder": ("encoder.0", "encoder.2", "encoder.4"),
    "model": ("model.0", "model.2", "model.4"),
    "critic": ("Q{}.0", "Q{}.1", "Q{}.3", "Q{}.5"),
    "actor": ("fc1", "fc2", "mean"),
}
TARGETS = {"encoder_target": "encoder", "critic_target": "critic"}
# golden/README.md, section 1.4: [rtol, atol], and atol after the first, the last.
SCALARS = {"narrow": (2e-5, 1e-5), "wide": (1e-4, 2e-4)}
WEIGHTS = {"narrow": (5e-6, 1e-5), "wide": (5e-6, 1e-4)}
METRICS = {
    "upd/alm_loss": "loss/encoder",
    "upd/zp_l2": "representation/spl",
    "upd/actor_term_phaseA": "loss/encoder_actor",
    "upd/critic_loss": "loss/critic",
    "upd/actor_loss": "loss/actor",
    "upd/grad_norm/phaseA_encoder_and_model": "gradient/phase_a",
    "upd/grad_norm/phaseB_encoder": "gradient/phase_b",
    "upd/grad_norm/critic": "gradient/critic",
    "upd/grad_norm/actor": "gradient/actor",
}


def config_of(file) -> MinPhiConfig:
    rate = hyper(file, "lr")
    return MinPhiConfig(
        width=hyper(file, "hidden"),
        model_width=hyper(file, "model_hidden"),
        latent=hyper(file, "latent"),
        batch_size=hyper(file, "batch_size"),
        discount=hyper(file, "gamma"),
        encoder_rate=rate,
        critic_rate=rate,
        actor_rate=rate,
        target_rate=hyper(file, "tau"),
        gradient_clip=hyper(file, "max_grad_norm"),
        prediction_weight=hyper(file, "zp_weight"),
        first_noise=hyper(file, "expl_start"),
        last_noise=hyper(file, "expl_end"),
        noise_steps=hyper(file, "expl_duration"),
        noise_clip=hyper(file, "stddev_clip"),
        action_margin=hyper(file, "clip_eps"),
        phantom_model_step=bool(hyper(file, "phantom")),
    )


def leaf_names(network: str) -> list[str]:
    """The release's names of a network's arrays, in the order of our tree's leaves."""
    names = NETWORKS[TARGETS.get(network, network)]
    return [f"{layer}.{kind}" for layer in names for kind in ("weight", "bias")]


def official(state, network: str) -> dict[str, np.ndarray]:
    """One of our networks under the release's names and in its layout, (out, in)."""
    tensors = {}
    leaves = jax.tree.leaves(getattr(state, network))
    for name, leaf in zip(leaf_names(network), leaves, strict=True):
        twins = np.asarray(leaf) if "{}" in name else np.asarray(leaf)[None]
        for number, tensor in enumerate(twins, start=1):
            tensors[name.format(number)] = tensor.T
    return tensors


def initial_state(file, agent):
    """The recorded start, in the floating type now in force."""
    # The phantom file starts where the narrow one does.
    source = file if "digest/init/actor/fc1.weight" in file else golden(FILES[0])
    key = jax.random.key(0)
    state = jax.jit(agent.init)(key, 1)
    loaded = {}
    for network in (*NETWORKS, *TARGETS):
        like = getattr(state, network)
        leaves = [
            jnp.asarray(_leaf(source, network, name, leaf.shape), float)
            for name, leaf in zip(leaf_names(network), jax.tree.leaves(like), strict=True)
        ]
        loaded[network] = jax.tree.unflatten(jax.tree.structure(like), leaves)
    return state._replace(**loaded)


def _leaf(file, network: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if "{}" not in name:
        return _tensor(file, f"{network}/{name}", shape[::-1]).T
    twins = [f"{network}/{name.format(number)}" for number in (1, 2)]
    return np.stack([_tensor(file, twin, shape[:0:-1]).T for twin in twins])


def _tensor(file, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if f"init/{name}" in file:
        return file[f"init/{name}"]
    u, norm = closed_form(name, shape), name.split("/")[1][2:].startswith(".1.")
    if name.endswith("bias"):
        return (0.1 * u).astype(np.float32)
    if norm:
        return (1 + 0.2 * u).astype(np.float32)
    output = ".5.weight" in name
    gain = 3 if name == "actor/mean.weight" else 6 if output else 1
    return (gain * np.sqrt(3 / shape[1]) * u).astype(np.float32)


class Run:
    """Makes the recorded updates with our functions and checks their results."""

    def __init__(self, name: str, precision: str):
        self.file, self.precision = golden(name), precision
        self.size = "wide" if name.endswith("wide") else "narrow"
        self.agent = minphi(config_of(self.file), spec(self.file), utd=1)
        seen = Transition(
            action=jnp.asarray(self.file["buffer/action"]),
            reward=jnp.asarray(self.file["buffer/reward"]),
            terminated=jnp.asarray(self.file["buffer/terminal"]),
            ended=jnp.ones(len(self.file["buffer/action"]), bool),
            next_obs=jnp.asarray(self.file["buffer/next_observation"]),
            obs=jnp.asarray(self.file["buffer/observation"]),
            lost=jnp.zeros(len(self.file["buffer/action"]), bool),
        )
        replay = one_step_episodes(spec(self.file), seen)
        keys = jax.random.key(0)[None]
        states = jax.jit(partial(updates.initial_states, self.agent))(keys, 1)
        fleet = jax.jit(partial(updates.init, self.agent))(states, replay)
        learner = jax.tree.map(lambda x: x[0], fleet)
        self.learner = learner._replace(state=initial_state(self.file, self.agent))
        self.data = updates.Data(replay.rows)
        self.update = jax.jit(partial(update_once, self.agent))

    def draws(self, i: int):
        chosen = np.concatenate([self.file[f"upd/ind{batch}"][i] for batch in (1, 2)])
        # All rows are equally likely: a draw in the middle of a row's share.
        uniforms = (chosen + 0.5) / len(self.file["buffer/reward"])
        names = ("eps_model", "eps_target", "eps_actor")
        noise = np.stack([self.file[f"upd/{name}"][i] for name in names])
        return jnp.asarray(uniforms, float)[:, None], jnp.asarray(noise, float)

    def check(self, name: str, actual, bounds, exact: float = 1e-9) -> None:
        rtol, atol, expected = *bounds, self.file[name] if name in self.file else None
        if self.precision == "float64":
            rtol, atol, expected = exact, exact, self.file[f"f64/{name}"]
        if "upd/" in name:
            expected = expected[self.i]
        shaped = np.reshape(np.asarray(actual), expected.shape)
        np.testing.assert_allclose(shaped, expected, rtol=rtol, atol=atol, err_msg=name)

    def step(self, i: int) -> None:
        self.i = i
        # The recorded steps jump, to reach other parts of the noise's schedule.
        made = jnp.asarray(int(self.file["upd/step"][i]) - 1)
        self.learner = self.learner._replace(
            metrics=jax.tree.map(jnp.zeros_like, self.learner.metrics),
            state=self.learner.state._replace(updates=made),
        )
        step = jnp.asarray(i + 1)
        self.learner = self.update(self.data, self.learner, 0, self.draws(i), step)
        for recorded, ours in METRICS.items():
            metric = self.learner.metrics[ours]
            assert metric.times == 1
            self.check(recorded, metric.total, SCALARS[self.size], exact=1e-10)

    def check_weights(self, tag: str, atol: float) -> None:
        off, total = 0, 0
        for network in (*NETWORKS, *TARGETS):
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


@pytest.mark.parametrize("name", FILES)
@pytest.mark.usefixtures("path")
def test_updates(name, precision):
    run = Run(name, precision)
    total = hyper(run.file, "T")
    first, last = WEIGHTS[run.size]
    check_actions(run, "init_step0", 0)
    run.step(0)
    run.check_weights("after1", first)
    for i in range(1, total):
        run.step(i)
    run.check_weights(f"after{total}", last)
    check_actions(run, f"after{total}_step150000", 150_000)
    for network in ("encoder", "model"):
        counts = getattr(run.learner.state, f"{network}_adam")[0].count
        assert counts == run.file[f"upd/adam_steps_{network}"]


def check_actions(run: Run, tag: str, updates_made: int) -> None:
    state, file, agent = run.learner.state, run.file, run.agent
    obs = jnp.asarray(file["act/states"], float)
    noise = jnp.asarray(file["act/eps"], float)
    policy = agent.behavior_policy(state._replace(updates=jnp.asarray(updates_made)))
    bounds = (1e-4, 5e-4) if run.size == "wide" else (1e-5, 1e-5)
    run.check(f"act/{tag}_train", agent.explore(policy, obs, noise), bounds)
    run.check(f"act/{tag}_eval", agent.greedy(agent.eval_policy(state), obs), bounds)


def test_the_closed_form_start_is_the_recorded_one():
    file = golden("minimalist_phi_wide")
    agent = minphi(config_of(file), spec(file), utd=1)
    with jax.enable_x64(True):
        state = initial_state(file, agent)
    for network in (*NETWORKS, *TARGETS):
        for weight, tensor in official(state, network).items():
            recorded = file[f"digest/init/{network}/{weight}"]
            shown = digest(file, tensor, f"{network}/{weight}")
            np.testing.assert_allclose(shown, recorded, rtol=1e-12, atol=1e-12)
            np.testing.assert_array_equal(shown[2:], recorded[2:])
