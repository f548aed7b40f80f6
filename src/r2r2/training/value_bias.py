"""What critics expected of episodes under way, and what these give, discounted."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.diagnostics.representation import value_bias
from r2r2.envs.vector.step_types import StepResult
from r2r2.training.evaluation import Playing

Note = tuple[int, int, float, float, float]  # member, number, then an account


class Account(NamedTuple):
    """What was expected of an episode, and what it has given so far."""

    expected: float
    given: float = 0.0  # discounted
    weight: float = 1.0  # of the next reward


class ValueBiases:
    """Value bias of evaluations, each from its beginning to its end.

    Only the episodes that an evaluation begins with count: of those that follow in the
    same slots the first state is seen when the critics have learnt more.

    Args:
        discount: the critics' own.

    Example:
        >>> biases = ValueBiases(discount=0.5)
        >>> biases.begin(member=0, expected=np.array([4.0, 2.0]))
        >>> first, second = Playing(0, 7, 0), Playing(0, 8, 1)
        >>> biases.book(first, 1.0), biases.book(first, 2.0), biases.book(second, 1.0)
        (None, None, None)
        >>> biases.done(0)
        {'expected': 3.0, 'discounted_return': 1.5, 'bias': 1.5, 'episodes': 2}
    """

    def __init__(self, discount: float):
        self._discount = discount
        self._accounts: dict[int, dict[int, Account]] = {}  # by member and number

    def begin(self, member: int, expected: NDArray[np.floating]) -> None:
        """Opens a member's accounts: what is expected of each of its episodes, [E]."""
        numbered = enumerate(expected)
        self._accounts[member] = {n: Account(float(x)) for n, x in numbered}

    def take(self, playing: Sequence[Playing], step: StepResult) -> None:
        """Books a turn of all episodes under way."""
        for one, reward in zip(playing, step.reward, strict=True):
            self.book(one, float(reward))

    def book(self, one: Playing, reward: float) -> None:
        """Books one step of an episode."""
        own = self._accounts.get(one.member, {})
        if account := own.get(one.number):
            expected, given, weight = account
            given, weight = given + weight * reward, weight * self._discount
            own[one.number] = Account(expected, given, weight)

    def begun(self, one: Playing, same: bool) -> None:
        """An episode had to begin again, if not from the `same` state: it counts not.

        What it gave is void either way.
        """
        own = self._accounts.get(one.member, {})
        account = own.pop(one.number, None)
        if account and same:
            own[one.number] = Account(account.expected)

    def done(self, member: int) -> dict[str, float | int] | None:
        """Closes a member's accounts, if there are some."""
        numbered = self._accounts.pop(member, {})
        if not numbered:
            return None
        own = [numbered[number] for number in sorted(numbered)]
        expected, given = (np.array([x[i] for x in own]) for i in (0, 1))
        return {
            "expected": float(expected.mean()),
            "discounted_return": float(given.mean()),
            "bias": value_bias(expected, given),
            "episodes": len(own),
        }

    def notes(self) -> list[Note]:
        """All accounts, each in a row with its member and number."""
        accounts = self._accounts.items()
        return [(member, n, *x) for member, own in accounts for n, x in own.items()]

    def restore(self, notes: Sequence[Note], again: bool) -> None:
        """Goes back to what `notes` gave, or to where all episodes begin `again`."""
        self._accounts = {}
        for member, number, *rest in notes:
            account = Account(rest[0]) if again else Account(*rest)
            self._accounts.setdefault(member, {})[number] = account
