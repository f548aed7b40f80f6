"""Warnings of a collapse in trained runs, and none in healthy ones."""

import jax.numpy as jnp
import pytest

from r2r2 import resolve, train
from r2r2.agents import td7
from r2r2.agents.losses.representation import representation_loss
from r2r2.agents.optimizer import Optimizer, minimize
from r2r2.api import RunOptions
from r2r2.storage.events import read_events

pytestmark = pytest.mark.optimized

SMALL = {
    "env": "cartpole-swingup",
    "agent.width": 64,
    "agent.latent": 64,
    "agent.batch_size": 64,
    "steps": 5000,
    "warmup": 1000,
    "eval_every": 1000,
    "eval_episodes": 1,
}


def without_stop_gradient(config, state, batch):
    """Update the encoder with gradients through its target, which collapses it."""

    def loss(encoder):
        zs, target = encoder.zs(batch.obs), encoder.zs(batch.next_obs)
        error = jnp.mean((encoder.zsa(zs, batch.action) - target) ** 2)
        return representation_loss(config.representation, zs, error)

    optimizer = Optimizer(config.adam, config.encoder_rate)
    step = minimize(optimizer, loss, state.encoder, state.encoder_adam)
    changed = state._replace(encoder=step.params, encoder_adam=step.opt_state)
    return changed, {"loss/encoder": step.loss}


def warned(path, agent):
    """Return the steps of logged collapses, and the messages."""
    messages = []
    options = RunOptions(workers=0, checkpoint_every="never")
    result = train(
        resolve(SMALL, {"agent": agent}), path, options=options, on_message=messages.append
    )
    events = read_events(result.folder.events)
    return [e["decision_step"] for e in events if e["event"] == "collapse"], messages


@pytest.mark.slow
def test_healthy_run_causes_no_warning(tmp_path):
    assert warned(tmp_path / "run", "td7+r2r2") == ([], [])


@pytest.mark.slow
def test_collapse_causes_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(td7, "update_encoder", without_stop_gradient)
    steps, messages = warned(tmp_path / "run", "td7")
    assert steps
    assert steps[-1] == 5000
    assert len(messages) == 1
    start = f"warning: at step {steps[0]:,} the representation of cartpole-swingup_s0 has"
    assert messages[0].startswith(start)
