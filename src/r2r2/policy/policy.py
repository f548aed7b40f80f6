"""A trained policy that needs NumPy only: load it, ask it for actions, export it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.policy.batching import batch_program
from r2r2.policy.program import BoundProgram, Program, Value
from r2r2.policy.spaces import ObservationPart, TaskSpaces, flatten_observation, scale_action

__all__ = ["ObservationPart", "Policy", "PolicyParts", "TaskSpaces"]


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


class Policy:
    """A trained policy: call it with observations of its task, and it returns actions.

    It acts without exploration, in the action range of the environment, and needs NumPy only.
    If an entry of an observation is not finite, or too large for the type of the network
    (float32), all entries of the action are NaN.

    Attributes:
        parts: what the policy is made of.
        info: facts about it: agent, task, seed, decision step and others.

    Example:
        >>> from r2r2.policy.program import Operation
        >>> program = Program(0, 1, (), (Operation("tanh", (0,), 1),), 1)
        >>> spaces = TaskSpaces((ObservationPart((), (2,)),), np.zeros(2), np.full(2, 4.0))
        >>> policy = Policy(PolicyParts(program, (), "float32", spaces))
        >>> policy([0.0, 100.0])
        array([2., 4.], dtype=float32)
        >>> policy(np.zeros((5, 2))).shape
        (5, 2)
    """

    def __init__(self, parts: PolicyParts):
        self.parts, self.info = parts, dict(parts.info)
        self._one = BoundProgram(parts.program, parts.parameters)
        self._many: BoundProgram | None = None  # for batches, made when it is first needed

    @property
    def task(self) -> str:
        """Name of the task."""
        return str(self.info.get("task", ""))

    @property
    def seed(self) -> int | None:
        """Seed of the member of the run."""
        return self.info.get("seed")

    def __call__(self, observation: Any) -> NDArray[Any]:
        """Return the action for an observation, or actions [B, action] for a batch.

        Args:
            observation: as the environment returns it: an array, or a dict or tuple of arrays;
                or flat, [obs]; for a batch, each array has a leading axis.

        Raises:
            ValueError: The observation has another form or shape.
        """
        rows, is_batch = self._rows(observation)
        actions = self._act(rows)
        return actions if is_batch else actions[0]

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[NDArray[Any], None]:
        """Return the action and None, as policies of Stable-Baselines3 do.

        Args:
            observation: as in a call.
            state: not used; for compatibility.
            episode_start: not used; for compatibility.
            deterministic: must be True; the policy does not explore.

        Raises:
            ValueError: The observation has another form or shape, or `deterministic` is False.
        """
        del state, episode_start
        if not deterministic:
            raise ValueError("deterministic: expected True, got False; the policy has no noise")
        return self(observation), None

    def _rows(self, observation: Any) -> tuple[NDArray[np.float64], bool]:
        """Return observations flat, [B, obs], and whether they are a batch."""
        spaces = self.parts.spaces
        first, size = spaces.observation[0], spaces.obs_dim
        if isinstance(observation, (Mapping, tuple)):
            value: Any = observation
            for key in first.path:
                value = value[key] if _has(value, key) else None
            is_batch = value is not None and np.ndim(value) == len(first.shape) + 1
            rows = flatten_observation(spaces.observation, observation, is_batch)
            return rows.reshape(-1, size), is_batch
        array = np.asarray(observation, np.float64)
        shapes = [(size,)] if first.path else [first.shape, (size,)]  # the last one is flat
        for shape in shapes:
            if shape in (array.shape, array.shape[1:]):
                return array.reshape(-1, size), shape != array.shape
        forms = " or ".join(f"{shape}" for shape in dict.fromkeys(shapes))
        raise ValueError(
            f"observation: expected shape {forms}, or a batch of them, got {array.shape}"
        )

    def _act(self, rows: NDArray[np.float64]) -> NDArray[Any]:
        """Return actions [B, ...] in the environment's range."""
        parts, inputs = self.parts, rows
        with np.errstate(all="ignore"):
            if parts.mean is not None and parts.deviation is not None:
                inputs = (rows - parts.mean) / parts.deviation
            inputs = inputs.astype(parts.dtype)
            actions = self._one(inputs[0])[None] if len(rows) == 1 else self._run_batch(inputs)
        actions = np.array(actions, np.float64)
        actions[~np.isfinite(inputs).all(axis=1)] = np.nan
        return scale_action(parts.spaces, actions)

    def _run_batch(self, inputs: NDArray[Any]) -> NDArray[Any]:
        if self._many is None:
            parts, example = self.parts, np.zeros(inputs.shape[1], inputs.dtype)
            program = batch_program(parts.program, parts.parameters, example)
            self._many = BoundProgram(program, parts.parameters)
        return self._many(inputs)

    def __repr__(self) -> str:
        agent, step = self.info.get("agent", "?"), self.info.get("step")
        return f"<Policy of {agent} on {self.task}, seed {self.seed}, step {step}>"


def _has(value: Any, key: str | int) -> bool:
    """Return whether a dict or tuple has an item."""
    if isinstance(value, Mapping):
        return key in value
    return isinstance(value, tuple) and isinstance(key, int) and key < len(value)
