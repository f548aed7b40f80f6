"""A walk on which every number hangs on every earlier one; `walks:Walk`, `walks:Lost`.

Whoever goes on with it from anything but where it was left ends elsewhere.
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Lost(gymnasium.Env):
    """Its length is drawn at its start, its noise at every step; it offers no state."""

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
    """The same, offering its state."""

    def save_state(self):
        return {"left": np.asarray(self.left), "place": self.place}

    def load_state(self, saved):
        self.left, self.place = int(saved["left"]), saved["place"]
