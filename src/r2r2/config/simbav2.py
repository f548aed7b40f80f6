"""Settings of SimbaV2 and SimbaV2-SPL; defaults are those of the releases."""

import dataclasses
from typing import NamedTuple, Self

from r2r2.config.common import (
    ADAM,
    SPL,
    Adam,
    AgentConfig,
    Normalization,
    Representation,
    TaskInfo,
)
from r2r2.config.errors import UserError, invalid_value
from r2r2.config.fields import (
    FINITE,
    NON_NEGATIVE,
    POSITIVE,
    Range,
    between,
    integer_between,
    option,
    size,
)


class NetworkSizes(NamedTuple):
    """Sizes of a hyperspherical network."""

    width: int
    blocks: int
    expansion: int
    shift: float


CRITICS = Range("0, 1 or 2", lambda x: x in (0, 1, 2))
# Larger networks take impractically long to compile.
BLOCKS, EXPANSION = integer_between(1, 100), integer_between(1, 64)

# Two critics where an episode can end early and badly.
SUITE_CRITICS = {"gymnasium": 2, "dmc": 1}


@dataclasses.dataclass(frozen=True)
class SimbaV2Config(AgentConfig):
    """SimbaV2 (Lee et al., 2025): SAC on the hypersphere, categorical critics.

    Example:
        >>> SimbaV2Config(critic_width=64).critic_tower
        NetworkSizes(width=64, blocks=2, expansion=4, shift=3.0)
    """

    name: str = "simbav2"
    actor_width: int = option(128, "features of the actor layers", size(1))
    actor_blocks: int = option(1, "residual blocks of the actor", BLOCKS)
    critic_width: int = option(512, "features of the critic layers", size(1))
    critic_blocks: int = option(2, "residual blocks of a critic", BLOCKS)
    expansion: int = option(4, "expansion factor of a block", EXPANSION)
    shift: float = option(3.0, "c_shift, a constant appended to inputs", POSITIVE)
    critics: int = option(
        0, "number of critics; 0: two on Gymnasium, one on DMC", CRITICS
    )
    bins: int = option(101, "atoms of the return distribution", size(2))
    lowest_value: float = option(-5.0, "value of the first atom", FINITE)
    highest_value: float = option(5.0, "value of the last atom", FINITE)
    batch_size: int = option(256, "transitions per update", size(2))
    discount: float = option(
        0.0,
        "discount factor; 0: (L/5 - 1) / (L/5) for episodes of L decision steps, "
        "clipped to [0.95, 0.995]",
        between(0, 1),
    )
    first_rate: float = option(1e-4, "initial learning rate", POSITIVE)
    last_rate: float = option(5e-5, "learning rate at the run's end", NON_NEGATIVE)
    target_rate: float = option(0.005, "Polyak coefficient of targets", between(0, 1))
    temperature: float = option(0.01, "initial entropy temperature", POSITIVE)
    target_entropy: float = option(-0.5, "target entropy per action dimension", FINITE)
    lowest_log_std: float = option(-10.0, "minimum log std of actions", FINITE)
    highest_log_std: float = option(2.0, "maximum log std of actions", FINITE)
    return_limit: float = option(
        5.0, "bound on the largest return so far, after reward scaling", POSITIVE
    )
    adam: Adam = ADAM

    @property
    def actor_tower(self) -> NetworkSizes:
        """Sizes of the actor."""
        sizes = self.actor_width, self.actor_blocks
        return NetworkSizes(*sizes, self.expansion, self.shift)

    @property
    def critic_tower(self) -> NetworkSizes:
        """Sizes of a critic."""
        sizes = self.critic_width, self.critic_blocks
        return NetworkSizes(*sizes, self.expansion, self.shift)

    @property
    def normalization(self) -> Normalization:
        """Observations and rewards are normalized with the critics' discount."""
        return Normalization(self.discount, self.return_limit)

    @property
    def depends_on_run_length(self) -> bool:
        """Whether the learning rate changes until the end of the run."""
        return self.first_rate != self.last_rate

    def check(self) -> None:
        """Check that the ranges of values and of log deviations are not empty."""
        for name in ("value", "log_std"):
            low = getattr(self, f"lowest_{name}")
            high = getattr(self, f"highest_{name}")
            if not low < high:
                limit = f"less than agent.highest_{name} ({high})"
                raise invalid_value(f"agent.lowest_{name}", limit, low)

    def for_task(self, task: TaskInfo) -> Self:
        """Set `critics` by the suite and `discount` by the length of an episode."""
        critics = self.critics or SUITE_CRITICS[task.suite]
        discount = self.discount or _automatic_discount(task)
        return dataclasses.replace(self, critics=critics, discount=discount)


def _automatic_discount(task: TaskInfo) -> float:
    """Return (L/5 - 1) / (L/5) for episodes of L decision steps, within limits."""
    length = task.episode_length()
    if length is None:
        raise UserError(
            f"agent.discount: 0 (automatic) needs a time limit, which {task.name!r} "
            "does not have; set a value, for example --discount 0.99"
        )
    return min(max((length / 5 - 1) / (length / 5), 0.95), 0.995)


@dataclasses.dataclass(frozen=True)
class SimbaV2SPLConfig(SimbaV2Config):
    """SimbaV2 with a self-predictive encoder, optionally with R2R2 on it.

    Example:
        >>> SimbaV2SPLConfig().representation.lambda_spl
        1.0
    """

    name: str = "simbav2-spl"
    latent: int = option(128, "features of the encoder output", size(2))
    model_width: int = option(256, "units per layer of the latent model", size(1))
    encoder_first_rate: float = option(3e-4, "first_rate of the encoder", POSITIVE)
    encoder_last_rate: float = option(5e-5, "last_rate of the encoder", NON_NEGATIVE)
    representation: Representation = SPL

    @property
    def depends_on_run_length(self) -> bool:
        """Whether a learning rate changes until the end of the run."""
        encoder_changes = self.encoder_first_rate != self.encoder_last_rate
        return super().depends_on_run_length or encoder_changes
