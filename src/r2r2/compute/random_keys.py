"""Random keys as functions of (seed, the member's own step, purpose), nothing else."""

import enum

import jax

from r2r2.agents.base import Array


class Purpose(enum.IntEnum):
    """What a key is for; two purposes never share numbers."""

    INIT = 0
    ACT = 1
    LEARN = 2


def member_key(seed: int) -> Array:
    """The key from which all of a member's are derived.

    Threefry, JAX's default: with the faster generators a vmapped seed's numbers depend
    on its neighbours.
    """
    return jax.random.key(seed, impl="threefry2x32")


def step_key(key: Array, purpose: Purpose, step: Array | int) -> Array:
    """The key of one step: of an action (decision steps) or an update (updates)."""
    return jax.random.fold_in(jax.random.fold_in(key, int(purpose)), step)
