"""The agents by name, and every number each of them has.

Defaults are those of the paper (R2R2) and of the base algorithms' releases; the help
of a field says where it is otherwise.
"""

import dataclasses

from r2r2.config.options import (
    NON_NEGATIVE,
    POSITIVE,
    at_least,
    between,
    fraction_below,
    one_of,
    option,
)
from r2r2.config.refusal import Refusal, did_you_mean


@dataclasses.dataclass(frozen=True)
class Representation:
    """Weights of the encoder's loss: SPL alone, or with R2R2's two terms.

    Example:
        >>> R2R2.lambda_rr, R2R2.lambda_var
        (0.01, 0.01)
    """

    lambda_spl: float = option(1.0, "weight of self-prediction, L_SPL", NON_NEGATIVE)
    lambda_rr: float = option(
        0.0, "weight of redundancy reduction, L_RR; 0 removes the term", NON_NEGATIVE
    )
    lambda_var: float = option(
        0.0, "weight of the variance hinge, L_Var; 0 removes the term", NON_NEGATIVE
    )
    variance_threshold: float = option(
        1.0, "v_th, the deviation at which the hinge closes", POSITIVE
    )
    zero_centred: bool = option(False, "ablation: subtract the batch mean before L_RR")


R2R2 = Representation(lambda_rr=0.01, lambda_var=0.01)


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam's constants; the learning rates are the networks' own."""

    beta1: float = option(0.9, "decay of the first moment", fraction_below(1))
    beta2: float = option(0.999, "decay of the second moment", fraction_below(1))
    epsilon: float = option(1e-8, "added to the root of the second moment", POSITIVE)


@dataclasses.dataclass(frozen=True)
class Assessment:
    """How long TD7 assesses its acting policy before it trains again."""

    early_episodes: int = option(
        1, "episodes of an assessment before the switch", at_least(1)
    )
    late_episodes: int = option(
        20, "episodes of an assessment after the switch", at_least(1)
    )
    switch: int = option(
        750_000, "when the switch comes, in what `count` says", at_least(0)
    )
    count: str = option(
        "updates",
        "what `switch` counts: updates (as released) or decisions trained on",
        one_of("updates", "decisions"),
    )
    reset_weight: float = option(
        0.9, "factor on the best score at the switch", between(0, 1)
    )


@dataclasses.dataclass(frozen=True)
class TD7Config:
    """TD7 (Fujimoto et al., 2023), plain or with R2R2 on its encoder.

    Example:
        >>> TD7Config(width=64).representation.lambda_rr
        0.0
    """

    name: str = "td7"
    width: int = option(256, "units of every hidden layer", at_least(1))
    latent: int = option(256, "features of zs and zsa", at_least(2))
    batch_size: int = option(256, "transitions per update", at_least(2))
    discount: float = option(0.99, "gamma", between(0, 1))
    encoder_rate: float = option(3e-4, "learning rate of the encoder", POSITIVE)
    critic_rate: float = option(3e-4, "learning rate of the critics", POSITIVE)
    actor_rate: float = option(3e-4, "learning rate of the actor", POSITIVE)
    policy_delay: int = option(2, "updates per update of the actor", at_least(1))
    target_period: int = option(
        250, "updates between copies to the targets", at_least(1)
    )
    target_noise: float = option(
        0.2, "deviation of the noise on target actions", NON_NEGATIVE
    )
    noise_clip: float = option(0.5, "where that noise is clipped", NON_NEGATIVE)
    exploration_noise: float = option(
        0.1, "deviation of the noise on actions in training", NON_NEGATIVE
    )
    priority_exponent: float = option(0.4, "LAP's alpha", between(0, 1))
    min_priority: float = option(
        1.0, "LAP's smallest error, where its Huber loss turns linear", POSITIVE
    )
    representation: Representation = Representation()
    adam: Adam = Adam()
    policy_checkpoints: bool = option(
        True,
        "assess the policy over whole episodes and train in between; without, train "
        "after every step",
    )
    assessment: Assessment = Assessment()


AgentConfig = TD7Config

WARMUP = {TD7Config: 25_000}

AGENTS: dict[str, tuple[AgentConfig, str]] = {
    "td7": (TD7Config(), "TD7: state-action embeddings, LAP, policy checkpoints"),
    "td7+r2r2": (
        TD7Config(name="td7+r2r2", representation=R2R2),
        "TD7 with R2R2 on its encoder",
    ),
}


def agent_config(name: str) -> AgentConfig:
    """The defaults of a named agent.

    Raises:
        Refusal: There is no agent of that name.

    Example:
        >>> agent_config("td7+r2r2").representation == R2R2
        True
    """
    if name not in AGENTS:
        raise Refusal(
            f"agent is {name!r}; allowed are {', '.join(AGENTS)}"
            + did_you_mean(name, AGENTS)
        )
    return AGENTS[name][0]
