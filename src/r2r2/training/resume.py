"""A run to its checkpoint and back."""

import contextlib
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np

from r2r2.config.errors import UserError
from r2r2.envs.errors import Fault
from r2r2.envs.vector.step_types import SavedState
from r2r2.replay.normalizer import Normalizer, Statistics
from r2r2.storage.arrays import read_arrays
from r2r2.storage.checkpoints import Checkpoint, CheckpointContent
from r2r2.training.checkpointer import CheckpointWriter
from r2r2.training.collector import Collector
from r2r2.training.eval_scheduler import SavedEvals
from r2r2.training.snapshot import Snapshot, evaluated_like, grown, named, rebuilt
from r2r2.training.state import HostState, RunState

NO_STATE = "its environment offers no state to go on from"


def save(run: RunState, saver: CheckpointWriter) -> None:
    """Copies a run to the host, and starts writing it; nothing may be under way."""
    host, points = run.host, run.host.points.saved()
    running = _running(run)
    states = run.pool.save_states(list(running))
    pairs = zip(running, states, strict=True)
    offered = [(slot, own) for slot, own in pairs if own is not None]
    worlds = {f"{slot}/{name}": x for slot, own in offered for name, x in own.items()}
    notes = {
        "points": points.notes,
        "journal": run.journal.notes(),
        "faults": list(map(list, host.faults.items())),
        "stopped": list(map(list, host.stopped.items())),
        "collapsed": sorted(host.collapsed),
        "rows": run.fleet.replay_rows,
    }
    segment = saver.segment(run.fleet)
    content = CheckpointContent(
        step=host.step(),
        metadata=notes,
        arrays=named(_snapshot(run, points)),
        env_states=worlds,
        replay_segment=segment,
        earlier_segments=saver.needs(run.fleet),
    )
    saver.write(content, run.fleet)


def resume(
    run: RunState, collector: Collector, saver: CheckpointWriter, checkpoint: Checkpoint
) -> None:
    """Puts a fresh run where a checkpoint was taken.

    Raises:
        UserError: Its arrays are of another run; its notes have been checked.
    """
    host, notes = run.host, checkpoint.metadata
    with _naming(checkpoint.arrays):
        snapshot = read_snapshot(run, checkpoint)
    worlds = _worlds(checkpoint.env_states)
    run.fleet.restore(snapshot.fleet)
    saver.go_on(checkpoint, run.fleet)
    host.rollout.restore(snapshot.rollout)
    host.schedule.restore(snapshot.schedule)
    if isinstance(host.normaliser, Normalizer) and snapshot.statistics is not None:
        host.normaliser.statistics = snapshot.statistics
    host.faults.update(dict(notes["faults"]))
    host.stopped.update(_still_stopped(run, dict(notes["stopped"])))
    host.collapsed.update(notes.get("collapsed", []))
    run.journal.restore(notes["journal"])
    run.journal.go_on(set(host.stopped))
    counts = checkpoint.step, int(host.schedule.made.min())
    run.journal.event("resumed", None, counts, {"checkpoint": checkpoint.number})
    saved = SavedEvals(snapshot.evaluated, snapshot.obs, notes["points"])
    faults = list(host.points.restore(saved))
    running = still_running(run, notes["points"])
    for fault in (*faults, *_put_back(run, running, worlds)):
        collector.mend(fault)


def _still_stopped(run: RunState, stopped: dict[int, str]) -> dict[int, str]:
    """Those who were stopped, but for environments that may now fail more often."""
    limit, alarmed = run.config.env_faults, run.fleet.nonfinite_members()
    faults = run.host.faults
    return {
        member: why
        for member, why in stopped.items()
        if member in alarmed or faults.get(member, 0) > limit
    }


@contextlib.contextmanager
def _naming(path: Path) -> Generator[None]:
    """Says in which file it is that something does not fit."""
    try:
        yield
    except UserError as refusal:
        raise UserError(f"'{path}' cannot be used: {refusal}") from None


