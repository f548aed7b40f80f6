"""Tasks that draw themselves without any graphics; `filmed:Dot-v0` and others."""

import os

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Dot(gymnasium.Env):
    """A dot moves one pixel to the right per step, on grey; rows and columns are odd.

    An episode has 6 steps, and each earns 1. A `kind` other than `good` returns an invalid frame.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    observation_space = Box(-1, 1, (2,), dtype=np.float64)
    action_space = Box(-1, 1, (1,), dtype=np.float64)

    def __init__(self, render_mode=None, broken_at=None, kind="good"):
        self.render_mode, self.broken_at, self.kind = render_mode, broken_at, kind
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2), 1.0, False, False, {}

    def render(self):
        if self.t == self.broken_at:
            raise OSError("the lens\n cap is on")
        picture = np.full((33, 41, 3), 60, dtype=np.uint8)
        picture[10:20, 5 * self.t : 5 * self.t + 5] = 255
        odd = {"none": None, "grey": picture[..., 0], "float": picture / 255}
        return odd.get(self.kind, picture)


class Blind(Dot):
    """Takes no render mode."""

    def __init__(self):
        super().__init__()


class Silent(Dot):
    """Does not say how fast it is."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012


class Loud(Dot):
    """Prints to standard output, from Python and from below."""

    def reset(self, *, seed=None, options=None):
        print("hello from Python")
        os.write(1, b"hello from below\n")
        return super().reset(seed=seed)


TASKS = {
    "Dot": (Dot, {}),
    "Blind": (Blind, {}),
    "Silent": (Silent, {}),
    "Capped": (Dot, {"broken_at": 0}),
    "Breaks": (Dot, {"broken_at": 3}),
    "None": (Dot, {"kind": "none"}),
    "Grey": (Dot, {"kind": "grey"}),
    "Float": (Dot, {"kind": "float"}),
}
for name, (entry, kwargs) in TASKS.items():
    gymnasium.register(f"{name}-v0", entry, max_episode_steps=6, kwargs=kwargs)
