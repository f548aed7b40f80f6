"""Agents for a training loop of one's own: `r2r2.make_agent`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from r2r2.agents import registry
from r2r2.agents.base import Agent, Array, Batch, Update, identity
from r2r2.config.common import AgentConfig
from r2r2.config.errors import invalid_value
from r2r2.config.fields import MAX_INT, at_least, size
from r2r2.config.resolve import resolve_agent
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Spec


def make_agent(
    agent: str | AgentConfig, obs_dim: int, action_dim: int, *, utd: int = 1, **fields: Any
) -> Agent:
    """Return an agent as a record of pure functions, for a training loop of your own.

    The functions are for one agent; map them with `jax.vmap` for several seeds. They are not
    compiled: use `jax.jit(agent.update)`. Three of them do more than those that agents define:

    - `init(key)` needs no second argument: `init(key, updates)` sets the number of updates over
      which SimbaV2's learning rates decay, by default 500,000 times `utd`.
    - `update(state, batch, noise, step)` also moves the targets of TD7 when `step` is a multiple
      of its `target_period`, so a loop needs no call of `sync`. `step` counts updates from 1.
    - `update` checks the shapes of the batch, [B, ...] with B = `agent.batch_size`.

    Actions are in [-1, 1]. If `agent.normalizes` (SimbaV2), observations and rewards must be
    normalized, for example by Gymnasium's `NormalizeObservation` and `NormalizeReward`. If
    `agent.prioritizes` (TD7), `update` returns priorities of the rows for a prioritized replay;
    sampling uniformly works as well.

    Args:
        agent: a name of `r2r2 list agents`, `module:NAME` for an agent of your own, or a config.
        obs_dim: numbers of an observation.
        action_dim: numbers of an action.
        utd: updates per decision step, for schedules that count decision steps.
        **fields: fields of the agent's config, by name or by a unique ending of it.
            SimbaV2 needs `critics` and `discount`, which are otherwise set by the task.

    Raises:
        UserError: There is no such agent or field, or a value is not allowed.

    Example:
        >>> agent = make_agent("td7+r2r2", 3, 1, width=8, latent=8, batch_size=4, lambda_rr=0)
        >>> state = agent.init(jax.random.key(0))
        >>> obs, reward = jnp.ones((4, 3)), jnp.zeros(4)
        >>> batch = Batch(obs, jnp.zeros((4, 1)), reward, next_obs=obs, terminated=reward > 0)
        >>> noise = agent.update_noise(jax.random.key(1))
        >>> state, out = jax.jit(agent.update)(state, batch, noise, 1)
        >>> sorted(out.metrics)[:3]
        ['loss/actor', 'loss/critic', 'loss/encoder']
        >>> agent.encode(state, obs).shape
        (4, 8)
        >>> agent.greedy(agent.eval_policy(state), obs[0]).shape
        (1,)
        >>> states = jax.vmap(agent.init)(jax.random.split(jax.random.key(0), 5))
    """
    if not isinstance(agent, str | AgentConfig):
        raise invalid_value("agent", "a name or an AgentConfig", agent)
    _check_integers(obs_dim=obs_dim, action_dim=action_dim, utd=utd)
    config, spec = resolve_agent(agent, fields), Spec(int(obs_dim), int(action_dim))
    made = registry.build_agent(config, spec, utd)
    registry.check_extra_loss(config, spec)
    horizon = min(RunConfig.steps * utd, MAX_INT)

    def init(key: Array, updates: int | Array = horizon) -> Any:
        return made.init(key, jnp.asarray(updates, dtype=int))

    update = _complete_update(made, spec)
    return made._replace(init=init, update=update, sync=identity, sync_period=0)


def _complete_update(
    agent: Agent, spec: Spec
) -> Callable[[Any, Batch, Any, Array], tuple[Any, Update]]:
    """Return the update of an agent with a check of its batch, and with `sync` when it is due."""

    def update(state: Any, batch: Batch, noise: Any, step: Array) -> tuple[Any, Update]:
        state, out = agent.update(state, _checked(batch, agent.batch_size, spec), noise, step)
        if agent.sync_period:
            due = step % agent.sync_period == 0
            state = jax.lax.cond(due, agent.sync, identity, state)
        return state, out

    return update


def _checked(batch: Batch, rows: int, spec: Spec) -> Batch:
    """Return a batch as arrays of the types that updates expect; raise if a shape is wrong."""
    arrays = Batch(*(jnp.asarray(x, dtype=float) for x in batch))
    obs, action = (rows, spec.obs_dim), (rows, spec.action_dim)
    shapes = Batch(obs, action, (rows,), obs, (rows,))  # type: ignore[arg-type]
    for name, array, shape in zip(Batch._fields, arrays, shapes, strict=True):
        if array.shape != shape:
            raise invalid_value(f"batch.{name}", f"shape {shape}", array.shape)
    return arrays._replace(terminated=arrays.terminated != 0)


def _check_integers(**sizes: int) -> None:
    """Raise a `UserError` if a size is not a positive integer."""
    for name, value in sizes.items():
        allowed = at_least(1) if name == "utd" else size(1)
        is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
        if not is_integer or not allowed.is_valid(value):
            raise invalid_value(name, allowed.description, value)
