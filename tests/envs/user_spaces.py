"""Environments with the spaces that users have; they assert what they receive."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Tuple

# Not in the order of their names: gymnasium sorts them.
ROBOT = Dict(
    {
        "joints": Tuple((Box(-4, 4, (2,), np.float64), Box(0, 9, (), np.int32))),
        "camera": Dict(depth=Box(0, 1, (2, 2), np.float32)),
        "goal": Box(-9, 9, (1,), np.float64),
    }
)
LOW, HIGH = np.array([-3.0, 0.1]), np.array([1.0, 0.3])


class Robot(gymnasium.Env):
    """A point that is moved to a goal; observations are nested, action bounds asymmetric."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, goal=1 / 3, length=10, render_mode=None, dtype="float64"):
        self.observation_space = ROBOT
        self.action_space = Box(LOW.astype(dtype), HIGH.astype(dtype), dtype=np.dtype(dtype))
        self.render_mode, self.goal, self.length = render_mode, goal, length
        self.received = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.position = 0, self.np_random.uniform(-1, 1, 2)
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.received.append(action)
        self.t += 1
        self.position = np.clip(self.position + action / 10, -4, 4)
        reward = -abs(float(self.position[0]) - self.goal)
        return self._obs(), reward, False, self.t == self.length, {}

    def _obs(self):
        depth = np.array([[self.t / 10, 0], [0.25, 1]], np.float32)
        joints = self.position.copy(), np.int32(self.t % 10)
        return {"goal": np.array([self.goal]), "joints": joints, "camera": {"depth": depth}}

    def render(self):
        image = np.zeros((32, 32, 3), np.uint8)
        image[:, : int(4 * (self.position[0] + 4))] = 200
        return image

    def save_state(self):
        return {"t": self.t, "position": self.position}

    def load_state(self, saved):
        self.t, self.position = int(saved["t"]), saved["position"]


def flat_robot():
    """Return a robot that Gymnasium's wrapper has flattened."""
    return gymnasium.wrappers.FlattenObservation(Robot())


class Flawed(Robot):
    """Its observations are not those of its space."""

    def __init__(self, change=None):
        super().__init__()
        self.change = change or {"camera": {"depth": np.array([[0, 1], [np.nan, 2]])}}

    def _obs(self):
        return super()._obs() | self.change


class Matrix(gymnasium.Env):
    """An observation and an action of two dimensions."""

    observation_space = Box(-1, 1, (2, 3), np.float32)

    def __init__(self, shape=(2, 2), dtype=np.float32):
        high = np.arange(1, 1 + int(np.prod(shape)), dtype=dtype).reshape(shape)
        self.action_space = Box(np.zeros_like(high), high, dtype=dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((2, 3), np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.received = action
        return np.arange(6, dtype=np.float32).reshape(2, 3) / 6, 1.0, False, False, {}


gymnasium.register("Robot-v0", Robot, max_episode_steps=8)


def limited(limit):
    """Return a robot with a time limit, which must be given."""
    return gymnasium.wrappers.TimeLimit(Robot(length=0), limit)
