"""From a config to a finished run folder: checks first, then training."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.config.resolve import checked, defaults
from r2r2.config.run import RunConfig
from r2r2.config.text import changed_fields, run_name, to_toml
from r2r2.envs.members import Member
from r2r2.envs.pool import EnvPool
from r2r2.record.evaluations import read_evaluations
from r2r2.record.folder import RunFolder, create_run, is_finished
from r2r2.record.versions import versions
from r2r2.report.curve import draw_curve
from r2r2.run.fitting import fitted
from r2r2.run.journal import Journal
from r2r2.run.memory import check_fits
from r2r2.run.train import Progress, Training, Watcher, members_of


class Result(NamedTuple):
    """What a run came to."""

    folder: RunFolder
    members: tuple[Member, ...]
    returns: NDArray[np.float64]  # [S], the curves' last points; NaN without any
    random: dict[str, float]  # mean return of the warm-up's random policy, by task


def settle(config: RunConfig) -> RunConfig:
    """The config with everything filled in that its tasks decide."""
    return fitted(checked(config))


def folder_of(config: RunConfig, out: Path | None = None) -> Path:
    """Where a settled config's run goes unless told otherwise."""
    return out or Path("runs") / run_name(config)


def finished(config: RunConfig, out: Path | None = None) -> bool:
    """Whether this very run is there already."""
    return is_finished(folder_of(config, out), to_toml(config))


def _nothing_yet(members: int) -> Progress:
    none = np.zeros(members, dtype=int)
    return Progress(none, none, none.astype(bool), 0, np.full(members, np.nan))


def _title(config: RunConfig) -> str:
    """Agent and UTD, with what is changed in the encoder's loss: the ablations."""
    changed = changed_fields(config, defaults(config.agent.name))
    own = {k: v for k, v in changed.items() if "representation" in k}
    ablation = [f"{k.rpartition('.')[2]} {v}" for k, v in own.items()]
    return ", ".join([config.agent.name, *ablation, f"UTD {config.utd}"])


def unwatched(_: Progress) -> None:
    """The watcher of a run that nobody looks at."""


def train(
    config: RunConfig,
    out: Path | None = None,
    overwrite: bool = False,
    watch: Watcher = unwatched,
) -> Result:
    """Trains a fleet and leaves a run folder; refuses before anything is written.

    Args:
        config: the run.
        out: its folder, by default one under `runs/` that the config names.
        overwrite: delete a run that is there already.
        watch: called once nothing can be refused any more, then after every turn of
            the loop.

    Example:
        >>> import tempfile
        >>> from r2r2 import resolve
        >>> config = resolve({"env": "Pendulum-v1", "seeds": 2, "steps": 10})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train(config, Path(folder) / "run")
        >>> [member.name for member in result.members]
        ['Pendulum-v1_s0', 'Pendulum-v1_s1']
    """
    config = settle(config)
    members = members_of(config)
    with EnvPool(members, config.action_repeat) as pool:
        check_fits(config, pool.spec)
        names = [member.name for member in members]
        folder = create_run(folder_of(config, out), to_toml(config), names, overwrite)
        folder.write_versions(versions())
        with Journal(config, folder, members) as journal:
            watch(_nothing_yet(len(members)))
            training = Training(config, pool, journal)
            try:
                training.run(watch)
            finally:
                training.close()
    result = Result(folder, members, journal.latest, journal.random_returns())
    if folder.evaluations.exists():
        rows = read_evaluations(folder.evaluations)
        lines = {f"random policy, {task}": x for task, x in result.random.items()}
        draw_curve(rows, folder.curve, _title(config), lines)
    folder.finish()
    return result
