"""Settings of Minimalist phi."""

import dataclasses

from r2r2.config.common import ADAM, SPL, Adam, AgentConfig, Representation
from r2r2.config.fields import NON_NEGATIVE, POSITIVE, at_least, between, option, size


@dataclasses.dataclass(frozen=True)
class MinPhiConfig(AgentConfig):
    """Minimalist phi (Ni et al., 2024), optionally with R2R2 on its encoder.

    Example:
        >>> MinPhiConfig(width=64).prediction_weight
        10.0
    """

    name: str = "minphi"
    width: int = option(512, "units per hidden layer, except latent model", size(1))
    model_width: int = option(1024, "units per layer of the latent model", size(1))
    latent: int = option(50, "features of the encoder output", size(2))
    batch_size: int = option(512, "transitions in each of two batches", size(2))
    discount: float = option(0.99, "discount factor", between(0, 1))
    encoder_rate: float = option(1e-4, "learning rate of the encoder", POSITIVE)
    critic_rate: float = option(1e-4, "learning rate of the critics", POSITIVE)
    actor_rate: float = option(1e-4, "learning rate of the actor", POSITIVE)
    target_rate: float = option(0.005, "Polyak coefficient of targets", between(0, 1))
    gradient_clip: float = option(100.0, "maximum gradient norm", POSITIVE)
    prediction_weight: float = option(10.0, "factor on lambda_spl", NON_NEGATIVE)
    actor_weight: float = option(1.0, "weight in the encoder loss", NON_NEGATIVE)
    first_noise: float = option(1.0, "initial std of exploration noise", NON_NEGATIVE)
    last_noise: float = option(0.1, "final std of exploration noise", NON_NEGATIVE)
    noise_steps: int = option(100_000, "decision steps of noise decay", at_least(1))
    noise_clip: float = option(0.3, "clip range of the noise in updates", NON_NEGATIVE)
    action_margin: float = option(1e-6, "actions stay within 1 - margin", between(0, 1))
    phantom_model_step: bool = option(
        False,
        "step the latent model again with zero gradients after the critic loss, as "
        "PyTorch before 2.0 did",
    )
    representation: Representation = SPL
    adam: Adam = ADAM
