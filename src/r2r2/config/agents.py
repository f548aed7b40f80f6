"""The agents by name.

Defaults are those of the paper (R2R2) and of the base algorithms' releases; the help
of a field says where it is otherwise.
"""

from r2r2.config.common import R2R2
from r2r2.config.errors import UserError, did_you_mean
from r2r2.config.minphi import MinPhiConfig
from r2r2.config.simbav2 import SimbaV2Config, SimbaV2SPLConfig
from r2r2.config.td7 import TD7Config

AgentConfig = TD7Config | MinPhiConfig | SimbaV2Config

WARMUP: dict[type[AgentConfig], int] = {
    TD7Config: 25_000,
    MinPhiConfig: 5_000,
    SimbaV2Config: 5_000,
    SimbaV2SPLConfig: 5_000,
}

AGENTS: dict[str, tuple[AgentConfig, str]] = {
    "td7": (TD7Config(), "TD7: state-action embeddings, LAP, policy checkpoints"),
    "td7+r2r2": (
        TD7Config(name="td7+r2r2", representation=R2R2),
        "TD7 with R2R2 on its encoder",
    ),
    "td7-ln": (
        TD7Config(name="td7-ln", layer_norm=True),
        "TD7 with LayerNorm in its encoder",
    ),
    "td7-ln+r2r2": (
        TD7Config(name="td7-ln+r2r2", layer_norm=True, representation=R2R2),
        "TD7-LN with R2R2 on its encoder",
    ),
    "minphi": (
        MinPhiConfig(),
        "Minimalist phi: actor and critic on the latents of a self-predictive encoder",
    ),
    "minphi+r2r2": (
        MinPhiConfig(name="minphi+r2r2", representation=R2R2),
        "Minimalist phi with R2R2 on its encoder",
    ),
    "simbav2": (
        SimbaV2Config(),
        "SimbaV2: SAC with weights on the sphere and categorical critics",
    ),
    "simbav2-spl": (
        SimbaV2SPLConfig(),
        "SimbaV2 beside a self-predictive encoder",
    ),
    "simbav2-spl+r2r2": (
        SimbaV2SPLConfig(name="simbav2-spl+r2r2", representation=R2R2),
        "SimbaV2-SPL with R2R2 on its encoder",
    ),
}


def agent_config(name: str) -> AgentConfig:
    """The defaults of a named agent.

    Raises:
        UserError: There is no agent of that name.

    Example:
        >>> agent_config("td7+r2r2").representation == R2R2
        True
    """
    if name == "simbav2+r2r2":
        raise UserError(
            f"agent is {name!r}; SimbaV2 has no encoder that R2R2 could act on, but "
            "simbav2-spl+r2r2 has one"
        )
    if name not in AGENTS:
        raise UserError(
            f"agent is {name!r}; allowed are {', '.join(AGENTS)}"
            + did_you_mean(name, AGENTS)
        )
    return AGENTS[name][0]
