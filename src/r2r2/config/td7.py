"""Every number of TD7."""

import dataclasses
from typing import ClassVar

from r2r2.config.common import ADAM, SPL, Adam, Representation
from r2r2.config.fields import (
    NON_NEGATIVE,
    POSITIVE,
    at_least,
    between,
    one_of,
    option,
    size,
)


@dataclasses.dataclass(frozen=True)
class AssessmentConfig:
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
    """TD7 (Fujimoto et al., 2023), plain, with LayerNorm or R2R2 on its encoder.

    Example:
        >>> TD7Config(width=64).representation.lambda_rr
        0.0
    """

    # An episode under way when warm-up is over is finished first.
    warmup_ends_with_episode: ClassVar[bool] = True

    name: str = "td7"
    width: int = option(256, "units of every hidden layer", size(1))
    latent: int = option(256, "features of zs and zsa", size(2))
    layer_norm: bool = option(
        False, "LayerNorm after each hidden layer of the encoder, before its ELU"
    )
    batch_size: int = option(256, "transitions per update", size(2))
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
    representation: Representation = SPL
    adam: Adam = ADAM
    policy_checkpoints: bool = option(
        True,
        "assess the policy over whole episodes and train in between; without, train "
        "after every step",
    )
    assessment: AssessmentConfig = AssessmentConfig()
