"""Objects that a config names as `module:name`: agents and extra loss terms of users."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from r2r2.config.errors import UserError, did_you_mean

EXTRA_FIELD = "agent.representation.extra"


def import_object(name: str, field: str, is_wanted: Callable[[object], bool]) -> Any:
    """Return the object at `module:name`.

    Args:
        name: where it is.
        field: the field that names it, for messages.
        is_wanted: which objects of the module to suggest if there is none of that name.

    Raises:
        UserError: The module cannot be imported, or has no such object.
    """
    module_name, _, attribute = name.rpartition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"cannot import {module_name!r} ({type(error).__name__}: {reason})", field
        ) from error
    value = getattr(module, attribute, None)
    if value is None:
        names = [key for key, x in vars(module).items() if is_wanted(x)]
        near = did_you_mean(attribute, names, most=1)
        raise UserError(f"{module_name!r} has no attribute {attribute!r}{near}", field)
    return value


def call_extra_loss(name: str, z: Any, inputs: Mapping[str, Any]) -> Any:
    """Return the term that the function at `module:function` computes from latents.

    Args:
        name: where the function is.
        z: its first argument.
        inputs: arguments that it gets by name, those that its signature has.
    """
    function = import_object(name, EXTRA_FIELD, inspect.isfunction)
    if not callable(function):
        raise UserError(f"expected a function at {name!r}, got {function!r}", EXTRA_FIELD)
    try:
        names = list(inspect.signature(function).parameters)[1:]
    except ValueError:  # some functions written in C have no signature
        names = []
    return function(z, **{key: x for key, x in inputs.items() if key in names})
