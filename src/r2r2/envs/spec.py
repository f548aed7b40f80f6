"""What a fleet is made of: tasks of equal sizes, each with its seeds.

Without JAX, as all of `envs`: a worker process has no use for it.
"""

from typing import NamedTuple

from r2r2.config.toml_io import safe_name


class Spec(NamedTuple):
    """Sizes of a task: a flat observation and an action in [-1, 1]."""

    obs_dim: int
    action_dim: int


class Member(NamedTuple):
    """One slot of a fleet: a task and a seed.

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
