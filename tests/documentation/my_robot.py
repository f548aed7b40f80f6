"""The environment that the documentation calls `my_robot:Arm`."""

from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.wrappers import TimeLimit


def Arm(goal=0.0):
    """Return an arm with one joint; its goal is part of the documentation only."""
    del goal
    return TimeLimit(PendulumEnv(), 50)