def read_snapshot(run: RunState, checkpoint: Checkpoint) -> Snapshot:
    """A checkpoint's arrays in the form of this run's.

    Raises:
        UserError: They are of another run.
    """
    arrays, notes = read_arrays(checkpoint.arrays), checkpoint.metadata
    if notes["rows"] < run.fleet.replay_rows:
        if (np.asarray(arrays.get("fleet/opened", 0)) >= notes["rows"]).any():
            raise UserError("its replay has come round already: steps cannot be raised")
        arrays = grown(arrays, notes["rows"], run.fleet.replay_rows)
    snapshot = rebuilt(arrays, like(run, notes))
    if len(snapshot.obs) != (playing := len(notes["points"]["playing"])):
        raise UserError(f"'obs' has {len(snapshot.obs)} rows instead of {playing}")
    return snapshot


def _worlds(path: Path) -> dict[int, SavedState]:
    """The saved states of environments by their slots."""
    states: dict[int, SavedState] = {}
    for name, array in read_arrays(path).items():
        ours = re.fullmatch(r"([0-9]{1,9})/([a-z0-9_/.]+)", name)
        if ours is None:
            raise UserError(f"'{path}' cannot be used: {name!r} names no environment")
        states.setdefault(int(ours[1]), {})[ours[2]] = array
    return states


def _put_back(
    run: RunState, running: dict[int, int], states: dict[int, SavedState]
) -> list[Fault]:
    """Puts environments where they were; gives those whose episode is to begin anew.

    A state that no longer fits, of another version say, is nobody's failure.
    """
    slots = [slot for slot in running if slot in states]
    without = [slot for slot in running if slot not in states]
    faults = [Fault(slot, NO_STATE, own_failure=False) for slot in without]
    if slots:
        seeds = [running[slot] for slot in slots]
        _, failed = run.pool.load_states(slots, seeds, [states[slot] for slot in slots])
        faults += [fault._replace(own_failure=False) for fault in failed]
    return faults


def _running(run: RunState) -> dict[int, int]:
    """The slots with an episode under way, each with the episode's seed.

    In an environment that is lent, the last evaluation took the place of training's.
    """
    host = run.host
    members = [m for m in range(len(host.members)) if m not in host.stopped]
    if host.points.lent:
        members = [m for m in members if host.rollout.steps[m] < run.config.steps]
    training = {member: host.rollout.seed(member) for member in members}
    return training | host.points.running()


def still_running(run: RunState, points: dict[str, Any]) -> dict[int, int]:
    """The slots whose episodes go on after a checkpoint with these notes of points.

    Where another number is played at once, evaluations have begun again already.
    """
    running = _running(run)
    if run.host.points.width == points["width"]:
        return running
    return {slot: x for slot, x in running.items() if slot < len(run.host.members)}


def _snapshot(run: RunState, points: SavedEvals) -> Snapshot:
    host = run.host
    return Snapshot(
        fleet=run.fleet.snapshot(),
        rollout={name: x.copy() for name, x in host.rollout.arrays().items()},
        schedule={name: x.copy() for name, x in host.schedule.arrays().items()},
        statistics=_statistics(host),
        evaluated=points.evaluated,
        obs=points.obs,
    )


def like(run: RunState, notes: dict[str, Any]) -> Snapshot:
    """The form of the snapshot of a checkpoint with these notes."""
    none = np.zeros((0, run.pool.spec.obs_dim))
    fresh = _snapshot(run, SavedEvals([], none, {}))
    count = bool(notes["points"]["playing"]) + len(notes["points"]["held"])
    form = evaluated_like(run.agent, fresh.fleet, run.host.normaliser.scales())
    return fresh._replace(evaluated=[form] * count)


def _statistics(host: HostState) -> Statistics | None:
    if not isinstance(host.normaliser, Normalizer):
        return None
    (samples, mean, variance), returns, running, largest = host.normaliser.statistics
    obs = type(returns)(samples.copy(), mean.copy(), variance.copy())
    past = type(returns)(*(part.copy() for part in returns))
    return Statistics(obs, past, running.copy(), largest.copy())
