"""Adam, learning-rate schedules, gradient clipping and target networks."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp

from r2r2.agents.base import Array, replaceable
from r2r2.agents.networks.hypersphere import project
from r2r2.config.common import Adam

Params = TypeVar("Params")
Schedule = Callable[[Array], Array]  # steps taken so far -> learning rate
Loss = Callable[[Any], tuple[Array, Any]]  # params -> loss, auxiliary outputs
# (AdamState,) or, with a schedule, (AdamState, ScheduleState): the tuple is part of
# the names of arrays in checkpoints.
OptState = tuple[Any, ...]


class AdamState(eqx.Module):
    """Steps taken so far, and the moments of the gradients."""

    count: Array
    mu: Any
    nu: Any


class ScheduleState(eqx.Module):
    """Steps taken so far, as the learning rate counts them."""

    count: Array


def is_opt_state(node: object) -> bool:
    """Return whether a part of an agent's state is an optimizer's state."""
    return isinstance(node, tuple) and bool(node) and isinstance(node[0], AdamState)


def linear_schedule(first: float, last: float, horizon: Array) -> Schedule:
    """Return a learning rate that goes linearly from `first` to `last` at `horizon`."""
    # The horizon is an array, so runs of any length share one program.

    def learning_rate(steps: Array) -> Array:
        remaining = 1 - jnp.minimum(steps / horizon, 1)
        return last + (first - last) * remaining

    return learning_rate


class Optimizer(NamedTuple):
    """Adam as in PyTorch: epsilon is added outside the root."""

    config: Adam
    learning_rate: float | Schedule

    def init(self, params: Any) -> OptState:
        """Return the state before the first step."""
        count = jnp.zeros((), dtype=jnp.int32)
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        adam = AdamState(count, mu, nu)
        return (adam, ScheduleState(count)) if callable(self.learning_rate) else (adam,)

    def rate(self, count: Array) -> Array | float:
        """Return the learning rate after `count` steps."""
        rate = self.learning_rate
        return rate(count) if callable(rate) else rate


class Step(NamedTuple):
    """The result of `minimize`: everything but the loss is from after the step."""

    loss: Array
    aux: Any
    params: Any
    opt_state: OptState
    target: Any


@replaceable
def minimize(
    optimizer: Optimizer,
    loss: Loss,
    params: Any,
    opt_state: OptState,
    target: Any = None,
    tau: float = 0.0,
) -> Step:
    """Take one optimizer step on a loss, then move the target network, if any."""
    (value, aux), grads = jax.value_and_grad(loss, has_aux=True)(params)
    stepped = adam_step(optimizer, grads, opt_state, params, target, tau)
    return Step(value, aux, *stepped)


@replaceable
def adam_step(
    optimizer: Optimizer,
    grads: Params,
    opt_state: OptState,
    params: Params,
    target: Params | None = None,
    tau: float = 0.0,
) -> tuple[Params, OptState, Params | None]:
    """Take one step of Adam; weights of `UnitLinear` layers are normalized after it."""
    adam, b1, b2 = opt_state[0], optimizer.config.beta1, optimizer.config.beta2
    rate, count = optimizer.rate(adam.count), adam.count + 1
    mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, adam.mu, grads)
    nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g**2, adam.nu, grads)

    def step(p: Array, m: Array, v: Array) -> Array:
        m_hat, v_hat = m / (1 - b1**count), v / (1 - b2**count)
        new: Array = p - rate * m_hat / (jnp.sqrt(v_hat) + optimizer.config.epsilon)
        return new

    params = project(jax.tree.map(step, params, mu, nu))
    if target is not None:
        target = polyak(tau, params, target)
    return params, advance(opt_state, AdamState(count, mu, nu)), target


def advance(opt_state: OptState, adam: AdamState) -> OptState:
    """Return the state with new moments and every counter at their count."""
    return adam, *(type(part)(count=adam.count) for part in opt_state[1:])


@replaceable
def polyak(tau: float, online: Params, target: Params) -> Params:
    """Move a target network towards the online network by a fraction `tau`."""

    def average(new: Array, old: Array) -> Array:
        return tau * new + (1 - tau) * old

    return cast(Params, jax.tree.map(average, online, target))


def clip_by_global_norm(grads: Params, limit: float) -> tuple[Params, Array]:
    """Scale gradients to a norm of at most `limit`; return them and the norm before."""
    norm = global_norm(grads)
    scale = jnp.minimum(1, limit / (norm + 1e-6))  # as in PyTorch
    return cast(Params, jax.tree.map(lambda leaf: leaf * scale, grads)), norm


@replaceable
def global_norm(grads: Any) -> Array:
    """Return the Euclidean norm of all entries of a tree."""
    squares = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(grads)]
    return jnp.sqrt(jnp.sum(jnp.stack(squares)))
