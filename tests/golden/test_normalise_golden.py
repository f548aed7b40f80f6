"""SimbaV2's running statistics against the release's, over a recorded stream."""

import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import golden

from r2r2.agents.base import Batch
from r2r2.replay.normalizer import Normalizer, initial_statistics, normalize_batch

SETTINGS = ("g5", "gmax0.5")
INPUTS = ("obs32_rew64", "obs64_rew64", "obs32_rew32")


def read(name: str) -> np.ndarray:
    array = golden("normalizers")[f"input/{name}"]
    return array if array.dtype == bool else array.astype(np.float64)


def check(group: str, shown: dict[str, np.ndarray], at: int) -> None:
    for name, actual in shown.items():
        expected = golden("normalizers")[f"{group}/{name}"]
        # What the release keeps in float32 can only be met as closely, and so can what
        # it made of this observation, of which float32's digits are recorded.
        exact = expected.dtype == np.float64 and "batch" not in name
        exact = exact and name != "eval_obs_normalized"
        rtol, atol = (1e-9, 1e-9) if exact else (1e-5, 1e-5)
        np.testing.assert_allclose(
            np.reshape(actual, expected[at].shape), expected[at], rtol, atol, name
        )


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("inputs", INPUTS)
def test_statistics_and_normalized_values(inputs, setting):
    file, group = golden("normalizers"), f"{inputs}/{setting}"
    gamma, limit = (file[f"hp/{setting}/{name}"].item() for name in ("gamma", "g_max"))
    obs, reward = read("next_observation"), read("reward")
    done = read("terminated") | read("truncated")
    statistics = initial_statistics(1, obs.shape[-1])
    normalizer = Normalizer(statistics, gamma, limit)
    checks = {int(step): at for at, step in enumerate(file["check_steps"])}
    for step in range(len(obs)):
        here = slice(step, step + 1)
        # Recorded with a reward before the very first observation too.
        normalizer.collect([0], reward[here], done[here])
        statistics.obs.add([0], obs[here])
        every = f"{group}/G_every_step"
        np.testing.assert_allclose(statistics.running[0], file[every][step], 1e-9)
        if step + 1 in checks:
            shown = {
                "mean": statistics.obs.mean,
                "var": statistics.obs.variance,
                "count": statistics.obs.samples,
                "G": statistics.running,
                "G_mean": statistics.returns.mean,
                "G_var": statistics.returns.variance,
                "G_count": statistics.returns.samples,
                "G_r_max": statistics.largest,
                "obs_normalized": normalizer.normalize(obs[here]),
                "eval_obs_normalized": normalizer.normalize(read("eval_observation")[None]),
            }
            check(group, shown | on_the_device(normalizer), checks[step + 1])


def on_the_device(normalizer: Normalizer) -> dict[str, np.ndarray]:
    """The recorded batch as the compiled update would see it."""
    raw = Batch(
        obs=jnp.asarray(read("batch_observation")),
        action=jnp.zeros((8, 1)),
        reward=jnp.asarray(read("batch_reward")),
        next_obs=jnp.asarray(read("batch_next_observation")),
        terminated=jnp.zeros(8, bool),
    )
    scales = normalizer.scales()
    batch = normalize_batch(raw, type(scales)(*(jnp.asarray(part[0]) for part in scales)))
    return {
        "batch_obs_normalized": np.asarray(batch.obs),
        "batch_next_obs_normalized": np.asarray(batch.next_obs),
        "batch_reward_scaled": np.asarray(batch.reward),
    }
