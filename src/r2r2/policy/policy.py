"""A trained policy that needs NumPy only: load it, ask it for actions, export it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.policy.program import Program, Value
from r2r2.policy.spaces import ObservationPart, TaskSpaces

__all__ = ["ObservationPart", "PolicyParts", "TaskSpaces"]


class PolicyParts(NamedTuple):
    """Everything a policy is made of; exporters translate it.

    The program maps the parameters and one observation, flat and normalized, to an action in
    [-1, 1]. `mean` and `deviation` normalize observations in float64: (x - mean) / deviation.
    """

    program: Program
    parameters: tuple[Value, ...]
    dtype: str  # of the program's input
    spaces: TaskSpaces
    mean: NDArray[np.float64] | None = None  # [obs]; None: observations are not normalized
    deviation: NDArray[np.float64] | None = None  # [obs]
    info: Mapping[str, Any] = {}  # agent, task, seed, step, ... : JSON values for people
