"""Base class of agent configs, and the parts that several agents share."""

import abc
import dataclasses
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple, Self

from r2r2.config.errors import UserError
from r2r2.config.fields import (
    NON_NEGATIVE,
    POSITIVE,
    Range,
    at_least,
    between,
    fraction_below,
    one_of,
    option,
)

EXTRA = Range(
    "module:function or an empty string",
    lambda text: not text or all(part.strip() for part in text.rpartition(":")),
)


@dataclasses.dataclass(frozen=True)
class Representation:
    """Weights of the encoder's loss: self-prediction, alone or with R2R2's two terms.

    Example:
        >>> R2R2.lambda_rr, R2R2.lambda_var
        (0.01, 0.01)
    """

    lambda_spl: float = option(1.0, "weight of self-prediction, L_SPL", NON_NEGATIVE)
    lambda_rr: float = option(0.0, "weight of redundancy, L_RR; 0: off", NON_NEGATIVE)
    lambda_var: float = option(0.0, "weight of variance, L_Var; 0: off", NON_NEGATIVE)
    variance_threshold: float = option(
        1.0, "v_th, the standard deviation above which the hinge is 0", POSITIVE
    )
    zero_centred: bool = option(False, "ablation: subtract the batch mean before L_RR")
    extra: str = option(
        "", "module:function of an extra term of the encoder's loss; empty: none", EXTRA
    )
    lambda_extra: float = option(1.0, "weight of the extra term; 0: off", NON_NEGATIVE)

    def check(self) -> None:
        """Raise a `UserError` if the extra term has a weight but no function."""
        if not self.extra and self.lambda_extra not in (0, 1):
            raise UserError(
                "has no effect without agent.representation.extra; expected module:function there",
                "agent.representation.lambda_extra",
            )


SPL = Representation()
R2R2 = Representation(lambda_rr=0.01, lambda_var=0.01)
"""The weights of R2R2 in the paper: both of its terms at 0.01.

Example:
    >>> R2R2.lambda_spl, R2R2.lambda_rr, R2R2.lambda_var
    (1.0, 0.01, 0.01)
"""


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam's constants; every network has its own learning rate."""

    beta1: float = option(0.9, "decay of the first moment", fraction_below(1))
    beta2: float = option(0.999, "decay of the second moment", fraction_below(1))
    epsilon: float = option(1e-8, "added to the root of the second moment", POSITIVE)


ADAM = Adam()


@dataclasses.dataclass(frozen=True)
class AssessmentConfig:
    """Number of episodes that assess a policy before it may become the checkpoint."""

    early_episodes: int = option(1, "episodes of an early assessment", at_least(1))
    late_episodes: int = option(20, "episodes of a late assessment", at_least(1))
    switch: int = option(750_000, "when late assessments start", at_least(0))
    count: str = option(
        "updates",
        "unit of `switch`: updates (as released) or decisions trained on",
        one_of("updates", "decisions"),
    )
    reset_weight: float = option(0.9, "factor on the best score then", between(0, 1))

    def scaled(self, factor: float) -> "AssessmentConfig":
        """Return the config for a run that is shorter by a factor."""
        return dataclasses.replace(self, switch=scale_count(self.switch, factor))


ASSESSMENT = AssessmentConfig()


class Normalization(NamedTuple):
    """Settings of the normalizer of observations and rewards."""

    discount: float  # of the running return whose variance scales rewards
    return_limit: float  # bound on the largest return so far, after scaling


REPLAY_SIZE = 1_000_000


def scale_count(count: int, factor: float) -> int:
    """Return a number of steps or updates times a factor: 0 for 0, else at least 1.

    Example:
        >>> scale_count(750_000, 0.01), scale_count(3, 0.01), scale_count(0, 0.01)
        (7500, 1, 0)
    """
    return max(1, round(count * exact_factor(factor))) if count else 0


def exact_factor(factor: float) -> Fraction:
    """Return the fraction that a factor was written as, so that 100 times 0.29 is 29."""
    return Fraction(factor).limit_denominator(10**9)


class TaskInfo(NamedTuple):
    """Facts about a task that an agent's automatic settings depend on."""

    name: str
    suite: str  # "gymnasium" or "dmc"
    # Decision steps of an episode, None without a time limit; builds an environment.
    episode_length: Callable[[], int | None]


@dataclasses.dataclass(frozen=True)
class AgentConfig(abc.ABC):
    """Base class of agent configs: what the rest of the program asks of every agent.

    A subclass is a frozen dataclass whose fields become command-line options and TOML
    keys. It defines `batch_size` and `discount`, and may override the other properties,
    each as a field or as a property.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class MyConfig(AgentConfig):
        ...     batch_size: int = option(256, "transitions per update", at_least(1))
        ...     discount: float = option(0.99, "discount factor", between(0, 1))
        >>> MyConfig().policy_checkpoints
        False
    """

    name: str = ""

    @property
    @abc.abstractmethod
    def batch_size(self) -> int:
        """Transitions per update."""

    @property
    @abc.abstractmethod
    def discount(self) -> float:
        """Discount factor of the critics."""

    @property
    def policy_checkpoints(self) -> bool:
        """Whether training waits for assessments of the policy, as in TD7."""
        return False

    @property
    def assessment(self) -> AssessmentConfig:
        """How policies are assessed; used with `policy_checkpoints` only."""
        return ASSESSMENT

    @property
    def warmup_ends_with_episode(self) -> bool:
        """Whether warm-up continues to the end of the episode in progress."""
        return False

    @property
    def representation(self) -> Representation | None:
        """Weights of the encoder's loss, or None for an agent without an encoder."""
        return None

    @property
    def normalization(self) -> Normalization | None:
        """Settings of the normalizer, or None for an agent that sees raw values."""
        return None

    def default_replay_size(self, task: str) -> int:
        """Return the replay rows per member where a run does not set `replay_size`."""
        del task
        return REPLAY_SIZE

    @property
    def depends_on_run_length(self) -> bool:
        """Whether a schedule ends with the run, so that a run cannot be extended."""
        return False

    def check(self) -> None:  # noqa: B027
        """Raise a `UserError` if fields contradict each other."""

    def for_task(self, task: TaskInfo) -> Self:
        """Return the config with its automatic settings resolved for a task."""
        del task
        return self

    def scaled(self, factor: float) -> Self:
        """Return the config for a run that is shorter by a factor in (0, 1].

        Override it to shrink schedules that are counted in steps or updates, and end before
        the run does. Schedules that end with the run need nothing.
        """
        del factor
        return self
