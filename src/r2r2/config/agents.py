"""Registry of agents: one `AgentSpec` each, built in or from a user's module."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from r2r2.config.agent_configs import MinPhiConfig, SimbaV2Config, SimbaV2SPLConfig, TD7Config
from r2r2.config.common import R2R2, AgentConfig
from r2r2.config.errors import UserError, did_you_mean, invalid_value
from r2r2.config.imports import import_object

DEFAULT_AGENT = "td7+r2r2"


@dataclasses.dataclass(frozen=True)
class AgentSpec:
    """An agent: its algorithm and its defaults.

    Example:
        >>> AGENTS["td7+r2r2"].base, AGENTS["td7+r2r2"].warmup
        ('td7', 25000)
    """

    name: str  # value of --agent, unless the agent is given as module:NAME
    config: AgentConfig  # default settings
    # (config, spec, utd) -> Agent, or where to import that from: "module:function"
    make: str | Callable[[Any, Any, int], Any]
    warmup: int = 5_000  # decision steps of random actions before training
    # Fields that --quick sets: a small network for a small task.
    preset: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    description: str = ""  # one line for `r2r2 list agents`
    base: str | None = None  # the agent without R2R2, for comparisons


AGENTS: dict[str, AgentSpec] = {}
"""The agents of this process by name; `register_agent` adds one.

Example:
    >>> AGENTS["td7"].config.batch_size
    256
"""


def register_agent(spec: AgentSpec, replace: bool = False) -> AgentSpec:
    """Make an agent available by its name in this process, and return it.

    Args:
        spec: the agent; its config gets its name.
        replace: whether to replace an agent of the same name.

    Raises:
        UserError: The name is taken or not usable.

    Example:
        >>> wide = dataclasses.replace(agent_config("td7"), width=1024)
        >>> spec = AgentSpec("td7-wide", wide, "r2r2.agents.td7:td7", warmup=25_000)
        >>> register_agent(spec).config.name
        'td7-wide'
        >>> del AGENTS["td7-wide"]
    """
    if not spec.name or ":" in spec.name:
        raise UserError(
            f"expected a name without ':', got {spec.name!r}; "
            "'module:NAME' finds an AgentSpec without registration",
            "agent",
        )
    if spec.name in AGENTS and not replace:
        raise UserError(f"{spec.name!r} is already registered", "agent")
    AGENTS[spec.name] = _named(spec, spec.name)
    return AGENTS[spec.name]


def agent_spec(name: str) -> AgentSpec:
    """Return the agent of that name, or the `AgentSpec` at `module:NAME`."""
    if ":" in name:
        return _imported(name)
    if name == "simbav2+r2r2":
        raise UserError(
            f"{name!r} does not exist because SimbaV2 has no encoder; did you mean "
            "'simbav2-spl+r2r2'?",
            "agent",
        )
    if name not in AGENTS:
        expected = f"one of {', '.join(AGENTS)} or module:NAME"
        raise invalid_value("agent", expected, name, did_you_mean(name, AGENTS))
    return AGENTS[name]


def agent_config(name: str) -> AgentConfig:
    """Return the default settings of an agent.

    Raises:
        UserError: There is no such agent.

    Example:
        >>> agent_config("td7+r2r2").representation == R2R2
        True
    """
    return agent_spec(name).config


def _imported(name: str) -> AgentSpec:
    """Return the `AgentSpec` at `module:NAME`, under that name."""
    module_name, _, attribute = name.rpartition(":")
    if not module_name or not attribute:
        expected = "module:NAME, where NAME is an AgentSpec in a module that Python finds"
        raise invalid_value("agent", expected, name)
    spec = import_object(name, "agent", lambda x: isinstance(x, AgentSpec))
    if not isinstance(spec, AgentSpec):
        raise UserError(f"expected an AgentSpec at {name!r}, got {spec!r}", "agent")
    return _named(spec, name)


def _named(spec: AgentSpec, name: str) -> AgentSpec:
    """Return the agent with a name that resolves to it, also from a saved config."""
    return dataclasses.replace(spec, name=name, config=dataclasses.replace(spec.config, name=name))


def _preset(**fields: float) -> dict[str, float]:
    """Return the fields of a small agent, tuned with `benchmarks/quick.py`, by dotted name."""
    fields = {"batch_size": 128, "discount": 0.98} | fields
    return {f"agent.{name}": value for name, value in fields.items()}


_RATES = dict.fromkeys(("encoder_rate", "critic_rate", "actor_rate"), 1e-3)
_SIMBAV2_SMALL = dict[str, float](actor_width=64, critic_width=64, first_rate=1e-3, last_rate=5e-4)

# Checkpoints chosen with more noise than this may stand still when they act without noise.
_TD7_SMALL = dict[str, float](
    width=64, latent=64, batch_size=64, target_period=100, exploration_noise=0.2
)
_TD7 = AgentSpec(
    "td7",
    TD7Config(),
    "r2r2.agents.td7:td7",
    warmup=25_000,
    preset={"steps": 13_000, **_preset(**_TD7_SMALL, **_RATES)},
    description="TD7: state-action embeddings, LAP, policy checkpoints",
)
_BASES = (
    _TD7,
    dataclasses.replace(
        _TD7,
        name="td7-ln",
        config=TD7Config(layer_norm=True),
        description="TD7 with LayerNorm in its encoder",
    ),
    AgentSpec(
        "minphi",
        MinPhiConfig(),
        "r2r2.agents.minphi:minphi",
        preset=_preset(width=64, model_width=64, noise_steps=5_000, **_RATES),
        description="Minimalist phi: actor and critic on self-predictive latents",
    ),
    AgentSpec(
        "simbav2",
        SimbaV2Config(),
        "r2r2.agents.simbav2:simbav2",
        preset=_preset(**_SIMBAV2_SMALL),
        description="SimbaV2: SAC with hyperspherical weights and categorical critics",
    ),
    AgentSpec(
        "simbav2-spl",
        SimbaV2SPLConfig(),
        "r2r2.agents.simbav2_spl:simbav2_spl",
        preset=_preset(
            latent=64,
            model_width=64,
            encoder_first_rate=1e-3,
            encoder_last_rate=5e-4,
            **_SIMBAV2_SMALL,
        ),
        description="SimbaV2 with a self-predictive encoder",
    ),
)


def _with_r2r2(base: AgentSpec) -> AgentSpec:
    """Return an agent with R2R2 on the encoder of its base."""
    config: Any = base.config
    return dataclasses.replace(
        base,
        name=f"{base.name}+r2r2",
        config=dataclasses.replace(config, representation=R2R2),
        description=f"{base.name} with R2R2 on its encoder",
        base=base.name,
    )


for _base in _BASES:
    register_agent(_base)
    if _base.config.representation is not None:
        register_agent(_with_r2r2(_base))
