"""Environments that fail in one method each: `faulty_envs:RaisesInReset` and others."""

import ctypes
import os
import sys
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Fine(gymnasium.Env):
    """Works; episodes have one step."""

    observation_space = Box(-np.inf, np.inf, (2,), dtype=np.float64)
    action_space = Box(-1, 1, (1,), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action):
        return np.zeros(2), 0.0, False, False, {}


def fail():
    raise RuntimeError("the motor is hot")


def hang():
    time.sleep(600)


def leave():
    os._exit(3)


def crash():
    ctypes.string_at(0)


def quit_python():
    sys.exit("bye")


def interrupt():
    raise KeyboardInterrupt


WAYS = {
    "Interrupts": interrupt,
    "Raises": fail,
    "Hangs": hang,
    "Exits": leave,
    "Crashes": crash,
    "Quits": quit_python,
}
METHODS = {"Init": "__init__", "Reset": "reset", "Step": "step", "Close": "close"}


def _broken(name, method, way):
    def call(self, *arguments, **keywords):
        way()

    return type(name, (Fine,), {method: call, "__module__": __name__})


for what, way in WAYS.items():
    for short, method in METHODS.items():
        globals()[f"{what}In{short}"] = _broken(f"{what}In{short}", method, way)


class RaisesWhenUsed(Fine):
    """Cannot be closed after a reset."""

    way, used = staticmethod(fail), False

    def reset(self, *, seed=None, options=None):
        self.used = True
        return super().reset(seed=seed)

    def close(self):
        if self.used:
            self.way()


class HangsWhenUsed(RaisesWhenUsed):
    """Hangs when it is closed after a reset."""

    way = staticmethod(hang)


class DrawsGlobally(Fine):
    """Uses the global random numbers, which a trial must not change."""

    def reset(self, *, seed=None, options=None):
        return np.random.rand(2), {}  # noqa: NPY002


class NoActionSpace(Fine):
    action_space = None

    def __init__(self):
        self.ready = True


class OddObservationSpace(Fine):
    observation_space = "a box"


class LongObservation(Fine):
    def reset(self, *, seed=None, options=None):
        return np.zeros(3), {}


class NaNReward(Fine):
    def step(self, action):
        return np.zeros(2), np.nan, False, False, {}


class OldStep(Fine):
    def step(self, action):
        return np.zeros(2), 0.0, False, {}
