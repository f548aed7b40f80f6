"""Types shared by all agents, and the switch between plain and fast operations.

Axes are ordered [S, G, 2, B, D]: members, updates, twins, batch, features. Functions
of this package are written for one member; `compute` maps them over a fleet.
"""

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp

Array = jax.Array
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Tree = TypeVar("Tree")


class Batch(NamedTuple):
    """Transitions sampled from replay.

    Example:
        >>> zeros = jnp.zeros((4, 3))
        >>> batch = Batch(zeros, zeros, zeros[:, 0], next_obs=zeros, terminated=zeros[:, 0] > 0)
        >>> batch.reward.shape
        (4,)
    """

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
    """Return quantities that every update computes as metrics of one update."""
    return {name: Metric(x, jnp.ones_like(x)) for name, x in quantities.items()}


class Update(NamedTuple):
    """What one update returns besides the next state.

    Example:
        >>> update = Update(None, as_metrics({"loss/critic": jnp.asarray(0.5)}))
        >>> float(update.metrics["loss/critic"].total)
        0.5
    """

    priorities: Array | None  # [B], of the sampled rows, if the agent `prioritizes`
    metrics: dict[str, Metric]


def identity(state: Any) -> Any:
    """Return the state unchanged."""
    return state


class Agent(NamedTuple):
    """An algorithm as pure functions of a state that holds arrays only.

    Randomness is an argument: `update_noise` and `action_noise` draw the numbers that `update` and
    `explore` need, and these two are deterministic. The step that `update` is given counts updates
    from 1 and is exact modulo `policy_period`, in which members that are updated together agree.

    Observations may have leading axes, [..., obs]; actions, values and latents have the same.

    Example:
        >>> from r2r2 import make_agent
        >>> agent = make_agent("minphi", 3, 1, width=8, model_width=8, batch_size=4)
        >>> policy = agent.behavior_policy(agent.init(jax.random.key(0)))
        >>> noise = agent.action_noise(jax.random.key(1))
        >>> agent.explore(policy, jnp.zeros(3), noise).shape
        (1,)
    """

    init: Callable[..., Any]  # key, updates of the run (of `make_agent`: optional) -> state
    behavior_policy: Callable[[Any], Any]  # state -> the policy that collects data
    eval_policy: Callable[[Any], Any]  # state -> the policy that is evaluated
    action_noise: Callable[[Array], Any]  # key -> noise of one action
    explore: Callable[[Any, Array, Any], Array]  # policy, obs, noise -> action
    greedy: Callable[[Any, Array], Array]  # policy, obs -> action
    update_noise: Callable[[Array], Any]  # key -> noise of one update
    # state, batch, noise, step -> next state, Update
    update: Callable[[Any, Batch, Any, Array], tuple[Any, Update]]
    value: Callable[[Any, Array, Array], Array]  # state, obs, action -> value, [B]
    batch_size: int  # rows sampled for one update
    prioritizes: bool = False  # updates return priorities of the rows they sampled
    policy_period: int = 1  # updates between two updates of the policy
    sync_period: int = 0  # updates between two calls of `sync`; 0: never
    sync: Callable[[Any], Any] = identity  # state -> state with new targets
    checkpoint_policy: Callable[[Any], Any] = identity  # copy behavior to eval policy
    # Whether observations and rewards are normalized; the registry sets it by the config.
    normalizes: bool = False
    # state, obs -> Z of the encoder that is trained; None: the agent has no encoder
    encode: Callable[[Any, Array], Array] | None = None


class Replacements:
    """A table of faster implementations of `replaceable` operations."""

    def __init__(self, table: Mapping[Callable[..., Any], Callable[..., Any]]):
        self.table = dict(table)


# Part of JAX's cache keys, so plain and fast programs are never confused.
_replacements = cast(Any, jax).make_user_context(None)


def replaceable(plain: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return an operation that runs as written unless `use_replacements` is active."""

    @functools.wraps(plain)
    def operation(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        active: Replacements | None = _replacements.value
        table = active.table if active else {}
        return cast(Result, table.get(operation, plain)(*args, **kwargs))

    return operation


def use_replacements(replacements: Replacements | None) -> AbstractContextManager[Any]:
    """Trace with faster implementations of some operations; None: as written."""
    return cast("AbstractContextManager[Any]", _replacements(replacements))


@replaceable
def cond(condition: Array | bool, yes: Callable[[], Tree], no: Callable[[], Tree]) -> Tree:
    """Return `yes()` where a scalar condition holds, else `no()`."""
    return cast(Tree, jax.lax.cond(condition, yes, no))


@replaceable
def frozen(network: Tree) -> Tree:
    """Return a network that a loss reads but does not train."""
    return jax.lax.stop_gradient(network)
