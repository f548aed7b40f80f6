"""The vocabulary shared by every stage after `config`.

Axes are ordered [S, G, 2, B, D]: members, updates, twins, batch, features. Every
function here and below is written for one member; `learn.update` and `interact`
map it over the fleet.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


class Batch(NamedTuple):
    """Transitions drawn from replay."""

    obs: Array  # [B, obs]
    action: Array  # [B, action]
    reward: Array  # [B]
    next_obs: Array  # [B, obs]
    terminated: Array  # [B] bool; a time limit is not a termination


class Metric(NamedTuple):
    """A quantity summed over the updates that computed it."""

    total: Array
    times: Array


def as_metrics(quantities: dict[str, Array]) -> dict[str, Metric]:
    """Quantities that every update computes, as metrics of one."""
    return {name: Metric(x, jnp.ones_like(x)) for name, x in quantities.items()}


class Update(NamedTuple):
    """What one update says besides the next state."""

    priorities: Array | None  # [B], of the batch's rows, of agents that `prioritise`
    metrics: dict[str, Metric]


def identity(state: Any) -> Any:
    """For the agents to which a part of the record means nothing."""
    return state


class Agent(NamedTuple):
    """An algorithm as pure functions of a state that holds arrays only.

    Randomness enters as a value: `draw` and `draw_action` say which numbers are
    needed, `update` and `explore` are deterministic. `step` counts updates from 1, and
    is right modulo `phase`: in that, members updated together agree.
    """

    init: Callable[[Array, Array], Any]  # key, updates of the whole run -> state
    behavior_policy: Callable[[Any], Any]  # state -> the policy that acts in training
    eval_policy: Callable[[Any], Any]  # state -> the policy that is evaluated
    action_noise: Callable[[Array], Any]  # key -> draws of one action
    explore: Callable[[Any, Array, Any], Array]  # policy, obs, draws -> action
    greedy: Callable[[Any, Array], Array]  # policy, obs -> action
    update_noise: Callable[[Array], Any]  # key -> draws of one update
    update: Callable[[Any, Batch, Any, Array], tuple[Any, Update]]
    value: Callable[[Any, Array, Array], Array]  # state, obs, action -> value, [B]
    batch_size: int  # rows drawn for one update
    prioritizes: bool = False  # updates say how likely their rows are drawn again
    policy_period: int = 1
    lone_stride: int = 1  # updates to a turn of the loop: see `longest_stride`
    sync_period: int = 0  # 0: never, since the targets move in `update`
    sync: Callable[[Any], Any] = identity  # after every `sync_period`-th update
    checkpoint_policy: Callable[[Any], Any] = (
        identity  # the acting policy becomes the checkpoint
    )
    enter: Callable[[Any], Any] = identity  # states -> as the loop of updates has them
    leave: Callable[[Any], Any] = identity  # and back
    normalizes: bool = False  # observations and rewards, by `interact.normalise`
    # state, obs -> Z of the encoder that is trained; None: the agent has no encoder
    encode: Callable[[Any, Array], Array] | None = None
