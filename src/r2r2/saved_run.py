"""Load a run: its config, its evaluations, its policies. Imports NumPy, but not JAX."""

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from r2r2.config.errors import UserError, invalid_value
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Member
from r2r2.policy.policy import Policy, PolicyParts
from r2r2.storage.arrays import read_named
from r2r2.storage.evaluations import Row, read_evaluations
from r2r2.storage.events import read_events
from r2r2.storage.files import read_json_object
from r2r2.storage.run_folder import POLICY_FILE, VERSIONS_FILE, open_run, run_status
from r2r2.training.saved_config import fleet_members, last_step, load_config, read_document

SCALES = ("scales/mean", "scales/deviation")  # names in files of weights
WEIGHTS = ("last", "best")


class Records(Sequence[Mapping[str, Any]]):
    """Rows with named columns, such as the evaluations of a run.

    An index returns a row as a dict, the name of a column an array; numbers that a row does not
    have are NaN there.

    Example:
        >>> records = Records([{"seed": 0, "value": 1.5}, {"seed": 1, "value": 2.5}])
        >>> records[0]
        {'seed': 0, 'value': 1.5}
        >>> records["value"].mean()
        np.float64(2.0)
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]):
        self._rows = [dict(row) for row in rows]

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in the order of their first occurrence."""
        return list(dict.fromkeys(name for row in self._rows for name in row))

    def where(self, **values: Any) -> "Records":
        """Return the rows in which columns have these values.

        Example:
            >>> rows = [{"member": "a", "mean": 1.0}, {"member": "b", "mean": 2.0}]
            >>> Records(rows).where(member="b")["mean"]
            array([2.])
        """
        items = values.items()
        return Records(row for row in self._rows if all(row.get(k) == x for k, x in items))

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame.

        Raises:
            ImportError: pandas is not installed.
        """
        return _pandas().DataFrame(self._rows, columns=self.columns)

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, key: slice) -> list[dict[str, Any]]: ...

    @overload
    def __getitem__(self, key: str) -> NDArray[Any]: ...

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return self._rows[key]
        if key not in self.columns:
            raise KeyError(f"no column {key!r}; there are {', '.join(self.columns)}")
        values = [row.get(key) for row in self._rows]
        if any(isinstance(x, (str, list)) for x in values):
            return np.array(values, dtype=object)
        return np.array([np.nan if x is None else x for x in values])

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows)

    def __repr__(self) -> str:
        return f"<Records: {len(self)} rows of {', '.join(self.columns)}>"


class Curve(NamedTuple):
    """The learning curves of some members: the points of their evaluations.

    Example:
        >>> members, steps = (Member("Pendulum-v1", 0),), np.array([100, 200])
        >>> curve = Curve(members, steps, steps, np.array([[-1200.0, -300.0]]))
        >>> curve.returns[0, -1]
        np.float64(-300.0)
    """

    members: tuple[Member, ...]
    decision_steps: NDArray[np.int_]  # [P]
    env_steps: NDArray[np.int_]  # [P]
    returns: NDArray[np.float64]  # [members, P]; NaN where a member has no point

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each point of each member.

        Raises:
            ImportError: pandas is not installed.
        """
        rows = [
            dict(zip(("env", "seed", "decision_step", "env_step", "return"), row, strict=True))
            for member, returns in zip(self.members, self.returns, strict=True)
            for row in (
                (*member, *point)
                for point in zip(self.decision_steps, self.env_steps, returns, strict=True)
            )
        ]
        return _pandas().DataFrame(rows)


