"""SimbaV2's recordings: the config they imply, and their names for our weights."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from fixtures import closed_form, golden, hyper, recordings

from r2r2.agents.base import Batch
from r2r2.agents.simbav2 import SimbaV2State, simbav2
from r2r2.agents.simbav2_spl import simbav2_spl
from r2r2.config.agent_configs import SimbaV2Config, SimbaV2SPLConfig
from r2r2.config.common import Representation
from r2r2.envs.spec import Spec

FILES = recordings(
    "simbav2_cdq1_wide",
    "simbav2_cdq0_wide",
    "simbav2_spl_cdq1_wide",
    "simbav2_spl_r2r2_cdq0",
    "simbav2_spl_r2r2_cdq0_strong",
    also=(
        "simbav2_cdq0",
        "simbav2_cdq1",
        "simbav2_spl_cdq0",
        "simbav2_spl_cdq0_wide",
        "simbav2_spl_cdq1",
        "simbav2_spl_r2r2_cdq0_wide",
        "simbav2_spl_r2r2_cdq1",
        "simbav2_spl_r2r2_cdq1_wide",
    ),
)

# Ours -> the release's, within a network.
NAMES = {
    r"trunk/blocks/(\d)/alpha/gain": r"encoder/layers_\1/alpha_scaler/scaler",
    r"trunk/blocks/(\d)/scale/gain": r"encoder/layers_\1/mlp/scaler/scaler",
    r"trunk/blocks/(\d)/up/kernel": r"encoder/layers_\1/mlp/w1/hyper_dense/kernel",
    r"trunk/blocks/(\d)/down/kernel": r"encoder/layers_\1/mlp/w2/hyper_dense/kernel",
    r"(?:trunk/embed/)?scale/gain": r"embedder/scaler/scaler",
    r"(?:trunk/embed/)?linear/kernel": r"embedder/w/hyper_dense/kernel",
    r"value/inner/kernel": r"predictor/w1/hyper_dense/kernel",
    r"value/outer/kernel": r"predictor/w2/hyper_dense/kernel",
    r"value/scale/gain": r"predictor/scaler/scaler",
    r"value/bias": r"predictor/value_bias",
    r"(mean|std)/inner/kernel": r"predictor/\1_w1/hyper_dense/kernel",
    r"(mean|std)/outer/kernel": r"predictor/\1_w2/hyper_dense/kernel",
    r"(mean|std)/scale/gain": r"predictor/\1_scaler/scaler",
    r"(mean|std)/bias": r"predictor/\1_bias",
}
BIASES = {"value_bias": 0.5, "mean_bias": 0.1, "std_bias": 0.1, "bias": 0.1}


class Recording:
    """One file, with the agent it was made by and the state it starts from."""

    def __init__(self, name: str):
        self.file = golden(name)
        self.wide, self.spl = name.endswith("wide"), "spl" in name
        # The strong recording starts where the one with the usual weights does.
        self.start = golden(name.removesuffix("_strong"))
        self.spec = Spec(
            self.file["batch/observation"].shape[-1], self.file["batch/action"].shape[-1]
        )
        self.config = self._config()
        make = simbav2_spl if self.spl else simbav2
        self.agent = make(self.config, self.spec)

    def _config(self) -> SimbaV2Config:
        def read(name: str) -> float:
            return hyper(self.file, name)

        common = {
            "actor_width": read("actor_hidden_dim"),
            "actor_blocks": read("actor_num_blocks"),
            "critic_width": read("critic_hidden_dim"),
            "critic_blocks": read("critic_num_blocks"),
            "shift": read("critic_c_shift"),
            "critics": 2 if read("critic_use_cdq") else 1,
            "bins": read("critic_num_bins"),
            "lowest_value": read("critic_min_v"),
            "highest_value": read("critic_max_v"),
            "batch_size": self.file["batch/reward"].shape[1],
            "discount": read("gamma"),
            "first_rate": read("learning_rate_init"),
            "last_rate": read("learning_rate_end"),
            "target_rate": read("target_tau"),
            "temperature": read("temp_initial_value"),
            "target_entropy": read("temp_target_entropy_coef"),
        }
        if not self.spl:
            return SimbaV2Config(**common)
        weights = Representation()
        if "hp/coef_rr" in self.file:
            coefficients = (read(f"coef_{term}") for term in ("spl", "rr", "var"))
            weights = Representation(*coefficients)
        return SimbaV2SPLConfig(
            **common,
            latent=read("encoder_hidden_dim"),
            model_width=read("dynamics_hidden_dim"),
            encoder_first_rate=read("encoder_lr_init"),
            encoder_last_rate=read("encoder_lr_end"),
            representation=weights,
        )

    def networks(self, state) -> dict[str, object]:
        """Our networks under the release's names."""
        base = state.base if self.spl else state
        names = {
            "actor": base.actor,
            "critic": base.critic,
            "target_critic": base.critic_target,
            "temperature": base.log_temperature,
        }
        if self.spl:
            names |= {
                "encoder": state.encoder,
                "target_encoder": state.encoder_target,
                "lat_env_model": state.model,
                "target_lat_env_model": state.model_target,
            }
        return names

    def name(self, network: str, path) -> str:
        """The release's name of one of our tensors."""
        ours = jax.tree_util.keystr(path, simple=True, separator="/")
        ours = ours.replace("log_std/", "std/")
        if network == "temperature":
            return "temperature/log_temp"
        if "projection" in ours:
            projection = "obs_proj" if network == "actor" else "obs_action_proj"
            theirs = ours.replace("trunk/projection", f"{projection}/Dense_0")
        elif "layers" in ours:
            number, kind = re.fullmatch(r"layers/(\d)/(\w+)", ours).groups()
            theirs = f"fc{int(number) + 1}/{kind}"
        else:
            (theirs,) = (
                re.sub(pattern, new, ours)
                for pattern, new in NAMES.items()
                if re.fullmatch(pattern, ours)
            )
        twins = "VmapSimbaV2SplCritic_0/" if self.spl else "VmapSimbaV2Critic_0/"
        paired = "critic" in network and self.config.critics == 2
        return f"{network}/{twins if paired else ''}{theirs}"

    def official(self, state) -> dict[str, np.ndarray]:
        """Every weight under the release's name and in its layout."""
        arrays = {}
        for network, ours in self.networks(state).items():
            for path, leaf in jax.tree.leaves_with_path(ours):
                arrays[self.name(network, path)] = self._laid_out(network, leaf)
        return arrays

    def _laid_out(self, network: str, leaf) -> np.ndarray:
        single = "critic" in network and self.config.critics == 1
        return np.asarray(leaf[0] if single else leaf)

    def initial_state(self):
        """The recorded start, in the floating type now in force."""
        shapes = jax.eval_shape(self.agent.init, jax.random.key(0), jnp.asarray(1))
        state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        loaded = {
            network: jax.tree.map_with_path(
                lambda path, leaf, network=network: self._loaded(network, path, leaf), ours
            )
            for network, ours in self.networks(state).items()
        }
        base = {
            "actor": loaded["actor"],
            "critic": loaded["critic"],
            "critic_target": loaded["target_critic"],
            "log_temperature": loaded["temperature"],
            # The release's rate has the digits that a quotient of 32-bit counts has,
            # in its float64 runs too.
            "horizon": jnp.asarray(hyper(self.file, "learning_rate_decay_step"), jnp.int32),
        }
        if not self.spl:
            return state._replace(**base)
        return state._replace(
            base=state.base._replace(**base),
            encoder=loaded["encoder"],
            encoder_target=loaded["target_encoder"],
            model=loaded["lat_env_model"],
            model_target=loaded["target_lat_env_model"],
        )

    def _loaded(self, network: str, path, leaf):
        name, like = self.name(network, path), self._laid_out(network, leaf)
        tensor = self.start.get(f"init/{name}")
        if tensor is None:
            tensor = _closed_form(name, like.shape)
        return jnp.asarray(tensor, float).reshape(leaf.shape)

    def batch(self, i: int) -> Batch:
        """The batch of update i."""
        return Batch(
            obs=jnp.asarray(self.file["batch/observation"][i], float),
            action=jnp.asarray(self.file["batch/action"][i], float),
            reward=jnp.asarray(self.file["batch/reward"][i], float),
            next_obs=jnp.asarray(self.file["batch/next_observation"][i], float),
            terminated=jnp.asarray(self.file["batch/terminated"][i] > 0),
        )

    def noise(self, i: int):
        """The numbers drawn for update i."""
        drawn = [self.file[f"upd/eps_{who}"][i] for who in ("actor", "critic")]
        return jnp.asarray(np.stack(drawn), float)


def base_of(state) -> SimbaV2State:
    """SimbaV2's own part of a state."""
    return getattr(state, "base", state)


def _closed_form(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """golden/README.md, section 1.3."""
    last = name.rpartition("/")[2]
    if last == "log_temp":
        return np.float32(np.log(0.01))
    u = closed_form(name, shape)
    if "hyper_dense" in name:
        u = u / np.linalg.norm(u, axis=-2, keepdims=True)
    elif last == "scaler":
        u = np.float64(np.float32(first_gain(name, shape[-1]))) * (1 + 0.2 * u)
    elif last == "kernel":
        u = u * np.sqrt(3 / shape[-2])
    else:
        u = u * BIASES[last]
    return u.astype(np.float32)


def first_gain(name: str, size: int) -> float:
    """Where a scaler of that name and size starts in the release."""
    if "alpha" in name:
        return size**-0.5
    if "mlp" in name:
        return (2 / (size / 4)) ** 0.5 / 2
    return (2 / size) ** 0.5 if "embedder" in name else 1.0
