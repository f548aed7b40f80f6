"""Failures of environments."""

import traceback
from typing import NamedTuple


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


class InvalidEnvOutput(ValueError):
    """An environment returned an invalid observation or reward."""


def format_fault(error: Exception) -> str:
    """Return an environment's exception as text with the message in its last line.

    Example:
        >>> format_fault(RuntimeError("the motor is hot:" + chr(10) + "code 17"))
        'RuntimeError: the motor is hot: code 17'
    """
    if isinstance(error, InvalidEnvOutput):
        return str(error)
    message = "".join(traceback.format_exception_only(error))
    stack = "".join(traceback.format_exception(error)).removesuffix(message)
    return f"{stack}{' '.join(message.split())}"
