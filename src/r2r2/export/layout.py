"""The layout of observations and actions, for exported files and their descriptions."""

from typing import NamedTuple

from r2r2.policy.policy import PolicyParts
from r2r2.policy.spaces import ObservationPart


class PartLayout(NamedTuple):
    """Where one part of an observation lies in the flat vector."""

    name: str  # such as 'observation', 'observation/goal' or 'observation/arm/0'
    part: ObservationPart
    start: int
    stop: int


def observation_layout(parts: PolicyParts) -> list[PartLayout]:
    """Return the parts of an observation in the order of the flat vector.

    Example:
        >>> from r2r2.policy.spaces import TaskSpaces
        >>> boxes = ObservationPart(("arm", 0), (2, 3)), ObservationPart(("goal",), (2,))
        >>> parts = PolicyParts(None, (), "float32", TaskSpaces(boxes, None, None))
        >>> [(x.name, x.start, x.stop) for x in observation_layout(parts)]
        [('observation/arm/0', 0, 6), ('observation/goal', 6, 8)]
    """
    layout, start = list[PartLayout](), 0
    for part in parts.spaces.observation:
        stop = start + part.size
        keys = (str(key).replace("%", "%25").replace("/", "%2F") for key in part.path)
        name = "/".join(["observation", *keys])
        layout.append(PartLayout(name, part, start, stop))
        start = stop
    return layout


def is_nested(parts: PolicyParts) -> bool:
    """Return whether an observation is a Dict or a Tuple, even one with a single part."""
    return any(part.path for part in parts.spaces.observation)


def action_shape(parts: PolicyParts) -> tuple[int, ...]:
    """Return the shape of one action, as the environment expects it."""
    spaces = parts.spaces
    return (spaces.action_dim,) if spaces.action_shape is None else spaces.action_shape
