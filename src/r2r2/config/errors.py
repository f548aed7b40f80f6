"""Errors in what a user gave: one sentence, exit code 2, no traceback."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Input that cannot be used; its text is the sentence shown to the user.

    The form of the sentence is `<field or file>: <what is wrong>; expected <what>, got
    <value>`, with a near match at the end where there is one. The command line puts
    `r2r2: error: ` before it.

    Example:
        >>> str(UserError("runs/a: not a run folder"))
        'runs/a: not a run folder'
    """


def invalid_value(field: str, expected: str, got: object, near: str = "") -> UserError:
    """Return the error for a field whose value is not allowed.

    Args:
        field: name of the field, option or file.
        expected: description of the allowed values.
        got: the value.
        near: the result of `did_you_mean`.

    Example:
        >>> str(invalid_value("--steps", "an integer >= 1", "0"))
        "--steps: expected an integer >= 1, got '0'"
    """
    return UserError(f"{field}: expected {expected}, got {got!r}{near}")


def did_you_mean(value: str, options: Iterable[str], most: int = 3) -> str:
    """Return the nearest names as a clause that ends a sentence, or an empty string.

    Example:
        >>> did_you_mean("Hoper-v5", ["Hopper-v5", "Ant-v5"])
        "; did you mean 'Hopper-v5'?"
    """
    lowered = {option.lower(): option for option in options}
    near = difflib.get_close_matches(value.lower(), lowered, n=most, cutoff=0.6)
    if not near:
        return ""
    return "; did you mean " + " or ".join(repr(lowered[n]) for n in near) + "?"
