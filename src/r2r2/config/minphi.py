"""Every number of Minimalist phi."""

import dataclasses

from r2r2.config.common import ADAM, SPL, Adam, LockstepConfig, Representation
from r2r2.config.fields import NON_NEGATIVE, POSITIVE, at_least, between, option, size


@dataclasses.dataclass(frozen=True)
class MinPhiConfig(LockstepConfig):
    """Minimalist phi (Ni et al., 2024), plain or with R2R2 on its encoder.

    Example:
        >>> MinPhiConfig(width=64).prediction_weight
        10.0
    """

    name: str = "minphi"
    width: int = option(512, "units of hidden layers but the model's", size(1))
    model_width: int = option(1024, "units of the latent model's layers", size(1))
    latent: int = option(50, "features of the encoder's output", size(2))
    batch_size: int = option(
        512, "transitions of each of an update's two batches", size(2)
    )
    discount: float = option(0.99, "gamma", between(0, 1))
    encoder_rate: float = option(
        1e-4, "learning rate of the encoder and the latent model", POSITIVE
    )
    critic_rate: float = option(1e-4, "learning rate of the critics", POSITIVE)
    actor_rate: float = option(1e-4, "learning rate of the actor", POSITIVE)
    target_rate: float = option(0.005, "tau, of the targets' averages", between(0, 1))
    gradient_clip: float = option(100.0, "norm gradients are clipped to", POSITIVE)
    prediction_weight: float = option(
        10.0, "weight of L_SPL, on top of lambda_spl", NON_NEGATIVE
    )
    actor_weight: float = option(1.0, "the actor's loss in the encoder's", NON_NEGATIVE)
    first_noise: float = option(
        1.0, "deviation of the noise on actions when warm-up ends", NON_NEGATIVE
    )
    last_noise: float = option(0.1, "the deviation it falls to", NON_NEGATIVE)
    noise_steps: int = option(
        100_000, "decision steps after warm-up in which it falls", at_least(1)
    )
    noise_clip: float = option(
        0.3, "where the noise is clipped in learning", NON_NEGATIVE
    )
    action_margin: float = option(
        1e-6, "how far noisy actions stay from -1 and 1", between(0, 1)
    )
    phantom_model_step: bool = option(
        False,
        "step the latent model again with gradient 0 after the critic's loss, as "
        "PyTorch before 2.0 did",
    )
    representation: Representation = SPL
    adam: Adam = ADAM
