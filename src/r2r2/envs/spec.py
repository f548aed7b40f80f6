"""Sizes of tasks, and the members of a fleet."""

from typing import NamedTuple

from r2r2.config.toml_io import safe_name


class Spec(NamedTuple):
    """Sizes of a task: a flat observation and an action in [-1, 1]."""

    obs_dim: int
    action_dim: int


class Member(NamedTuple):
    """A member of a fleet: a task and a seed.

    Example:
        >>> Member("Hopper-v5", 3).name
        'Hopper-v5_s3'
    """

    task: str
    seed: int

    @property
    def name(self) -> str:
        """The member's folder inside a run."""
        return f"{safe_name(self.task)}_s{self.seed}"
