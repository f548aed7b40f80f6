"""Rows of a fleet's rings to the host and back, in blocks of one compiled size."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Array
from r2r2.replay.buffer import Rows

HostRows = Mapping[str, NDArray[Any]]  # the fields of `Rows`, each [rows, ...]

BLOCK = 2048  # rows moved by one program


@jax.jit
def take_rows(rows: Rows, member: Array, index: Array) -> Rows:
    """A member's rows at `index`."""
    return Rows(*(field[member, index] for field in rows))


def _put(rows: Rows, member: Array, index: Array, block: Rows) -> Rows:
    pairs = zip(rows, block, strict=True)
    return Rows(*(x.at[member, index].set(new, mode="drop") for x, new in pairs))


_put_in_place: Any = jax.jit(_put, donate_argnums=0)


def fetch_rows(rows: Rows, member: int, first: int, last: int) -> HostRows:
    """Copies of a member's rows `first` to `last`, counted from its run's beginning.

    Rows that the ring has lost meanwhile are left out: it gives the newest of them.
    """
    size = rows.reward.shape[1]
    numbers = np.arange(max(first, last - size + 1), last + 1)
    parts: list[Rows] = []
    for begin in range(0, len(numbers), BLOCK):
        here = numbers[begin : begin + BLOCK]
        index = jnp.asarray(np.resize(here, BLOCK) % size)
        block = jax.device_get(take_rows(rows, jnp.asarray(member), index))
        parts.append(Rows(*(field[: len(here)] for field in block)))
    columns = map(np.concatenate, zip(*parts, strict=True))
    return dict(zip(Rows._fields, columns, strict=True))


def put_rows(rows: Rows, member: int, first: int, saved: HostRows) -> Rows:
    """The rings with saved rows at their places; `rows` itself is used up."""
    size, count = rows.reward.shape[1], len(saved["reward"])
    for begin in range(0, count, BLOCK):
        here = np.arange(begin, min(begin + BLOCK, count))
        index = np.full(BLOCK, size)  # beyond the end, which is nowhere
        index[: len(here)] = (first + here) % size
        block = Rows(*(_filled(saved[name][here]) for name in Rows._fields))
        rows = _put_in_place(rows, jnp.asarray(member), jnp.asarray(index), block)
    return rows


def _filled(field: NDArray[Any]) -> Array:
    padding = np.zeros((BLOCK - len(field), *field.shape[1:]), field.dtype)
    return jnp.asarray(np.concatenate([field, padding]))
