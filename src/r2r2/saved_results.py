"""Load a folder of results: curves, diagnostics and settings of many runs. Needs NumPy only."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from r2r2.config.errors import UserError, did_you_mean
from r2r2.envs.spec import Member
from r2r2.saved_run import Curve, Records
from r2r2.storage.results import read_results_folder

METRIC = "return"


class SavedResults:
    """The content of a folder of results; `load_results` reads it.

    Attributes:
        path: the folder.
        evaluations: every evaluation of every seed.
        diagnostics: every diagnostic number of every seed; `metric` is its name.
        spectra: singular values of representations, with a list in each row.
        members: one row for each task and seed, with its score and its final return.
        runs: one row for each run: settings, wall-clock seconds, device, commit, versions.

    Example:
        >>> import tempfile
        >>> from r2r2 import collect, resolve, train
        >>> config = resolve({"env": "Pendulum-v1", "steps": 10, "random_only": True})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = train(config, f"{folder}/run")
        ...     _ = collect([f"{folder}/run"], f"{folder}/results")
        ...     results = SavedResults(f"{folder}/results")
        >>> len(results.runs), results.members["env_steps"], results.tasks
        (1, array([10]), ('Pendulum-v1',))
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        tables = read_results_folder(self.path)
        self.runs = Records(tables.runs)
        self.members = Records(tables.members)
        self.evaluations = Records(tables.evaluations)
        self.diagnostics = Records(tables.diagnostics)
        self.spectra = Records(tables.spectra)
        self._configs = tables.configs

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks, each once."""
        return tuple(dict.fromkeys(row["env_name"] for row in self.members))

    @property
    def experiments(self) -> tuple[str, ...]:
        """The values of `exp_name`: agents with their settings and UTD, each once."""
        return tuple(dict.fromkeys(row["exp_name"] for row in self.members))

    def config_text(self, run: str) -> str:
        """Return the resolved config of a run as TOML, which `r2r2 train --config` reads."""
        self._check("run", run, tuple(self._configs))
        return self._configs[run]

    def curve(self, experiment: str, task: str) -> Curve:
        """Return the learning curves of all seeds of an experiment on a task.

        Args:
            experiment: one of `experiments`, such as 'td7+r2r2_utd1'.
            task: one of `tasks`.

        Raises:
            UserError: There is no such cell.
        """
        self._check("experiment", experiment, self.experiments)
        self._check("task", task, self.tasks)
        rows = self.evaluations.where(exp_name=experiment, env_name=task, metric=METRIC)
        if not len(rows):
            raise UserError(f"task: {experiment!r} has no evaluations on {task!r}")
        seeds = sorted({row["seed"] for row in rows})
        steps = sorted({(row["env_step"], row["decision_step"]) for row in rows})
        env_steps, decisions = np.array(steps, dtype=int).T
        values = {(row["seed"], row["env_step"]): row["value"] for row in rows}
        returns = [[values.get((seed, step), np.nan) for step in env_steps] for seed in seeds]
        members = tuple(Member(task, seed) for seed in seeds)
        return Curve(members, decisions, env_steps, np.array(returns, dtype=np.float64))

    def scores(self) -> dict[str, dict[str, NDArray[np.float64]]]:
        """Return the scores of all seeds by experiment and task.

        The score of a seed is the mean of its last 10 evaluations. The scores of one experiment
        are what `iqm`, `mean_score` and `interval` take; those of all are what `to_rliable` takes.
        """
        lists: dict[str, dict[str, list[float]]] = {}
        for row in self.members:
            if row["evaluations"]:
                tasks = lists.setdefault(row["exp_name"], {})
                tasks.setdefault(row["env_name"], []).append(row["score"])
        return {k: {t: np.array(x) for t, x in tasks.items()} for k, tasks in lists.items()}

    def _check(self, field: str, value: str, known: tuple[str, ...]) -> None:
        if value not in known:
            near = did_you_mean(value, known, most=1)
            expected = f"one of {', '.join(known)}" if len(known) < 9 else "one that is there"
            raise UserError(f"expected {expected}, got {value!r}{near}", field)

    def __repr__(self) -> str:
        seeds = len(self.members)
        return f"<SavedResults {self.path}: {seeds} seeds of {len(self.runs)} runs>"


def load_results(path: Path | str = "results") -> SavedResults:
    """Read a folder of results, which `r2r2 collect` has written.

    No code is executed and no config is resolved; the files are compared with their checksums.

    Args:
        path: the folder.

    Raises:
        UserError: The folder is not one of results, or a file is damaged.

    Example:
        >>> import tempfile
        >>> from r2r2 import collect, resolve, train
        >>> config = resolve({"env": "Pendulum-v1", "steps": 10, "random_only": True})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = train(config, f"{folder}/run")
        ...     _ = collect([f"{folder}/run"], f"{folder}/results")
        ...     results = load_results(f"{folder}/results")
        >>> results.evaluations["env_step"], results.tasks
        (array([10]), ('Pendulum-v1',))
        >>> (experiment,) = results.experiments
        >>> results.curve(experiment, "Pendulum-v1").returns.shape
        (1, 1)
        >>> results.scores()[experiment]["Pendulum-v1"].shape
        (1,)
    """
    return SavedResults(path)
