"""A fleet on the host, as a checkpoint has it."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.core import Array
from r2r2.learn.arrivals import Steps
from r2r2.learn.update import Learner


class Held(NamedTuple):
    """What a fleet is made of besides the replay's rows."""

    learners: Learner
    policies: Any  # that act, [S, ...]
    newest: Array  # [S], as in `Replay`
    waiting: Steps  # not in the replay yet
    opened: NDArray[np.int_]  # [S], rows ever opened in every ring, after its first
    kept: NDArray[np.bool_]  # [S], whose policy is to become its checkpoint
