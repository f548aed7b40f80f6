"""How a file of weights is refused."""

import pytest

from r2r2.config.refusal import Refusal
from r2r2.record.weights import load_weights


def refusal_of(path, like):
    """Why loading is refused: the sentence without its beginning."""
    with pytest.raises(Refusal) as refusal:
        load_weights(path, like)
    start = f"weights are '{path}', which "
    assert str(refusal.value).startswith(start)
    return str(refusal.value).removeprefix(start)
