"""Typed fields with help and a range: how every number of the project is declared."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

LARGEST = 2**31 - 1
WIDEST = 2**20  # of a layer or a batch: products of a few such fit into integers
HUGE = 1e18  # the product of two fits into single precision


class Range(NamedTuple):
    """What a field allows, as a phrase for people and as a test."""

    words: str
    holds: Callable[[Any], bool]


def at_least(least: int) -> Range:
    """Whole numbers from `least` on, as far as the device's integers go."""
    words = f"a whole number from {least} to {LARGEST}"
    return Range(words, lambda x: least <= x <= LARGEST)


def between(low: float, high: float) -> Range:
    """Numbers from `low` to `high`, both allowed."""
    return Range(f"a number from {low:g} to {high:g}", lambda x: low <= x <= high)


def between_whole(low: int, high: int) -> Range:
    """Whole numbers from `low` to `high`, both allowed."""
    words = f"a whole number from {low} to {high}"
    return Range(words, lambda x: low <= x <= high)


def size(least: int) -> Range:
    """How many features, units or transitions there may be."""
    return between_whole(least, WIDEST)


def fraction_below(high: float) -> Range:
    """Numbers from 0 on that stay below `high`."""
    return Range(f"a number from 0 to below {high:g}", lambda x: 0 <= x < high)


def one_of(*values: str) -> Range:
    """One of a few words."""
    return Range("one of " + ", ".join(values), lambda x: x in values)


FINITE = between(-HUGE, HUGE)
NON_NEGATIVE = between(0, HUGE)
POSITIVE = Range(f"a number above 0, up to {HUGE:g}", lambda x: 0 < x <= HUGE)
# All of an evaluation's episodes are laid out before the first.
EPISODES = between_whole(1, 100_000)
ANY = Range("any value", lambda _: True)


def option(default: T, text: str, allowed: Range = ANY) -> T:
    """A dataclass field that carries its help and what it allows.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Example:
        ...     utd: int = option(1, "updates per decision step", at_least(1))
        >>> Example().utd
        1
    """
    return dataclasses.field(
        default=default, metadata={"help": text, "allowed": allowed}
    )
