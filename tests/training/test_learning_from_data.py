"""An agent learns from recorded data before it has collected its own."""

import numpy as np
import pytest
from interrupted import NEVER, OFTEN

from r2r2 import resolve, save_transitions, train
from r2r2.storage.arrays import read_arrays
from r2r2.storage.evaluations import read_evaluations

pytestmark = pytest.mark.optimized


def recorded_by(result, path):
    """Write the transitions in the replay of a finished run with one member."""
    folder = result.folder.checkpoints
    arrays = read_arrays(max(folder.glob("*[0-9].npz")))
    segments = [read_arrays(file) for file in sorted(folder.glob("*.replay.npz"))]
    count = int(arrays["fleet/opened"][0]) + 1
    rows = {}
    for name in ("obs", "action", "reward", "terminated"):
        rows[name] = np.zeros((count, *segments[0][f"0/{name}"].shape[1:]))
        for segment in segments:
            first = int(segment["0/first"])
            rows[name][first : first + len(segment[f"0/{name}"])] = segment[f"0/{name}"]
    live = np.flatnonzero(arrays["fleet/learners/priorities/tree/levels/0"][0].ravel())
    save_transitions(
        path,
        observations=rows["obs"][live],
        actions=2 * rows["action"][live],  # Pendulum's actions are in [-2, 2]
        rewards=rows["reward"][live],
        next_observations=rows["obs"][live + 1],
        terminations=rows["terminated"][live] > 0,
    )
    return str(path)


@pytest.mark.slow
def test_first_evaluations_are_better_from_data_of_a_short_run(tmp_path):
    rates = dict.fromkeys(("encoder_rate", "critic_rate", "actor_rate"), 1e-3)
    fields = {"agent": "td7+r2r2", "env": "Pendulum-v1", "policy_checkpoints": False, **rates}
    fields |= {"width": 32, "latent": 32, "batch_size": 128, "target_period": 100, "warmup": 200}
    fields |= {"utd": 2, "discount": 0.98, "eval_episodes": 5, "probe_batch": 256}
    long = {"steps": 2_000, "eval_every": 2_000}
    before = train(resolve(fields, long), tmp_path / "before", options=OFTEN)
    data = recorded_by(before, tmp_path / "data.npz")
    short = {"steps": 300, "eval_every": 150}
    start = {"prefill": data, "mix": 0.5, "prefill_only_updates": 2_000, "warmup": 0}
    means = []
    for name, changes in (("with", start), ("without", {})):
        result = train(resolve(fields, short, changes), tmp_path / name, options=NEVER)
        means.append(np.mean([row.value for row in read_evaluations(result.folder.evaluations)]))
    assert means[0] > means[1] + 300
