"""When an environment fails: which one, whose, and how."""

import traceback
from typing import NamedTuple


class Fault(NamedTuple):
    """A slot that has lost its episode; it has none until it is reset.

    Example:
        >>> Fault(3, "the reward is nan").own_failure
        True
    """

    slot: int
    detail: str  # the last line says what; a traceback where there is one
    own_failure: bool = True  # False: lost with a worker process


class EnvFailure(Exception):
    """An environment raised, gave what cannot be used, hung, or its process died.

    Its text names the task, the member and the step, and ends with the environment's
    own traceback where there is one.
    """


class InvalidEnvOutput(ValueError):
    """An environment gave what cannot be used; the text is the whole story."""


def story_of(error: Exception) -> str:
    """What an environment raised, as text whose last line is the whole message.

    Example:
        >>> story_of(InvalidEnvOutput("the reward is nan"))
        'the reward is nan'
        >>> story_of(RuntimeError("the motor is hot:" + chr(10) + "code 17"))
        'RuntimeError: the motor is hot: code 17'
    """
    if isinstance(error, InvalidEnvOutput):
        return str(error)
    message = "".join(traceback.format_exception_only(error))
    way = "".join(traceback.format_exception(error)).removesuffix(message)
    return f"{way}{' '.join(message.split())}"
