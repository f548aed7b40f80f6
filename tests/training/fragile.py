"""Tasks that fail at known steps; `fragile:Raises-v0` and others.

An episode depends only on its seed, and so does its failure. Tasks that fail only once
write a file, which remains when their worker process dies.
"""

import os
import signal
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from r2r2.envs.make import episode_seed
from r2r2.envs.vector.trial import TRIAL_SEED

MARK = "FRAGILE_MARK"  # environment variable with the path of that file
FATAL = 3  # the training episode of seed 0 that fails
WHEN = 2  # the step in it


class Calm(gymnasium.Env):
    """Episodes of 4 to 8 steps; the observation is [seed modulo 997, t]."""

    observation_space = Box(-np.inf, np.inf, (2,), dtype=np.float64)
    action_space = Box(-1, 1, (1,), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.t = seed, 0
        self.length = 4 + seed % 5
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        reward = self.t + float(action[0])
        return self._obs(), reward, False, self.t == self.length, {}

    def _obs(self):
        return np.array([self.seed % 997, self.t], dtype=np.float64)


class Fragile(Calm):
    """Fails in training episode `FATAL` of seed 0, at step `WHEN`."""

    fatal = (episode_seed(0, "train", FATAL),)

    def step(self, action):
        given = super().step(action)
        if self.seed in self.fatal and self.t == WHEN:
            return self.fail(*given)
        return given


class Raises(Fragile):
    def fail(self, *given):
        raise RuntimeError("the motor is hot")


class BlindObs(Fragile):
    def fail(self, obs, *rest):
        return np.array([obs[0], np.nan]), *rest


class BlindReward(Fragile):
    def fail(self, obs, reward, *rest):
        return obs, np.inf, *rest


class Misshapen(Fragile):
    def fail(self, obs, *rest):
        return np.zeros(3), *rest


class Hangs(Fragile):
    def fail(self, *given):
        time.sleep(60)


class Dies(Fragile):
    def fail(self, *given):
        os.kill(os.getpid(), signal.SIGKILL)


class Interrupts(Fragile):
    def fail(self, *given):
        raise KeyboardInterrupt


class Exits(Fragile):
    def fail(self, *given):
        raise SystemExit(3)


class Judged(Fragile):
    """Fails once, in the second episode of seed 0's first evaluation."""

    fatal = (episode_seed(0, "evaluate", 1),)

    def fail(self, *given):
        mark = Path(os.environ[MARK])
        if mark.exists():
            return given
        mark.touch()
        raise RuntimeError("the referee fell")


class Unjudged(Judged):
    """Fails every time in that evaluation episode."""

    # Also when the episode is reseeded.
    again = tuple(episode_seed(0, f"evaluate-{times}", 1) for times in range(2, 9))
    fatal = (*Judged.fatal, *again)

    def fail(self, *given):
        raise RuntimeError("the referee is gone")


class Stillborn(Calm):
    """Fails in every reset, except in the trial."""

    def reset(self, *, seed=None, options=None):
        if seed == TRIAL_SEED:
            return super().reset(seed=seed)
        raise RuntimeError("no power")


class Balks(Calm):
    """Fails in the reset of training episode `FATAL` of seed 0."""

    def reset(self, *, seed=None, options=None):
        if seed == episode_seed(0, "train", FATAL):
            raise RuntimeError("not this one")
        return super().reset(seed=seed)


class Doomed(Calm):
    """Fails at the third step of every episode, except in the trial."""

    def step(self, action):
        if self.t == 2 and self.seed != TRIAL_SEED:
            raise RuntimeError("it fell over")
        return super().step(action)


class Broken(Calm):
    """Fails in every step, except in the trial, until somebody writes the file."""

    def step(self, action):
        if self.seed != TRIAL_SEED and not Path(os.environ[MARK]).exists():
            raise RuntimeError("a cable is loose")
        return super().step(action)


class Rich(Calm):
    """Returns rewards that make the loss overflow, only in training of seed 0."""

    riches = tuple(episode_seed(0, "train", number) for number in range(FATAL, 100))

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, 3e38 if self.seed in self.riches else reward, *rest


for kind in (Calm, *Fragile.__subclasses__(), Unjudged, Stillborn, Balks, Doomed, Broken, Rich):
    gymnasium.register(f"{kind.__name__}-v0", entry_point=kind)
for number in range(4):  # tasks without failures, for a fleet of several
    gymnasium.register(f"Quiet{number}-v0", entry_point=Calm)
