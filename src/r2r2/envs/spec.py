"""Sizes of tasks, members of a fleet, and failures of their environments."""

import re
import sysconfig
from pathlib import Path
from typing import NamedTuple

from r2r2.config.toml_io import safe_name

# Code that is not the user's: this package, Python, and installed packages.
LIBRARIES = (
    *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)


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

    @property
    def location(self) -> str:
        """The last line of the user's code in the traceback, as `, in FILE, line N`, or empty."""
        frames = re.findall(r'^  File "(.+)", line (\d+)', self.detail, re.MULTILINE)
        own = [frame for frame in frames if not frame[0].startswith(LIBRARIES)]
        return "".join(f", in {file}, line {line}" for file, line in (own or frames)[-1:])


class InvalidEnvOutput(ValueError):
    """An environment returned an invalid observation or reward."""


class EnvFailure(Exception):
    """An environment raised, returned invalid output, hung, or its process died.

    The message names the task, the member and the step, and ends with the traceback
    of the environment if there is one.
    """
