"""How bad input is refused: one sentence, exit code 2, no traceback."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Input that cannot be used; its text is the sentence shown to the user.

    Example:
        >>> str(UserError("utd is 0; allowed is a whole number of at least 1"))
        'utd is 0; allowed is a whole number of at least 1'
    """


def did_you_mean(value: str, options: Iterable[str], most: int = 3) -> str:
    """The nearest names as a clause to end a sentence with, or an empty string.

    Example:
        >>> did_you_mean("Hoper-v5", ["Hopper-v5", "Ant-v5"])
        "; did you mean 'Hopper-v5'?"
    """
    lowered = {option.lower(): option for option in options}
    near = difflib.get_close_matches(value.lower(), lowered, n=most, cutoff=0.6)
    if not near:
        return ""
    return "; did you mean " + " or ".join(repr(lowered[n]) for n in near) + "?"
