"""Transitions of small tasks, as files that runs start from."""

import numpy as np
from walks import Walk

from r2r2 import save_transitions


def walk_arrays(count=50, seed=0):
    """Return transitions of random actions in `walks:Walk`."""
    rng, env = np.random.default_rng(seed), Walk()
    obs, _ = env.reset(seed=seed)
    rows = []
    for _ in range(count):
        action = rng.uniform(-1, 1, 2)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs.copy(), action, reward, next_obs.copy(), terminated, truncated))
        obs = env.reset()[0] if terminated or truncated else next_obs
    names = "observations actions rewards next_observations terminations truncations"
    columns = map(np.array, zip(*rows, strict=True))
    return dict(zip(names.split(), columns, strict=True))


def save_walks(path, count=50, seed=0, **changes):
    """Write transitions of `walks:Walk`, and return the path as text."""
    save_transitions(path, **(walk_arrays(count, seed) | changes))
    return str(path)
