"""Errors in what a user gave: one sentence, exit code 2, no traceback."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Input that cannot be used; its text is the sentence shown to the user.

    The form of the sentence is `<field or file>: <what is wrong>; expected <what>, got
    <value>`, with a near match at the end where there is one. The command line puts
    `r2r2: error: ` before it, and writes a field as its option.

    Example:
        >>> UserError("expected an integer >= 1, got 0", field="eval_every").with_option
        '--eval-every: expected an integer >= 1, got 0'
    """

    def __init__(self, problem: str, field: str = ""):
        super().__init__(f"{field}: {problem}" if field else problem)
        self._problem, self._field = problem, field

    @property
    def with_option(self) -> str:
        """The sentence with the field as an option of the command line."""
        name, space, value = self._field.partition(" ")
        if not name or name.startswith("-"):
            return str(self)
        return f"--{name.replace('_', '-')}{space}{value}: {self._problem}"


class StoppedMembersWarning(UserWarning):
    """Some members of a run were stopped, because they kept failing; the others were not.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("ignore", StoppedMembersWarning)
    """


def invalid_value(field: str, expected: str, got: object, near: str = "") -> UserError:
    """Return the error for a value that a field, option or file does not allow."""
    return UserError(f"expected {expected}, got {got!r}{near}", field)


def did_you_mean(value: str, options: Iterable[str], most: int = 3) -> str:
    """Return the nearest names as a clause that ends a sentence, or an empty string."""
    lowered = {option.lower(): option for option in options}
    near = difflib.get_close_matches(value.lower(), lowered, n=most)
    names = " or ".join(repr(lowered[name]) for name in near)
    return f"; did you mean {names}?" if near else ""
