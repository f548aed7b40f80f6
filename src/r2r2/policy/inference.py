"""Actions of a whole policy: normalizer, network, and the environment's own action range."""

import math

import numpy as np
from numpy.typing import NDArray

from r2r2.policy.batching import batch_program
from r2r2.policy.policy import PolicyParts
from r2r2.policy.program import BoundProgram


def observation_size(parts: PolicyParts) -> int:
    """Return the length of a flattened observation."""
    return sum(math.prod(part.shape) for part in parts.spaces.observation)


class BatchPolicy:
    """Maps flat observations [B, obs] to actions [B, action] in the environment's own range.

    It is the reference of every exported format. An observation that is not finite, or that
    exceeds the program's float type once it is normalized, gives NaN for all entries of its
    action. Other actions lie within the bounds, except for NaN where the network itself overflows.

    Example:
        >>> from r2r2.policy.policy import ObservationPart, TaskSpaces
        >>> from r2r2.policy.program import Operation, Program
        >>> spaces = TaskSpaces((ObservationPart((), (1,)),), np.zeros(1), np.full(1, 10.0))
        >>> parts = PolicyParts(
        ...     Program(0, 1, (), (Operation("tanh", (0,), 1),), 1), (), "float32", spaces
        ... )
        >>> BatchPolicy(parts)(np.array([[0.0], [50.0], [np.inf]])).tolist()
        [[5.0], [10.0], [nan]]
    """

    def __init__(self, parts: PolicyParts):
        zeros = np.zeros(observation_size(parts), parts.dtype)
        program = batch_program(parts.program, parts.parameters, zeros)
        self._parts, self._program = parts, BoundProgram(program, parts.parameters)

    def __call__(self, obs: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the actions in the type of the environment's action space."""
        parts, spaces = self._parts, self._parts.spaces
        low, high = spaces.action_low, spaces.action_high
        with np.errstate(all="ignore"):
            seen = np.asarray(obs, np.float64)
            if parts.mean is not None and parts.deviation is not None:
                seen = (seen - parts.mean) / parts.deviation
            seen = seen.astype(parts.dtype)
            action = self._program(seen).astype(np.float64)
            action = np.clip(low + (high - low) * (action + 1) / 2, low, high)
        finite = np.isfinite(seen).all(axis=1, keepdims=True)
        result: NDArray[np.floating] = np.where(finite, action, np.nan).astype(spaces.action_dtype)
        return result
