"""Small tasks with known transitions; `toys:Story-v0` and `toys:Bandit-v0`."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Story(gymnasium.Env):
    """Episodes of 5, 3, 8, 5, ... steps; the observation is [episode, t].

    The second of each three terminates, the others are cut off. Step t earns t.
    """

    observation_space = Box(-np.inf, np.inf, (2,), dtype=np.float64)
    action_space = Box(-1, 1, (1,), dtype=np.float64)
    lengths = (5, 3, 8)

    def __init__(self):
        self.episode, self.t = -1, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        over = self.t == self.lengths[self.episode % 3]
        dies = self.episode % 3 == 1
        return self._obs(), float(self.t), over and dies, over and not dies, {}

    def _obs(self):
        return np.array([self.episode, self.t], dtype=np.float64)


class OwnPace(Story):
    """The same with lengths drawn from the episode's seed: members fall out of step."""

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.lengths = (int(self.np_random.integers(2, 30)),) * 3
        return super().reset(options=options)


class Endless(Story):
    """Its episodes never end."""

    lengths = (0, 0, 0)


class Bandit(gymnasium.Env):
    """One step, best at action 0.5: reward 1 - (a - 0.5)^2."""

    observation_space = Box(-1, 1, (2,), dtype=np.float64)
    action_space = Box(-1, 1, (1,), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([0.3, -0.7]), {}

    def step(self, action):
        reward = 1 - (float(action[0]) - 0.5) ** 2
        return np.array([0.3, -0.7]), reward, True, False, {}


for name in ("Story", "OwnPace", "Endless", "Bandit"):
    gymnasium.register(f"{name}-v0", entry_point=globals()[name])
