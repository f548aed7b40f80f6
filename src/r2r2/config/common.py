"""What the configs of several agents are made of."""

import dataclasses
from typing import ClassVar

from r2r2.config.fields import NON_NEGATIVE, POSITIVE, fraction_below, option


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


SPL = Representation()
R2R2 = Representation(lambda_rr=0.01, lambda_var=0.01)


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam's constants; the learning rates are the networks' own."""

    beta1: float = option(0.9, "decay of the first moment", fraction_below(1))
    beta2: float = option(0.999, "decay of the second moment", fraction_below(1))
    epsilon: float = option(1e-8, "added to the root of the second moment", POSITIVE)


ADAM = Adam()


class LockstepConfig:
    """An agent that trains after every step, from the very end of its warm-up on."""

    policy_checkpoints: ClassVar[bool] = False
    warmup_ends_with_episode: ClassVar[bool] = False
