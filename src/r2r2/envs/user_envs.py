"""Environments that a caller hands over: a class, a function, or one that is built."""

from typing import Any

import gymnasium

from r2r2.config.errors import UserError
from r2r2.envs.make import Env, EnvBuilder


class BorrowedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that is the caller's: it is not closed here."""

    def close(self) -> None:
        """Leaves it open."""


def env_builder_of(
    env: EnvBuilder | Env | None, tasks: tuple[str, ...], seeds: int
) -> EnvBuilder | None:
    """What builds the environments in place of the task's id, if anything does.

    Args:
        env: what the caller gave.
        tasks: the names in the config; a caller's own environment has one.
        seeds: how many members would use it.

    Example:
        >>> from gymnasium.envs.classic_control import PendulumEnv
        >>> env_builder_of(PendulumEnv, ("my-arm",), seeds=5) is PendulumEnv
        True
    """
    if env is None:
        return None
    if len(tasks) > 1:
        raise UserError(
            f"env is {', '.join(tasks)}; allowed with an environment of your own is "
            "one name for it"
        )
    if not isinstance(env, gymnasium.Env):
        if not callable(env):
            raise UserError(
                f"env is {env!r}; allowed are a gymnasium.Env, its class, or a "
                "function that builds one"
            )
        return env
    if seeds > 1:
        raise UserError(
            f"seeds is a list of {seeds}; allowed with an environment that is built "
            "already is one: give its class or a function that builds it"
        )
    return lambda: BorrowedEnv(env)
