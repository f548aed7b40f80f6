"""How a file of weights is refused."""

import pytest

from r2r2.config.errors import UserError
from r2r2.storage.arrays import load_weights


def refusal_of(path, like):
    """Why loading is refused: the sentence without its beginning."""
    with pytest.raises(UserError) as refusal:
        load_weights(path, like)
    start = f"{path}: "
    assert str(refusal.value).startswith(start)
    return str(refusal.value).removeprefix(start)
