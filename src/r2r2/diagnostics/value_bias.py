"""Value bias: the critics' estimates of evaluation episodes against their returns."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Row = tuple[int, int, float, float, float]  # member, number, and an `EpisodeValue`


def value_bias(values: NDArray[Any], returns: NDArray[Any]) -> float:
    r"""Return by how much the critics overestimate the returns of episodes.

    $$\frac{1}{E} \sum_e \Big(Q(s_0, \pi(s_0)) - \sum_t \gamma^t r_t\Big)_e$$

    Args:
        values: estimates for the first states of the episodes, [E].
        returns: discounted returns of these episodes, [E]; rewards after a time limit
            are missing, a fraction of gamma^T.
    """
    return float(np.mean(values - returns))


class EpisodeValue(NamedTuple):
    """The expected value of an episode and its discounted return so far."""

    expected: float
    discounted: float = 0.0
    weight: float = 1.0  # discount of the next reward


class ValueBiasTracker:
    """Measures the value bias of running evaluations.

    Only the first episode in each slot counts: the critics have learned more by the
    time later ones start.
    """

    def __init__(self, discount: float):
        self._discount = discount
        self._values: dict[int, dict[int, EpisodeValue]] = {}  # by member and number

    def begin(self, member: int, expected: NDArray[np.floating]) -> None:
        """Start tracking a member's episodes, given their expected values [E]."""
        self._values[member] = {n: EpisodeValue(float(x)) for n, x in enumerate(expected)}

    def record(self, member: int, number: int, reward: float) -> None:
        """Record one step of an episode."""
        values = self._values.get(member, {})
        if value := values.get(number):
            expected, discounted, weight = value
            discounted += weight * reward
            values[number] = EpisodeValue(expected, discounted, weight * self._discount)

    def restart(self, member: int, number: int, same_start: bool) -> None:
        """Discard an episode's rewards; stop tracking it if its start changed."""
        values = self._values.get(member, {})
        value = values.pop(number, None)
        if value and same_start:
            values[number] = EpisodeValue(value.expected)

    def finish(self, member: int) -> dict[str, float | int] | None:
        """Stop tracking a member and return its summary; None if it had no episodes."""
        by_number = self._values.pop(member, {})
        if not by_number:
            return None
        values = [by_number[number] for number in sorted(by_number)]
        expected, discounted = (np.array([x[i] for x in values]) for i in (0, 1))
        return {
            "expected": float(expected.mean()),
            "discounted_return": float(discounted.mean()),
            "bias": value_bias(expected, discounted),
            "episodes": len(values),
        }

    def rows(self) -> list[Row]:
        """Return everything as rows for a checkpoint."""
        return [(m, n, *value) for m, values in self._values.items() for n, value in values.items()]

    def restore(self, rows: Sequence[Row], again: bool) -> None:
        """Restore what `rows` returned; with `again`, all episodes start over."""
        self._values = {}
        for member, number, *rest in rows:
            value = EpisodeValue(rest[0]) if again else EpisodeValue(*rest)
            self._values.setdefault(member, {})[number] = value
