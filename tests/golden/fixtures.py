"""The recorded numbers: where they are, how they are named, how weights are laid out.

Everything a test needs to know of sizes and hyper-parameters is read from the files, so
other recordings of the same form run through R2R2_GOLDEN with no change.
"""

import functools
import os
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from r2r2.agents.td7 import TD7State, init
from r2r2.compute.update import learn, sample
from r2r2.config.agent_configs import TD7Config
from r2r2.config.common import Adam, Representation
from r2r2.envs.spec import Spec
from r2r2.replay import buffer as ring

FOLDER = Path(os.environ.get("R2R2_GOLDEN") or Path(__file__).parent / "data")


def recordings(*required: str, also: tuple[str, ...] = ()) -> list[str]:
    """Names of the files to run; a required one that is missing fails its test.

    The repository has room for the required ones, R2R2_GOLDEN may name them all.
    """
    return [*required, *(name for name in also if (FOLDER / f"{name}.npz").exists())]


TD7_FILES = recordings("td7", "td7_wide", "td7_r2r2_wide", also=("td7_r2r2",))
NETWORKS = (
    "encoder",
    "fixed_encoder",
    "fixed_encoder_target",
    "critic",
    "critic_target",
    "actor",
    "actor_target",
)
CHECKPOINTS = ("checkpoint_actor", "checkpoint_encoder")


@functools.cache
def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def hyper(file: dict[str, np.ndarray], name: str) -> float:
    return file[f"hp/{name}"].item()


def td7_config(file: dict[str, np.ndarray]) -> TD7Config:
    rate = hyper(file, "lr")
    return TD7Config(
        width=hyper(file, "hidden"),
        latent=hyper(file, "zs_dim"),
        batch_size=hyper(file, "batch_size"),
        discount=hyper(file, "discount"),
        encoder_rate=rate,
        critic_rate=rate,
        actor_rate=rate,
        policy_delay=hyper(file, "policy_freq"),
        target_period=hyper(file, "target_update_rate"),
        target_noise=hyper(file, "target_policy_noise"),
        noise_clip=hyper(file, "noise_clip"),
        exploration_noise=hyper(file, "exploration_noise"),
        priority_exponent=hyper(file, "alpha"),
        min_priority=hyper(file, "min_priority"),
        representation=Representation(
            lambda_rr=hyper(file, "lambda_rr"), lambda_var=hyper(file, "lambda_var")
        ),
        adam=Adam(),
    )


def spec(file: dict[str, np.ndarray]) -> Spec:
    return Spec(hyper(file, "obs_dim"), hyper(file, "act_dim"))


def one_step_episodes(sizes: Spec, seen: ring.Transition) -> ring.Replay:
    """Return a replay of transitions [N, ...], each a separate episode of two rows.

    `seen.obs` holds the transitions' own observations.
    """
    seen = jax.tree.map(lambda x: x if x.dtype == bool else x.astype(float), seen)
    rows = 2 * len(seen.obs) + 1
    # One block holds every row, so a recorded uniform is a draw's only number.
    empty = ring.init(rows, sizes, seen.obs[:1], fanout=rows)
    steps = seen._replace(obs=jnp.roll(seen.obs, -1, axis=0))
    only = jnp.zeros(1, int)

    def add(replay, step):
        return ring.add(replay, only, jax.tree.map(lambda x: x[None], step)), None

    return jax.jit(lambda replay: jax.lax.scan(add, replay, steps))(empty)[0]


def update_once(agent, data, learner, member, draws, step):
    """Make one update of one member with given random numbers."""
    inputs = sample(data, learner.priorities, member, draws)
    return learn(agent, learner, inputs, step)


def layer_names(network: str) -> list[tuple[str, ...]]:
    """The release's names of a network's layers, in our order; the twins' in pairs."""
    if "encoder" in network:
        return [(f"{part}{i}",) for part in ("zs", "zsa") for i in (1, 2, 3)]
    if "critic" in network:
        return [("q01", "q02"), ("q1", "q4"), ("q2", "q5"), ("q3", "q6")]
    return [("l0",), ("l1",), ("l2",), ("l3",)]