class SavedRun:
    """A run folder; `load` opens it.

    Attributes:
        path: the folder.
        config: the resolved config.
        members: the members of the fleet: (task, seed).

    Example:
        >>> import tempfile
        >>> from r2r2 import resolve, train
        >>> config = resolve({"env": "Pendulum-v1", "steps": 10, "random_only": True})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = SavedRun(train(config, f"{folder}/run").folder.path)
        ...     status, rows = run.status, run.evaluations()
        >>> status, rows["env_step"]
        ('finished', array([10]))
    """

    def __init__(self, path: Path | str):
        self._folder = open_run(Path(path))
        self.path: Path = self._folder.path
        self.config: RunConfig = load_config(self._folder)
        self.members: tuple[Member, ...] = fleet_members(self.config)

    @property
    def status(self) -> str:
        """Whether the run is finished, failed, running or interrupted."""
        return run_status(self.path)

    @property
    def stopped(self) -> dict[str, str]:
        """The members that were stopped, each with the reason."""
        return self._folder.stopped()

    @property
    def versions(self) -> dict[str, Any]:
        """Versions of the packages, the commit and the device that the run was trained with."""
        return dict(read_json_object(self.path / VERSIONS_FILE) or {})

    def evaluations(self) -> Records:
        """Return all points of the learning curves, as `evaluations.csv` has them."""
        return Records(row._asdict() for row in self._points())

    def _points(self) -> list[Row]:
        path = self._folder.evaluations
        return read_evaluations(path) if path.exists() else []

    def curve(self, task: str | None = None) -> Curve:
        """Return the learning curves of all members, or of those of one task."""
        members = [m for m in self.members if task in (None, m.task)]
        if not members:
            raise invalid_value("task", f"one of {', '.join(self.config.env)}", task)
        rows = {(Member(x.env_name, x.seed), x.env_step): x.value for x in self._points()}
        steps = sorted({step for member, step in rows if member in members})
        returns = [[rows.get((member, step), np.nan) for step in steps] for member in members]
        env_steps = np.array(steps, dtype=int)
        decisions = env_steps // max(1, self.config.action_repeat)
        shape = len(members), len(steps)
        return Curve(tuple(members), decisions, env_steps, np.reshape(np.array(returns), shape))

    def events(self, event: str | None = None) -> Records:
        """Return the events of the run, or those of one kind ('losses', 'episode', ...)."""
        path = self._folder.events
        lines = read_events(path) if path.exists() else []
        return Records(
            {k: x for k, x in line.items() if event is None or k != "event"}
            for line in lines
            if event in (None, line["event"])
        )

    def diagnostics(self) -> Records:
        """Return the diagnostics of the encoders: effective rank, spectrum and others."""
        spectra = {
            (row["member"], row["decision_step"]): row["singular_values"]
            for row in self.events("spectrum")
        }
        return Records(
            {**row, "singular_values": spectra.get((row["member"], row["decision_step"]))}
            for row in self.events("diagnostics")
        )

    def policy(
        self, task: str | None = None, seed: int | None = None, weights: str = "last"
    ) -> Policy:
        """Return the policy of a member.

        The policies of a finished run need NumPy only. The last policy of an unfinished run is
        that of its latest checkpoint, which is read with JAX; so are runs of earlier versions.

        Args:
            task: may be left out if the run has one task.
            seed: may be left out if the run has one seed.
            weights: 'last', or 'best' for the policy of the member's best evaluation.

        Raises:
            UserError: There is no such member, or it has no such weights.
        """
        if weights not in WEIGHTS:
            raise invalid_value("weights", " or ".join(WEIGHTS), weights)
        member = self._select(task, seed)
        parts = self._read_parts(member, weights) or self._trace_parts(member, weights)
        return self._make(parts._replace(info=self._info(member, weights) | dict(parts.info)))

    def _make(self, parts: PolicyParts) -> Policy:
        """Return a policy, and check that it acts at all: its program may be damaged."""
        problem = "its program returns no action"
        try:
            policy = Policy(parts)
            if policy(np.zeros(parts.spaces.obs_dim)).size == parts.spaces.action_dim:
                return policy
        except Exception as error:  # whatever NumPy raises for wrong settings or shapes
            problem = f"{type(error).__name__}: {error}"
        raise UserError(f"{self.path / POLICY_FILE}: damaged: {problem}")

    def policies(self, weights: str = "last") -> dict[Member, Policy]:
        """Return the policies of all members that were not stopped."""
        running = [m for m in self.members if m.name not in self.stopped]
        return {member: self.policy(*member, weights) for member in running}

    def resume(self, steps: int | None = None, **options: Any) -> Any:
        """Continue the run's training, and return its `Trainer`.

        Args:
            steps: further decision steps; by default, up to the steps of the config.
            **options: as for `Trainer`: `env` for a run on an environment from Python,
                `callbacks`, `progress`, `workers` and the other run options.
        """
        trainer = importlib.import_module("r2r2.trainer").Trainer.from_run(self.path, **options)
        trainer.train(steps)
        return trainer

    def _select(self, task: str | None, seed: int | None) -> Member:
        found = [m for m in self.members if task in (None, m.task) and seed in (None, m.seed)]
        if len(found) == 1:
            return found[0]
        names = ", ".join(f"({m.task!r}, {m.seed})" for m in self.members)
        field = "seed" if task is None or task in self.config.env else "task"
        got = (task, seed)[field == "seed"]
        raise invalid_value(field, f"one member of {names}", got)

    def _info(self, member: Member, weights: str) -> dict[str, Any]:
        return {
            "agent": self.config.agent.name,
            "task": member.task,
            "seed": member.seed,
            "weights": weights,
            "step": last_step(self._folder, self.config),
            "action_repeat": self.config.action_repeat,
            "return": self._last_returns(member),
            "versions": self.versions,
        }

    def _last_returns(self, member: Member) -> dict[str, Any] | None:
        """Return a member's last evaluation, and those of all seeds of its task."""
        last = {Member(x.env_name, x.seed): x for x in self._points()}
        if member not in last:
            return None
        seeds = [x.value for other, x in last.items() if other.task == member.task]
        step = last[member].env_step // max(1, self.config.action_repeat)
        return {"mean": last[member].value, "seeds": seeds, "step": step}

    def _read_parts(self, member: Member, weights: str) -> PolicyParts | None:
        """Return a policy from the files of a run, or None if that needs JAX."""
        fields, is_best = self._folder.policy_document(), weights == "best"
        document = None if fields is None else read_document(self.path, fields)
        if document is None or (self.status != "finished" and not is_best):
            return None
        folder, name = self._folder, member.name
        path = folder.best_weights(name) if is_best else folder.weights(name)
        names = [x and (x.best if is_best else x.weights) for x in document.parameters]
        used = [name for name, x in zip(names, document.parameters, strict=True) if x is not None]
        if None in used or not path.exists():
            return None  # the policy is computed from the weights, or there is an error to raise
        facts = ("step", "mean") if is_best else ()
        wanted = [*used, *(SCALES if document.normalizes else ()), *facts]
        arrays = read_named(path, [str(x) for x in wanted])
        for array_name, parameter in zip(names, document.parameters, strict=True):
            array = arrays.get(str(array_name))
            if parameter and array is not None and array.shape != parameter.shape:
                raise UserError(f"{path}: array '{array_name}': not of the shape in {POLICY_FILE}")
        if not all(np.isfinite(arrays[str(x)]).all() for x in used):
            raise UserError(f"{path}: the weights are not finite; choose another member")
        empty = np.zeros(0)
        return PolicyParts(
            program=document.program,
            parameters=tuple(empty if x is None else arrays[str(x)] for x in names),
            dtype=document.dtype,
            spaces=document.spaces[member.task],
            mean=arrays.get(SCALES[0]),
            deviation=arrays.get(SCALES[1]),
            info=_best_info(arrays) if is_best else {},
        )

    def _trace_parts(self, member: Member, weights: str) -> PolicyParts:
        """Return a policy that must be computed with JAX."""
        module = importlib.import_module("r2r2.training.policy_document")
        parts: PolicyParts = module.load_parts(self._folder, self.config, member, weights)
        return parts

    def __repr__(self) -> str:
        names = ", ".join(self.config.env)
        return f"<SavedRun {self.path}: {self.config.agent.name} on {names}, {self.status}>"


def load(path: Path | str) -> SavedRun:
    """Open a run folder, finished or not.

    Args:
        path: the run folder.

    Raises:
        UserError: The folder is not a run, or cannot be read.

    Example:
        >>> import tempfile
        >>> from r2r2 import resolve, train
        >>> config = resolve({"env": "Pendulum-v1", "steps": 10, "random_only": True})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = train(config, f"{folder}/run")
        ...     run = load(f"{folder}/run")
        ...     policy = run.policy("Pendulum-v1", seed=0)
        >>> run.members, policy([1.0, 0.0, 0.0]).shape
        ((Member(task='Pendulum-v1', seed=0),), (1,))
    """
    return SavedRun(path)


def _best_info(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return step and return of a member's best evaluation."""
    step, mean = int(arrays["step"]), float(arrays["mean"])
    return {"step": step, "return": {"mean": mean, "seeds": [mean], "step": step}}


def _pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise ImportError("to_pandas needs pandas: pip install pandas") from None
