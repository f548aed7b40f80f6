"""Policies of real runs: exported in every format, they act as the JAX policy of the run."""

import jax
import numpy as np
import pytest
from runners import RUNNERS

from r2r2 import Callback, Trainer
from r2r2.config.resolve import default_config
from r2r2.envs.spec import Spec
from r2r2.export.export import FORMATS, export_policy
from r2r2.storage.run_folder import open_run
from r2r2.training.evaluation import load_policies, normalize_obs

RUN = {"warmup": 950, "eval_every": 525, "eval_episodes": 1, "batch_size": 16, "log_every": 10}
FAMILIES = ("td7+r2r2", "minphi+r2r2", "simbav2", "simbav2-spl+r2r2")


class Observations(Callback):
    """Keeps the observations of a run."""

    def __init__(self):
        self.rows = []

    def on_step(self, info):
        self.rows.extend(info.obs)


def small_fields(agent):
    """Return small networks for an agent."""
    config = default_config(agent).agent
    names = ("width", "latent", "model_width", "actor_width", "critic_width")
    return {name: 16 for name in names if hasattr(config, name)}


@pytest.mark.slow
@pytest.mark.parametrize("agent", FAMILIES)
def test_exports_of_a_trained_run_act_as_in_jax(agent, tmp_path):
    seen = Observations()
    fields = RUN | small_fields(agent) | {"workers": 0, "progress": False}
    where = {"env": "Hopper-v5", "out": tmp_path / "run", "steps": 1_050}
    trainer = Trainer(agent, callbacks=[seen], **where, **fields)
    trainer.train()
    assert trainer.saved_run().events("losses")["update_step"].max() > 20
    obs = np.stack(seen.rows)[:1000]
    assert obs.shape == (1000, 11)
    run = trainer.saved_run()
    args = run.config, Spec(11, 3), run.members, "last"
    loaded = load_policies(open_run(run.path), *args)
    policy = jax.tree.map(lambda leaf: leaf[0], loaded.policies.policies)
    inputs = normalize_obs(loaded.policies.scales, 0, obs).astype(np.float32)
    expected = jax.vmap(loaded.agent.greedy, (None, 0))(policy, inputs)
    parts = run.policy().parts
    for name in FORMATS:
        folder = export_policy(run.policy(), name, tmp_path / name)
        actions = RUNNERS[name](folder, parts)(obs)
        np.testing.assert_allclose(actions, expected, atol=2e-5)  # 1e-5 of the action range
