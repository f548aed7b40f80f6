"""Sizes of tasks, members of a fleet, and failures of their environments."""

from typing import NamedTuple

from r2r2.config.toml_io import safe_name


class Spec(NamedTuple):
    """Sizes of a task: a flat observation and an action in [-1, 1]."""

    obs_dim: int
    action_dim: int


class Member(NamedTuple):
    """A member of a fleet: a task and a seed."""

    task: str
    seed: int

    @property
    def name(self) -> str:
        """The member's folder inside a run, such as `Hopper-v5_s3`."""
        return f"{safe_name(self.task)}_s{self.seed}"


class Fault(NamedTuple):
    """The loss of a slot's episode; the slot must be reset before its next step."""

    slot: int
    detail: str  # the last line is the message; a traceback may precede it
    own_failure: bool = True  # False: the cause was not this slot's environment


class EnvFailure(Exception):
    """An environment raised, returned invalid output, hung, or its process died.

    The message names the task, the member and the step, and ends with the traceback
    of the environment if there is one.
    """
