"""Callbacks that send the events of a run to TensorBoard and to Weights & Biases."""

import importlib
import importlib.util
import json
import os
import secrets
import statistics
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from r2r2.config.errors import UserError
from r2r2.storage.events import COMMON_FIELDS, FieldValue, read_events
from r2r2.storage.files import atomic_write, read_json_object
from r2r2.storage.run_folder import EVENTS_FILE, TENSORBOARD_DIR
from r2r2.storage.tensorboard import TensorBoardWriter, require_tensorboard
from r2r2.training.callbacks import Callback, EndInfo, StartInfo

WANDB_FILE = "wandb.json"  # in the run folder: the id of its W&B run
WANDB_PROJECT = "r2r2"
NO_ACCOUNT = "W&B: no API key found, so the run is logged offline; upload it with: wandb sync {}"


class TensorBoardCallback(Callback):
    """Writes TensorBoard files to the folder `tensorboard` of the run, as `--tensorboard` does.

    A resumed run writes them anew from its event log.

    Example:
        >>> import tempfile
        >>> from r2r2 import resolve, train
        >>> config = resolve({"env": "Pendulum-v1", "steps": 10, "random_only": True})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train(config, f"{folder}/run", callbacks=[TensorBoardCallback()])
        ...     sorted(path.name for path in result.folder.tensorboard.iterdir())
        ['Pendulum-v1_s0', 'run']
    """

    def __init__(self) -> None:
        require_tensorboard()
        self._writer: TensorBoardWriter | None = None

    def on_start(self, info: StartInfo) -> None:
        """Open the files."""
        self._writer = TensorBoardWriter(info.run / TENSORBOARD_DIR)
        if info.resumed:
            self._writer.rewrite(read_events(info.run / EVENTS_FILE))

    def on_log(self, event: dict[str, Any]) -> None:
        """Write the numbers of an event."""
        if self._writer is not None:
            kind, step, member = (event[name] for name in ("event", "env_step", "member"))
            self._writer.write(kind, step, member, _own_fields(event))

    def on_end(self, info: EndInfo) -> None:
        """Close the files."""
        if self._writer is not None:
            self._writer.close()


def require_wandb() -> None:
    """Check that wandb is installed."""
    if importlib.util.find_spec("wandb") is None:
        raise UserError(
            "--wandb: wandb is not installed; install it with pip install 'r2r2[wandb]'"
        )


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)


class WandbCallback(Callback):
    """Logs a run to Weights & Biases, as `--wandb` does: one W&B run for the whole fleet.

    The numbers of each event are `<member>/<event>/<field>`, against the environment steps of the
    member; `evaluation/mean` and `evaluation/std` are over all members. A resumed run continues the
    same W&B run. Without an API key, and with WANDB_MODE=offline, everything is written to the
    folder `wandb` of the run. An error of W&B is reported once and ends the logging there, but not
    the run.

    Args:
        project: the W&B project.
        on_message: called with messages for the user; by default they are warnings.

    Example:
        >>> from r2r2 import Callback  # for train(config, callbacks=[WandbCallback("hopper")])
        >>> issubclass(WandbCallback, Callback)
        True
    """

    def __init__(self, project: str = WANDB_PROJECT, on_message: Callable[[str], None] = _warn):
        require_wandb()
        self._project, self._on_message = project, on_message
        self._run: Any = None  # None: before the start, and after a failure
        self._active: set[str] = set()  # members that are not stopped
        self._means: dict[int, dict[str, float]] = {}  # of evaluations, by step and member

    def on_start(self, info: StartInfo) -> None:
        """Begin the W&B run, or continue it."""
        self._try(lambda: self._begin(info), begun=False)

    def on_log(self, event: dict[str, Any]) -> None:
        """Log the numbers of an event."""
        self._try(lambda: self._log(event))

    def on_end(self, info: EndInfo) -> None:
        """Finish the W&B run."""
        succeeded = info.finished and len(info.stopped) < len(info.returns)
        self._try(lambda: self._run.finish(exit_code=0 if succeeded else 1))
        self._run = None

    def _try(self, action: Callable[[], None], begun: bool = True) -> None:
        if begun and self._run is None:
            return
        try:
            action()
        except Exception as error:  # a library and a network may raise anything
            self._run = None
            why = (str(error).splitlines() or [""])[0]
            self._on_message(
                f"W&B failed, and the run continues without it: {type(error).__name__}: {why}"
            )

    def _begin(self, info: StartInfo) -> None:
        wandb: Any = importlib.import_module("wandb")
        self._active, self._means = {*info.members} - {*info.stopped}, {}
        offline = "WANDB_MODE" not in os.environ and not wandb.login(prompt=False)
        settings = wandb.Settings(console="off", silent=True)
        self._run = wandb.init(
            project=self._project,
            id=_run_id(info.run, self._project),
            name=info.run.name,
            dir=str(info.run),
            config=info.config,
            mode="offline" if offline else None,
            resume="allow",
            reinit="create_new",  # leave other W&B runs of this process alone
            settings=settings,
        )
        if offline:
            self._on_message(NO_ACCOUNT.format(Path(self._run.dir).parent))
        for prefix in (*info.members, "run", "evaluation"):
            self._run.define_metric(f"{prefix}/env_step")
            self._run.define_metric(f"{prefix}/*", step_metric=f"{prefix}/env_step")

    def _log(self, event: Mapping[str, Any]) -> None:
        kind, step, member = (event[name] for name in ("event", "env_step", "member"))
        prefix = member or "run"
        numbers = {
            f"{prefix}/{kind}/{name}": value
            for name, value in _own_fields(event).items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        steps = {f"{prefix}/{x}": event[x] for x in COMMON_FIELDS if x.endswith("_step")}
        if numbers:
            self._run.log(numbers | steps)
        if kind == "stopped":
            self._active.discard(prefix)
        if kind == "evaluation":
            self._log_mean(step, prefix, float(event["mean"]))

    def _log_mean(self, step: int, member: str, mean: float) -> None:
        """Log the mean over all members when the last of them was evaluated at this step."""
        means = self._means.setdefault(step, {})
        means[member] = mean
        if self._active <= means.keys():
            values = [means[name] for name in sorted(self._active)]
            deviation = statistics.pstdev(values) if len(values) > 1 else 0.0
            summary = {"mean": statistics.fmean(values), "std": deviation, "env_step": step}
            self._run.log({f"evaluation/{name}": value for name, value in summary.items()})
            del self._means[step]


def _own_fields(event: Mapping[str, Any]) -> dict[str, FieldValue]:
    return {name: value for name, value in event.items() if name not in COMMON_FIELDS}


def _run_id(run: Path, project: str) -> str:
    """Return the id of a run's W&B run, which is kept in the run folder."""
    path = run / WANDB_FILE
    saved = cast("dict[str, object]", (read_json_object(path) or {}) if path.exists() else {})
    if saved.get("project") == project and isinstance(saved.get("id"), str):
        return str(saved["id"])
    new = secrets.token_hex(4)
    atomic_write(path, json.dumps({"project": project, "id": new}) + "\n")
    return new
