"""The environment that the documentation calls `my_robot:Arm`."""

from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.wrappers import TimeLimit


def Arm():
    """Return an arm with one joint."""
    return TimeLimit(PendulumEnv(), 50)
