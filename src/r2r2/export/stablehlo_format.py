"""Export to StableHLO: `policy.stablehlo`, a program that `jax.export` serializes."""

import importlib
from typing import Any

import numpy as np

from r2r2.export.layout import action_shape, is_nested, observation_layout
from r2r2.export.python_source import function_source
from r2r2.export.simplify import simplify
from r2r2.policy.batching import batch_program
from r2r2.policy.policy import PolicyParts

PLATFORMS = ("cpu", "cuda", "tpu")


def stablehlo_files(parts: PolicyParts) -> dict[str, bytes]:
    """Return the content of `policy.stablehlo`.

    Its argument is a batch of observations, float64 [batch, ...]; for a Dict or a Tuple, a
    dict of their parts by the names of `observation_layout`.
    """
    jax: Any = importlib.import_module("jax")
    jax_export: Any = importlib.import_module("jax.export")
    layout = observation_layout(parts)
    batch, *_ = jax_export.symbolic_shape("batch")
    with (
        jax.enable_x64(True),
        jax.numpy_rank_promotion("allow"),
        jax.default_matmul_precision("highest"),
    ):
        shapes = {x.name: jax.ShapeDtypeStruct((batch, *x.part.shape), np.float64) for x in layout}
        function = jax.jit(_policy_function(parts, jax.numpy))
        argument = shapes if is_nested(parts) else shapes[layout[0].name]
        exported = jax_export.export(function, platforms=PLATFORMS)(argument)
    return {"policy.stablehlo": bytes(exported.serialize())}


def _policy_function(parts: PolicyParts, jnp: Any) -> Any:
    """Return the whole policy as a function of JAX arrays."""
    program, size = simplify(parts), parts.spaces.obs_dim
    batched = batch_program(program, (), np.zeros(size, parts.dtype))
    source = function_source(batched, np.zeros((2, size), parts.dtype))
    # The same source as in the export to NumPy, with JAX in place of NumPy.
    names: dict[str, Any] = {"np": jnp}
    exec(f"def network(x, w):\n{source}", names)
    layout = observation_layout(parts)
    low, high = parts.spaces.action_low, parts.spaces.action_high
    shape = action_shape(parts)

    def policy(observation: Any) -> Any:
        flat = observation
        if is_nested(parts):
            rows = [observation[x.name].reshape(-1, x.stop - x.start) for x in layout]
            flat = jnp.concatenate(rows, axis=1)
        x = flat.reshape(-1, size)
        if parts.mean is not None and parts.deviation is not None:
            x = (x - parts.mean) / parts.deviation
        x = x.astype(parts.dtype)
        weights = [jnp.asarray(value) for value in program.constants]
        action = names["network"](x, weights).astype(jnp.float64)
        action = jnp.clip((low + high) / 2 + (high - low) / 2 * action, low, high)
        finite = jnp.isfinite(x).all(axis=1, keepdims=True)
        action = jnp.where(finite, action, jnp.nan).astype(parts.spaces.action_dtype)
        return action.reshape(-1, *shape)

    return policy
