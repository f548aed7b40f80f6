"""SimbaV2, SimbaV2-SPL and R2R2 on it, update by update, against the release.

The recorded random numbers are fed to the functions that training itself runs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import digest, hyper
from simbav2_fixtures import FILES, Recording, base_of

from r2r2.agents.losses.categorical import atoms, expectation
from r2r2.agents.losses.policy import tanh_gaussian
from r2r2.agents.losses.representation import redundancy, self_prediction, variance_hinge
from r2r2.agents.networks.simbav2 import View
from r2r2.agents.simbav2_spl import latent_view

# golden/README.md, section 1.4: [rtol, atol].
SCALARS = {False: (2e-5, 1e-5), True: (1e-4, 2e-4)}
WEIGHTS = {False: (5e-6, 1e-5), True: (5e-6, 1e-4)}  # after the first, the last
METRICS = {
    "actor/loss": "loss/actor",
    "actor/entropy": "policy/entropy",
    "critic/loss": "loss/critic",
    "temperature/loss": "loss/temperature",
    "temperature/value": "policy/temperature",
    "encoder/loss": "loss/encoder",
    "L_SPL": "representation/spl",
    "L_RR": "representation/redundancy",
    "L_Var": "representation/variance",
}


class Run:
    """Makes the recorded updates with our functions and checks their results."""

    def __init__(self, name: str, precision: str):
        self.recording, self.precision = Recording(name), precision
        self.file = self.recording.file
        self.state = self.recording.initial_state()
        self.update = jax.jit(self.recording.agent.update)

    def check(self, name: str, actual, at: int | None = None, tight=1e-9) -> None:
        rtol, atol = SCALARS[self.recording.wide]
        key = name
        if self.precision == "float64" and f"f64/{name}" in self.file:
            rtol, atol, key = tight, tight, f"f64/{name}"
            assert np.asarray(actual).dtype == np.float64
        expected = self.file[key] if at is None else self.file[key][at]
        shaped = np.reshape(np.asarray(actual), expected.shape)
        np.testing.assert_allclose(shaped, expected, rtol=rtol, atol=atol, err_msg=name)

    def step(self, i: int) -> None:
        batch, noise = self.recording.batch(i), self.recording.noise(i)
        self.state, out = self.update(self.state, batch, noise, jnp.asarray(i + 1))
        assert out.priorities is None
        for recorded, ours in METRICS.items():
            if f"upd/{recorded}" in self.file:
                metric = out.metrics[ours]
                assert metric.times == 1
                self.check(f"upd/{recorded}", metric.total, at=i, tight=1e-10)
        temperature = jnp.exp(base_of(self.state).log_temperature)
        self.check("upd/temperature_after", temperature, at=i)

    def check_weights(self, tag: str, atol: float) -> None:
        weights = self.recording.official(self.state)
        recorded = {k.removeprefix("idx/") for k in self.file if k.startswith("idx/")}
        assert set(weights) == recorded
        if self.precision == "float64":
            for name, tensor in weights.items():
                self.check(f"{tag}/{name}", digest(self.file, tensor, name))
            return
        errors = np.concatenate([self.error(tag, *pair) for pair in weights.items()])
        assert errors.max() < 20 * atol
        # Adam's first steps are sign-like: where a gradient is rounding noise, a
        # float32 weight may go the other way.
        assert np.mean(errors > atol) <= 1e-4

    def error(self, tag: str, name: str, tensor: np.ndarray) -> np.ndarray:
        """How far a tensor, or the sample of it that is recorded, is off."""
        if f"{tag}/{name}" in self.file:
            return np.abs(tensor - self.file[f"{tag}/{name}"]).reshape(-1)
        sample = digest(self.file, tensor, name) - self.file[f"digest/{tag}/{name}"]
        return np.abs(sample[2:])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.usefixtures("path")
def test_updates(name, precision):
    run = Run(name, precision)
    total = hyper(run.file, "T")
    first, last = WEIGHTS[run.recording.wide]
    run.step(0)
    run.check_weights("after1", first)
    for i in range(1, total):
        run.step(i)
    run.check_weights(f"after{total}", last)


@pytest.mark.parametrize("name", FILES)
def test_networks_before_the_first_update(name, precision):
    run = Run(name, precision)
    recording, state = run.recording, run.state
    batch, noise = recording.batch(0), recording.noise(0)[0]
    base, agent = base_of(state), recording.agent
    acting = agent.behavior_policy(state)
    gaussian = acting(batch.obs)
    run.check("fwd/actor/mean", gaussian.mean)
    run.check("fwd/actor/log_std", gaussian.log_std)
    run.check("fwd/actor/std", jnp.exp(gaussian.log_std))
    run.check("fwd/actor/sample_action", agent.explore(acting, batch.obs, noise))
    run.check("fwd/actor/sample_log_prob", tanh_gaussian(*gaussian, noise)[1])
    greedy = agent.greedy(agent.eval_policy(state), batch.obs)
    run.check("fwd/actor/eval_action", greedy)
    online = target = View(batch.obs)
    if recording.spl:
        z, z_target = state.encoder(batch.obs), state.encoder_target(batch.obs)
        online = latent_view(batch.obs, z, state.model)
        target = latent_view(batch.obs, z_target, state.model_target)
        run.check("fwd/encoder/z", z)
        run.check("fwd/target_encoder/z", z_target)
        run.check("fwd/lat_env_model/z_next", *online.predict(batch.action))
        run.check("fwd/target_lat_env_model/z_next", *target.predict(batch.action))
    for critic, view, network in (
        ("critic", online, base.critic),
        ("target_critic", target, base.critic_target),
    ):
        log_probs = view.values(network, batch.action)
        config = recording.config
        values = atoms(config.lowest_value, config.highest_value, config.bins)
        run.check(f"fwd/{critic}/q", expectation(log_probs, values))
        run.check(f"fwd/{critic}/log_prob", log_probs)


@pytest.mark.parametrize("name", [f for f in FILES if "r2r2" in f])
def test_gradient_of_every_representation_term(name, precision):
    run = Run(name, precision)
    state, batch = run.state, run.recording.batch(0)
    if "r2r2_grad/L_RR/embedder/scaler/scaler" not in run.file:
        pytest.skip("this recording holds none")

    def term(name: str, encoder):
        z = encoder(batch.obs)
        if name == "L_SPL":
            target = state.encoder(batch.next_obs)
            return self_prediction(state.model(z, batch.action), target)
        return redundancy(z) if name == "L_RR" else variance_hinge(z)

    for name in ("L_SPL", "L_RR", "L_Var"):
        gradient = jax.grad(lambda encoder, name=name: term(name, encoder))(state.encoder)
        for path, leaf in jax.tree.leaves_with_path(gradient):
            part = run.recording.name("encoder", path).removeprefix("encoder/")
            run.check(f"r2r2_grad/{name}/{part}", leaf)


@pytest.mark.parametrize("name", [f for f in FILES if f.endswith("wide")])
def test_the_closed_form_start_is_the_recorded_one(name):
    recording = Recording(name)
    with jax.enable_x64(True):
        weights = recording.official(recording.initial_state())
    for weight, tensor in weights.items():
        recorded = recording.file[f"digest/init/{weight}"]
        shown = digest(recording.file, tensor, weight)
        np.testing.assert_allclose(shown, recorded, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(shown[2:], recorded[2:])
