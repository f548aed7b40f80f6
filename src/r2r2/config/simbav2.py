"""Every number of SimbaV2 and of SimbaV2-SPL.

Defaults are those of the releases (SimbaV2; R2R2 for SPL).
"""

import dataclasses
from typing import NamedTuple

from r2r2.config.common import ADAM, SPL, Adam, LockstepConfig, Representation
from r2r2.config.fields import (
    FINITE,
    NON_NEGATIVE,
    POSITIVE,
    Range,
    between,
    between_whole,
    option,
    size,
)


class NetworkSizes(NamedTuple):
    """The sizes of a network on the sphere."""

    width: int
    blocks: int
    expansion: int
    shift: float


CRITICS = Range("0, 1 or 2", lambda x: x in (0, 1, 2))
# More are not trained any more, but take for ever to be built.
BLOCKS, EXPANSION = between_whole(1, 100), between_whole(1, 64)


def discount_for(length: int) -> float:
    """Gamma by the decision steps of an episode: as if a fifth of it mattered.

    Example:
        >>> discount_for(1000), discount_for(500)
        (0.995, 0.99)
    """
    part = length / 5
    return min(max((part - 1) / part, 0.95), 0.995)


@dataclasses.dataclass(frozen=True)
class SimbaV2Config(LockstepConfig):
    """SimbaV2 (Lee et al., 2025): SAC on the sphere with a categorical critic.

    Example:
        >>> SimbaV2Config(critic_width=64).critic_tower
        NetworkSizes(width=64, blocks=2, expansion=4, shift=3.0)
    """

    name: str = "simbav2"
    actor_width: int = option(128, "features of the actor's layers", size(1))
    actor_blocks: int = option(1, "residual blocks of the actor", BLOCKS)
    critic_width: int = option(512, "features of the critics' layers", size(1))
    critic_blocks: int = option(2, "residual blocks of a critic", BLOCKS)
    expansion: int = option(4, "how much wider a block is inside", EXPANSION)
    shift: float = option(
        3.0, "c_shift, the constant that an embedding appends to its input", POSITIVE
    )
    critics: int = option(
        0,
        "one critic, or two of which the lesser counts; 0 is by the task: two on "
        "Gymnasium, one on DMC",
        CRITICS,
    )
    bins: int = option(101, "atoms of the return's distribution", size(2))
    lowest_value: float = option(-5.0, "the first atom", FINITE)
    highest_value: float = option(5.0, "the last atom", FINITE)
    batch_size: int = option(256, "transitions per update", size(2))
    discount: float = option(
        0.0,
        "gamma; 0 is from the decision steps L of an episode: (L/5 - 1) / (L/5), "
        "within 0.95 and 0.995",
        between(0, 1),
    )
    first_rate: float = option(1e-4, "learning rate of the first update", POSITIVE)
    last_rate: float = option(
        5e-5, "learning rate at the run's end, approached in a line", NON_NEGATIVE
    )
    target_rate: float = option(
        0.005,
        "tau: how far targets go to the online networks per update",
        between(0, 1),
    )
    temperature: float = option(0.01, "the entropy's weight at first", POSITIVE)
    target_entropy: float = option(
        -0.5, "the entropy aimed at, per action dimension", FINITE
    )
    lowest_log_std: float = option(-10.0, "least log deviation of actions", FINITE)
    highest_log_std: float = option(2.0, "largest log deviation of actions", FINITE)
    return_limit: float = option(
        5.0, "what the largest return so far is scaled to, at most", POSITIVE
    )

    adam: Adam = ADAM

    @property
    def actor_tower(self) -> NetworkSizes:
        """The actor's sizes."""
        return NetworkSizes(
            self.actor_width, self.actor_blocks, self.expansion, self.shift
        )

    @property
    def critic_tower(self) -> NetworkSizes:
        """A critic's sizes."""
        return NetworkSizes(
            self.critic_width, self.critic_blocks, self.expansion, self.shift
        )


@dataclasses.dataclass(frozen=True)
class SimbaV2SPLConfig(SimbaV2Config):
    """SimbaV2 beside a self-predictive encoder (R2R2), plain or with R2R2 on it.

    Example:
        >>> SimbaV2SPLConfig().representation.lambda_spl
        1.0
    """

    name: str = "simbav2-spl"
    latent: int = option(128, "features of the encoder's output", size(2))
    model_width: int = option(256, "units of the latent model's layers", size(1))
    encoder_first_rate: float = option(
        3e-4, "first learning rate of encoder and latent model", POSITIVE
    )
    encoder_last_rate: float = option(
        5e-5, "their learning rate at the run's end", NON_NEGATIVE
    )
    representation: Representation = SPL
