"""Observation and action spaces of a task, as numbers that a policy can read and write.

A policy reads one flat vector of float64 and writes one flat vector in [-1, 1]. The functions
here convert between these and what an environment uses. Training, loaded policies and exported
policies share them, so they need NumPy only.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

Path = tuple[str | int, ...]
ACTION_DTYPES = ("float16", "float32", "float64")


class ObservationPart(NamedTuple):
    """One Box of an environment's observation, in the order in which parts are flattened.

    Example:
        >>> part = ObservationPart(("camera", "depth"), (2, 3))
        >>> part.name, part.size
        ("observation['camera']['depth']", 6)
    """

    path: Path  # keys of Dicts and indices of Tuples; () for a plain Box
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The part as an expression of Python."""
        return part_name(self.path)

    @property
    def size(self) -> int:
        """The numbers of the part."""
        return math.prod(self.shape)


Layout = tuple[ObservationPart, ...]


class TaskSpaces(NamedTuple):
    """The spaces of a task as its author defined them.

    Example:
        >>> low, high = np.array([-3.0, 0.0]), np.array([1.0, 10.0])
        >>> spaces = TaskSpaces((ObservationPart((), (4,)),), low, high)
        >>> spaces.obs_dim, spaces.action_dim
        (4, 2)
    """

    observation: Layout
    action_low: NDArray[np.float64]  # [action]
    action_high: NDArray[np.float64]  # [action]
    action_dtype: str = "float32"
    action_shape: tuple[int, ...] | None = None  # None: [action]

    @property
    def obs_dim(self) -> int:
        """The numbers of an observation."""
        return sum(part.size for part in self.observation)

    @property
    def action_dim(self) -> int:
        """The numbers of an action."""
        return len(self.action_low)


def part_name(path: Path) -> str:
    """Return a part of an observation as an expression of Python.

    Example:
        >>> part_name(("arm", 1))
        "observation['arm'][1]"
    """
    return "observation" + "".join(f"[{key!r}]" for key in path)


def flatten_observation(
    layout: Layout, observation: Any, batch: bool = False
) -> NDArray[np.float64]:
    """Return an observation as one vector, its parts in the order of the layout.

    Every part is written in C order (the last index changes fastest). Keys that the layout does
    not name are ignored.

    Args:
        layout: the parts of the observation.
        observation: what the environment returned: an array, or dicts and tuples of arrays.
        batch: whether every array has a further first axis, equal in all of them; the result is
            [batch, obs] then.

    Raises:
        ValueError: A part is missing, has another shape, or does not hold numbers.

    Example:
        >>> layout = (ObservationPart(("goal",), ()), ObservationPart(("pose",), (2, 2)))
        >>> flatten_observation(layout, {"pose": [[1, 2], [3, 4]], "goal": 9.0})
        array([9., 1., 2., 3., 4.])
    """
    parts = [_read_part(part, observation, batch) for part in layout]
    sizes = {len(part) for part in parts}
    if len(sizes) > 1:
        lengths = ", ".join(f"{part.name} {len(x)}" for part, x in zip(layout, parts, strict=True))
        raise ValueError(f"observation: expected batches of equal length, got {lengths}")
    flat = np.concatenate(parts, axis=1)
    return flat if batch else cast(NDArray[np.float64], flat[0])


def _read_part(part: ObservationPart, observation: Any, batch: bool) -> NDArray[np.float64]:
    """Return one part of an observation, [batch, size]."""
    value = observation
    for depth, key in enumerate(part.path):
        value = _get_item(value, key, part_name(part.path[:depth]))
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{part.name}: expected an array of numbers, got {_describe(value)}")
    shape = array.shape[1:] if batch else array.shape
    if shape != part.shape or (batch and not array.ndim):
        expected = f"(batch, {str(part.shape)[1:]}" if batch else part.shape
        raise ValueError(f"{part.name}: expected shape {expected}, got {array.shape}")
    return array.astype(np.float64).reshape(len(array) if batch else 1, part.size)


def _get_item(value: Any, key: str | int, name: str) -> Any:
    """Return an item of a Dict or Tuple observation."""
    if isinstance(value, Mapping):
        if key in value:
            return value[key]
        raise ValueError(f"{name}: expected a key {key!r}, got the keys {[*value]}")
    if isinstance(key, str):
        raise ValueError(f"{name}: expected a dict, got {_describe(value)}")
    if not isinstance(value, tuple | list):
        raise ValueError(f"{name}: expected a tuple, got {_describe(value)}")
    entries = cast(Sequence[Any], value)
    if key >= len(entries):
        raise ValueError(f"{name}: expected at least {key + 1} entries, got {len(entries)}")
    return entries[key]


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        array = cast(NDArray[Any], value)
        return f"an array of shape {array.shape} and type {array.dtype}"
    return f"a {type(value).__name__}"


