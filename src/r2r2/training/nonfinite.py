"""What is kept of a member whose loss was not finite."""

import math
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.config.errors import UserError
from r2r2.replay.normalizer import make_normalizer
from r2r2.training.checkpointer import CheckpointWriter
from r2r2.training.resume import read_snapshot
from r2r2.training.run_log import Learnt
from r2r2.training.snapshot import member_of
from r2r2.training.state import RunState

NOT_FINITE = "a loss was not finite"


def not_finite(run: RunState, saver: CheckpointWriter | None, member: int) -> None:
    """Keeps the offending batch's statistics and the last good weights of a member."""
    batch = run.fleet.nonfinite_batch(member)
    numbers = {name: statistics(field) for name, field in batch.items()}
    kept = _keep_weights(run, saver, member) if saver is not None else None
    report = {"why": NOT_FINITE, "batch": numbers, "weights_of_step": kept}
    run.journal.report(member, report)


def statistics(values: NDArray[Any]) -> dict[str, float | int | None]:
    """The size of an array's numbers, with those left out that are not finite.

    Example:
        >>> statistics(np.array([1.0, 3.0, np.nan]))
        {'mean': 2.0, 'std': 1.0, 'min': 1.0, 'max': 3.0, 'not_finite': 1}
    """
    plain = np.asarray(values, dtype=np.float64)
    finite = plain[np.isfinite(plain)]
    if not finite.size:
        none = dict.fromkeys(("mean", "std", "min", "max"))
        return none | {"not_finite": int(plain.size)}
    found = {
        "mean": finite.mean(),
        "std": finite.std(),
        "min": finite.min(),
        "max": finite.max(),
    }
    numbers = {k: float(x) if math.isfinite(x) else None for k, x in found.items()}
    return numbers | {"not_finite": int(plain.size - finite.size)}


def _keep_weights(run: RunState, saver: CheckpointWriter, member: int) -> int | None:
    """The weights of the last good checkpoint become the member's; its step, if any.

    Weights can be lost an update before a loss tells: such are not kept.
    """
    checkpoint = saver.newest()
    if checkpoint is None:
        return None
    try:
        snapshot = read_snapshot(run, checkpoint)
    except UserError:  # which must not end the others
        return None
    statistics = snapshot.statistics
    scales = None
    if statistics is not None:
        scales = make_normalizer(run.config.agent, statistics).scales()
    learnt = member_of(Learnt(snapshot.fleet.learners.state, scales), member)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(learnt)):
        return None
    run.journal.keep(member, learnt)
    return int(snapshot.rollout["steps"][member])
