"""What stands between a task and the agent besides Gymnasium's own wrappers."""

from typing import Any, SupportsFloat

import gymnasium


class ActionRepeat(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Holds each action for several steps and sums their rewards.

    It belongs outside the time limit, which counts environment steps. An episode
    that ends during the repeat ends there, with the observation it ended in.

    Example:
        >>> env = ActionRepeat(gymnasium.make("Pendulum-v1"), 2)  # ends after 100 steps
    """

    def __init__(self, env: gymnasium.Env[Any, Any], times: int):
        super().__init__(env)
        self._times = times

    def step(
        self, action: Any
    ) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Acts up to `times` times; `info` is the last step's."""
        total, steps = 0.0, 0
        while True:
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            steps += 1
            if terminated or truncated or steps >= self._times:
                return obs, total, terminated, truncated, info
