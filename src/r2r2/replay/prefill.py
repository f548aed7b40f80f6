"""Recorded transitions as rows of a replay, and data that part of every batch is drawn from."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.config.resolve import offline_rows
from r2r2.replay.buffer import HostRows


class RecordedRows(NamedTuple):
    """Recorded transitions on the host, laid out as rows of a replay."""

    rows: HostRows  # [P, ...]
    live: NDArray[np.bool_]  # [P], rows that hold a transition

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Whether each transition is the last one before a dead row, [N]."""
        return ~np.append(self.live[1:], False)[self.live]


class RecordedSteps(NamedTuple):
    """N recorded transitions, actions in [-1, 1]; those of an episode follow each other."""

    obs: NDArray[Any]  # [N, obs]
    action: NDArray[Any]  # [N, action]
    reward: NDArray[Any]  # [N]
    next_obs: NDArray[Any]  # [N, obs]
    terminated: NDArray[np.bool_]  # [N]
    ended: NDArray[np.bool_]  # [N], terminated or truncated


def lay_out(steps: RecordedSteps) -> RecordedRows:
    """Return the rows of recorded transitions.

    Two transitions share the row between them if the first one's next observation is the second
    one's observation. Otherwise, and at the end, a dead row holds the next observation.
    """
    last = np.ones(len(steps.reward), dtype=bool)
    follows = (steps.next_obs[:-1] == steps.obs[1:]).all(axis=1)
    last[:-1] = steps.ended[:-1] | ~follows
    here = np.arange(len(last)) + np.append(0, np.cumsum(last)[:-1])
    count = len(last) + int(last.sum())
    obs = np.zeros((count, *steps.obs.shape[1:]), np.result_type(steps.obs, steps.next_obs))
    obs[here], obs[here[last] + 1] = steps.obs, steps.next_obs[last]
    rows = {"obs": obs}
    for name in ("action", "reward", "terminated"):
        column = getattr(steps, name)
        rows[name] = np.zeros((count, *column.shape[1:]), column.dtype)
        rows[name][here] = column
    live = np.zeros(count, dtype=bool)
    live[here] = True
    return RecordedRows(rows, live)


def offline_places(share: float, batch_size: int) -> NDArray[np.bool_]:
    """Return which rows of a batch are drawn from recorded data, [B].

    They are spread evenly, since an agent may split its batch: every part of it has the same share.
    """
    places = np.arange(batch_size + 1) * offline_rows(share, batch_size) // batch_size
    return np.diff(places) > 0
