"""Settings of the built-in agents; defaults are those of the releases."""

import dataclasses
from typing import NamedTuple, Self

from r2r2.config.common import (
    ADAM,
    ASSESSMENT,
    SPL,
    Adam,
    AgentConfig,
    AssessmentConfig,
    Normalization,
    Representation,
    TaskInfo,
    scale_count,
)
from r2r2.config.errors import UserError, invalid_value
from r2r2.config.fields import (
    FINITE,
    NON_NEGATIVE,
    POSITIVE,
    Range,
    at_least,
    between,
    integer_between,
    option,
    size,
)


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

    def scaled(self, factor: float) -> Self:
        """Start late assessments of policies earlier."""
        return dataclasses.replace(self, assessment=self.assessment.scaled(factor))


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

    def default_replay_size(self, task: str) -> int:
        """Return 100,000 except for the one task that the release names."""
        return super().default_replay_size(task) if task == "Humanoid-v2" else 100_000

    def scaled(self, factor: float) -> Self:
        """Decay the exploration noise in fewer steps."""
        return dataclasses.replace(self, noise_steps=scale_count(self.noise_steps, factor))


# Larger networks take impractically long to compile.
BLOCKS, EXPANSION = integer_between(1, 100), integer_between(1, 64)

# Two critics where an episode can end early and badly.
SUITE_CRITICS = {"gymnasium": 2, "dmc": 1}


class NetworkSizes(NamedTuple):
    """Sizes of a hyperspherical network."""

    width: int
    blocks: int
    expansion: int
    shift: float


@dataclasses.dataclass(frozen=True)
class SimbaV2Config(AgentConfig):
    """SimbaV2 (Lee et al., 2025): SAC on the hypersphere, categorical critics.

    Example:
        >>> SimbaV2Config(critic_width=64).critic_blocks
        2
    """

    name: str = "simbav2"
    actor_width: int = option(128, "features of the actor layers", size(1))
    actor_blocks: int = option(1, "residual blocks of the actor", BLOCKS)
    critic_width: int = option(512, "features of the critic layers", size(1))
    critic_blocks: int = option(2, "residual blocks of a critic", BLOCKS)
    expansion: int = option(4, "expansion factor of a block", EXPANSION)
    shift: float = option(3.0, "c_shift, a constant appended to inputs", POSITIVE)
    critics: int = option(
        0,
        "number of critics; 0: two on Gymnasium, one on DMC",
        Range("0, 1 or 2", lambda x: x in (0, 1, 2)),
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
        return NetworkSizes(self.actor_width, self.actor_blocks, self.expansion, self.shift)

    @property
    def critic_tower(self) -> NetworkSizes:
        """Sizes of a critic."""
        return NetworkSizes(self.critic_width, self.critic_blocks, self.expansion, self.shift)

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
            low, high = (getattr(self, f"{end}_{name}") for end in ("lowest", "highest"))
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
            f"0 (automatic) needs a time limit, which {task.name!r} does not have; set a "
            "value, for example --discount 0.99",
            "agent.discount",
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
        return super().depends_on_run_length or (self.encoder_first_rate != self.encoder_last_rate)
