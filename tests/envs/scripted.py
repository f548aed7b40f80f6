"""Environments with known transitions."""

import warnings

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

PLAIN = Box(-1.0, 1.0, (2,))
# Different widths, not centered at 0.
ASYMMETRIC = Box(np.array([-3, 0], np.float32), np.array([1, 10], np.float32))


class Count(gymnasium.Env):
    """The reward of step t is t squared; the observation is [start, t, *action]."""

    observation_space = Box(-np.inf, np.inf, (4,), dtype=np.float64)

    def __init__(self, terminates_at=None, truncates_at=None, action_space=ASYMMETRIC):
        self.action_space = action_space
        self.terminates_at = terminates_at
        self.truncates_at = truncates_at
        self.closed = 0
        # Modified in place, to detect a pool that returns views of it.
        self.obs = np.zeros(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs[:] = [self.np_random.integers(1000), 0, 0, 0]
        return self.obs, {}

    def step(self, action):
        self.obs[1] += 1
        self.obs[2:] = action
        t = int(self.obs[1])
        ended = t == self.terminates_at, t == self.truncates_at
        return self.obs, float(t * t), *ended, {"t": t}

    def close(self):
        self.closed += 1


class Shaped(Count):
    """A task with the given spaces that is never stepped."""

    def __init__(self, observation_space=Count.observation_space, action_space=PLAIN):
        super().__init__(action_space=action_space)
        self.observation_space = observation_space


def loud():
    """Warn while the environment is built."""
    warnings.warn("my arm is bent", stacklevel=1)
    return Count()


def needy():
    """Fail because a package is missing."""
    raise gymnasium.error.DependencyNotInstalled("armlib is\n not installed")


def _register(name, entry_point=Count, limit=7, **kwargs):
    gymnasium.register(f"{name}-v0", entry_point, max_episode_steps=limit, kwargs=kwargs)


_register("Count")
_register("Terminates", terminates_at=3)
_register("Truncates", truncates_at=3)
_register("Both", terminates_at=7)
_register("Double", action_space=Box(-0.1, 0.3, (2,), dtype=np.float64))
_register("Loud", loud)
_register("Needy", needy)

POINT = Box(-1.0, 1.0, (3,))
_register("DiscreteObs", Shaped, observation_space=Discrete(5))
IMAGE = Box(0, 255, (8, 8, 3), np.uint8)
_register("ImageObs", Shaped, observation_space=IMAGE)
_register("EmptyDictObs", Shaped, observation_space=Dict())
_register(
    "DiscretePartObs", Shaped, observation_space=Dict(arm=Tuple((POINT, Discrete(3))), goal=POINT)
)
_register("BinaryPartObs", Shaped, observation_space=Dict(arm=POINT, touch=MultiBinary(3)))
_register("ImagePartObs", Shaped, observation_space=Dict(arm=Dict(camera=IMAGE, pose=POINT)))
_register("OddKeyObs", Shaped, observation_space=Dict({2.5: POINT}))
_register("EmptyObs", Shaped, observation_space=Box(-1.0, 1.0, (0,)))
_register("MultiAction", Shaped, action_space=MultiDiscrete([2, 3]))
_register("DictAction", Shaped, action_space=Dict(arm=PLAIN))
_register("LongDoubleAction", Shaped, action_space=Box(-1.0, 1.0, (2,), np.longdouble))
_register("IntAction", Shaped, action_space=Box(-3, 3, (2,), np.int64))
HALF = np.array([1, np.inf], np.float32)
_register("HalfFreeAction", Shaped, action_space=Box(-np.ones_like(HALF), HALF))
HUGE = float(np.finfo(np.float32).max)
_register("HugeAction", Shaped, action_space=Box(-HUGE, HUGE, (2,)))
WIDTH = np.array([1, 0], np.float32)
_register("FlatAction", Shaped, action_space=Box(-WIDTH, WIDTH))
_register(
    "FlatMatrixAction", Shaped, action_space=Box(np.zeros((2, 1), np.float32), WIDTH[:, None])
)
