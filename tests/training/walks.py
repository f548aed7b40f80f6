"""A random walk whose numbers depend on all earlier ones; `walks:Walk`, `walks:Lost`.

A run that continues from any other state than the saved one gives other numbers.
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from r2r2.envs.make import episode_seed


class Lost(gymnasium.Env):
    """Draws its length in the reset and noise in every step; cannot save its state."""

    observation_space = Box(-np.inf, np.inf, (3,), dtype=np.float64)
    action_space = Box(-1, 1, (2,), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 30))
        self.place = self.np_random.normal(size=3)
        return self.place, {}

    def step(self, action):
        self.left -= 1
        noise = self.np_random.normal(size=3)
        self.place = 0.9 * self.place + 0.1 * noise + 0.3 * np.append(action, 0.1)
        reward = -float(np.abs(self.place).sum())
        far = bool(np.abs(self.place).max() > 2)
        return self.place, reward, far, self.left == 0, {}


class Walk(Lost):
    """The same, but can save its state."""

    def save_state(self):
        return {"left": np.asarray(self.left), "place": self.place}

    def load_state(self, saved):
        self.left, self.place = int(saved["left"]), saved["place"]


class Breaks(Walk):
    """The same, but step 8 of every training episode of seed 6 fails."""

    fatal = tuple(episode_seed(6, "train", number) for number in range(60))

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        self.seed, self.length = seed, self.left
        return obs, info

    def step(self, action):
        if self.seed in self.fatal and self.length - self.left == 7:
            raise RuntimeError("a leg broke")
        return super().step(action)


class Wide(Walk):
    """The same with other action bounds."""

    action_space = Box(-2, 1, (2,), dtype=np.float64)