def scale_action(spaces: TaskSpaces, action: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return an action in [-1, 1] as the environment expects it.

    -1 and 1 become exactly the lower and the upper bound, and nothing lies outside. With bounds
    of -1 and 1, no bit of a float64 action changes.

    Args:
        spaces: the bounds, the type and the shape of the environment's action.
        action: one action [action], or several [batch, action].

    Example:
        >>> spaces = TaskSpaces((), np.array([-3.0, 0.0]), np.array([1.0, 10.0]), "float64")
        >>> scale_action(spaces, np.array([-1.0, 0.5]))
        array([-3. ,  7.5])
    """
    low, high = spaces.action_low, spaces.action_high
    unit = np.asarray(action, np.float64)
    scaled = np.clip((low + high) / 2 + (high - low) / 2 * unit, low, high)
    scaled = np.where(unit >= 1, high, np.where(unit <= -1, low, scaled))
    shape = (spaces.action_dim,) if spaces.action_shape is None else spaces.action_shape
    return scaled.astype(spaces.action_dtype).reshape((*unit.shape[:-1], *shape))


def spaces_to_json(spaces: TaskSpaces) -> dict[str, Any]:
    """Return the spaces as values that JSON can hold; `spaces_from_json` restores them exactly.

    Example:
        >>> part = ObservationPart(("pose", 0), (3,))
        >>> spaces_to_json(TaskSpaces((part,), np.array([-1.0]), np.array([2.0])))
        {'observation': [{'path': ['pose', 0], 'shape': [3]}], \
'action': {'low': [-1.0], 'high': [2.0], 'dtype': 'float32', 'shape': [1]}}
    """
    shape = (spaces.action_dim,) if spaces.action_shape is None else spaces.action_shape
    return {
        "observation": [{"path": [*x.path], "shape": [*x.shape]} for x in spaces.observation],
        "action": {
            "low": [float(x) for x in spaces.action_low],
            "high": [float(x) for x in spaces.action_high],
            "dtype": spaces.action_dtype,
            "shape": [*shape],
        },
    }


def spaces_from_json(record: Any) -> TaskSpaces:
    """Return the spaces that `spaces_to_json` recorded.

    Raises:
        ValueError: The record is not one of spaces; the text names the entry.

    Example:
        >>> record = {
        ...     "observation": [{"path": [], "shape": [2]}],
        ...     "action": {"low": [-1.0], "high": [2.0], "dtype": "float32", "shape": [1]},
        ... }
        >>> spaces_from_json(record).observation
        (ObservationPart(path=(), shape=(2,)),)
    """
    table = _entries("spaces", record, ("observation", "action"))
    layout = _layout_from_json(table["observation"])
    action = _entries("action", table["action"], ("low", "high", "dtype", "shape"))
    low, high = (_bounds_from_json(f"action.{name}", action[name]) for name in ("low", "high"))
    shape = _shape_from_json("action.shape", action["shape"])
    if not low.size == high.size == math.prod(shape):
        raise ValueError(
            f"action: expected {math.prod(shape)} bounds for shape {shape}, got {low.size} low "
            f"and {high.size} high ones"
        )
    if not (low < high).all():
        raise ValueError("action: expected low < high everywhere")
    if (dtype := action["dtype"]) not in ACTION_DTYPES:
        raise ValueError(f"action.dtype: expected one of {', '.join(ACTION_DTYPES)}, got {dtype!r}")
    return TaskSpaces(layout, low, high, dtype, shape)


def _layout_from_json(records: Any) -> Layout:
    if not isinstance(records, list) or not records:
        raise ValueError(f"observation: expected a list of parts, got {records!r}")
    layout: list[ObservationPart] = []
    for number, record in enumerate(records):
        name = f"observation {number}"
        entries = _entries(name, record, ("path", "shape"))
        path = entries["path"]
        if not isinstance(path, list) or not all(map(is_part_key, path)):
            raise ValueError(f"{name}: path: expected a list of keys and indices, got {path!r}")
        shape = _shape_from_json(f"{name}: shape", entries["shape"])
        layout.append(ObservationPart(tuple(path), shape))
    paths = [part.path for part in layout]
    for path in paths:
        if sum(other[: len(path)] == path for other in paths) > 1:
            raise ValueError(f"observation: expected separate parts, got {part_name(path)} twice")
    return tuple(layout)


def _entries(name: str, record: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(record, dict) or record.keys() != set(keys):
        raise ValueError(f"{name}: expected an object with {', '.join(keys)}, got {record!r}")
    return cast(dict[str, Any], record)


def is_part_key(key: object) -> bool:
    """Return whether a part of an observation can have this key or index."""
    return isinstance(key, str) or (type(key) is int and key >= 0)


def _shape_from_json(name: str, shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
        raise ValueError(f"{name}: expected a list of positive integers, got {shape!r}")
    return tuple(cast(list[int], shape))


def _bounds_from_json(name: str, bounds: Any) -> NDArray[np.float64]:
    if isinstance(bounds, list) and all(type(x) in (int, float) for x in bounds):
        with contextlib.suppress(OverflowError):  # an integer that float64 cannot hold
            if np.isfinite(array := np.array(bounds, np.float64)).all():
                return array
    raise ValueError(f"{name}: expected a list of finite numbers, got {bounds!r}")
