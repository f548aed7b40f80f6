"""Settings of TD7."""

import dataclasses

from r2r2.config.common import (
    ADAM,
    ASSESSMENT,
    SPL,
    Adam,
    AgentConfig,
    AssessmentConfig,
    Representation,
)
from r2r2.config.fields import NON_NEGATIVE, POSITIVE, at_least, between, option, size


@dataclasses.dataclass(frozen=True)
class TD7Config(AgentConfig):
    """TD7 (Fujimoto et al., 2023), optionally with LayerNorm or R2R2 on its encoder.

    Example:
        >>> TD7Config(width=64).representation.lambda_rr
        0.0
    """

    name: str = "td7"
    width: int = option(256, "units per hidden layer", size(1))
    latent: int = option(256, "features of the embeddings zs and zsa", size(2))
    layer_norm: bool = option(False, "LayerNorm in the encoder, before each ELU")
    batch_size: int = option(256, "transitions per update", size(2))
    discount: float = option(0.99, "discount factor", between(0, 1))
    encoder_rate: float = option(3e-4, "learning rate of the encoder", POSITIVE)
    critic_rate: float = option(3e-4, "learning rate of the critics", POSITIVE)
    actor_rate: float = option(3e-4, "learning rate of the actor", POSITIVE)
    policy_delay: int = option(2, "critic updates per actor update", at_least(1))
    target_period: int = option(250, "updates between target copies", at_least(1))
    target_noise: float = option(0.2, "std of target policy noise", NON_NEGATIVE)
    noise_clip: float = option(0.5, "clip range of target policy noise", NON_NEGATIVE)
    exploration_noise: float = option(0.1, "std of exploration noise", NON_NEGATIVE)
    priority_exponent: float = option(0.4, "exponent alpha of LAP", between(0, 1))
    min_priority: float = option(
        1.0, "smallest priority of LAP; its Huber loss is linear above it", POSITIVE
    )
    representation: Representation = SPL
    adam: Adam = ADAM
    policy_checkpoints: bool = option(
        True,
        "assess each policy over full episodes and train in between; if off, train "
        "after every step",
    )
    assessment: AssessmentConfig = ASSESSMENT

    @property
    def warmup_ends_with_episode(self) -> bool:
        """Finish the episode in progress before training starts, as released."""
        return True
