"""Errors in what a user gave: one sentence, exit code 2, no traceback."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Input that cannot be used; its text is the sentence shown to the user.

    The form of the sentence is `<field or file>: <what is wrong>; expected <what>, got
    <value>`, with a near match at the end where there is one. The command line puts
    `r2r2: error: ` before it.

    Example:
        >>> str(invalid_value("--steps", "an integer >= 1", "0"))
        "--steps: expected an integer >= 1, got '0'"
    """


def invalid_value(field: str, expected: str, got: object, near: str = "") -> UserError:
    """Return the error for a value that a field, option or file does not allow."""
    return UserError(f"{field}: expected {expected}, got {got!r}{near}")


def did_you_mean(value: str, options: Iterable[str], most: int = 3) -> str:
    """Return the nearest names as a clause that ends a sentence, or an empty string."""
    lowered = {option.lower(): option for option in options}
    near = difflib.get_close_matches(value.lower(), lowered, n=most)
    names = " or ".join(repr(lowered[name]) for name in near)
    return f"; did you mean {names}?" if near else ""