def our_layers(network):
    """The linear layers of one of our networks, in the order of `layer_names`."""
    if hasattr(network, "state_layers"):
        return [*network.state_layers, *network.action_layers]
    return [network.embed, *network.layers]


def official(state: TD7State, name: str) -> dict[str, np.ndarray]:
    """One of our networks under the release's names and in its layout, (out, in)."""
    arrays = {}
    pairs = zip(layer_names(name), our_layers(getattr(state, name)), strict=True)
    for names, layer in pairs:
        kernels = layer.kernel if len(names) == 2 else layer.kernel[None]
        biases = layer.bias if len(names) == 2 else layer.bias[None]
        for layer_name, kernel, bias in zip(names, kernels, biases, strict=True):
            arrays[f"{layer_name}.weight"] = np.asarray(kernel).T
            arrays[f"{layer_name}.bias"] = np.asarray(bias)
    return arrays


def initial_state(file: dict[str, np.ndarray]) -> TD7State:
    """The recorded start, in the floating type now in force."""
    state = jax.jit(lambda key: init(td7_config(file), spec(file), key))(jax.random.key(0))
    closed_form = "init/actor/l0.weight" not in file
    networks = NETWORKS + (CHECKPOINTS if closed_form else ())
    loaded = {name: _loaded(file, state, name) for name in networks}
    if not closed_form:
        loaded["checkpoint_actor"] = loaded["actor"]
        loaded["checkpoint_encoder"] = loaded["fixed_encoder"]
    return state._replace(**loaded)


def _loaded(file, state: TD7State, network: str):
    like = getattr(state, network)
    layers = []
    for names, layer in zip(layer_names(network), our_layers(like), strict=True):
        parts = {}
        for kind, axes in (("weight", (-1, -2)), ("bias", (-1,))):
            ours = layer.kernel if kind == "weight" else layer.bias
            shape = tuple(ours.shape[axis] for axis in axes)
            fan_in = layer.kernel.shape[-2]
            stack = [_tensor(file, f"{network}/{name}.{kind}", shape, fan_in) for name in names]
            parts[kind] = np.stack(stack) if len(names) == 2 else stack[0]
        kernel = np.swapaxes(parts["weight"], -1, -2)
        layers += [jnp.asarray(kernel, float), jnp.asarray(parts["bias"], float)]
    return jax.tree.unflatten(jax.tree.structure(like), layers)


def _tensor(file, name: str, shape: tuple[int, ...], fan_in: int) -> np.ndarray:
    if f"init/{name}" in file:
        return file[f"init/{name}"]
    layer = name.split("/")[1].split(".")[0]
    gain = {"l3": 8, "q3": 24, "q6": 24}.get(layer, 1)
    return (closed_form(name, shape) * gain / np.sqrt(fan_in)).astype(np.float32)


def closed_form(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The recordings' own pseudo-random weights in [-1, 1), from a name alone."""
    mask = np.uint64(0xFFFFFFFF)
    h = np.arange(np.prod(shape), dtype=np.uint64) * np.uint64(2654435761)
    h = (h + np.uint64(zlib.crc32(name.encode()))) & mask
    for _ in range(2):
        h ^= h >> np.uint64(16)
        h = (h * np.uint64(0x045D9F3B)) & mask
    h ^= h >> np.uint64(16)
    return (h / 2.0**31 - 1.0).reshape(shape)


def digest(file, tensor: np.ndarray, name: str) -> np.ndarray:
    """Sum, norm and the sampled entries of a tensor, as recorded for large ones."""
    flat = np.asarray(tensor, dtype=np.float64).reshape(-1)
    picked = flat[file[f"idx/{name}"]]
    return np.concatenate([[flat.sum(), np.linalg.norm(flat)], picked])
