"""Sweeps: plan an experiment on this machine, carry the plan out, and report its results."""

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from r2r2.config.errors import UserError, invalid_value
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import changed_fields
from r2r2.experiments.costs import load_costs, record_speed
from r2r2.experiments.engine import Engine
from r2r2.experiments.experiment import (
    Experiment,
    RunKey,
    finalize_cells,
    find_experiment,
    run_keys,
)
from r2r2.experiments.local_engine import LocalEngine
from r2r2.experiments.machine import Machine, this_machine
from r2r2.experiments.plan import Plan, PlannedFleet, read_plan, write_plan
from r2r2.experiments.planner import ExperimentCells, make_plan, seconds_left, within_budget
from r2r2.experiments.run_report import (
    CONTENTS,
    OnStage,
    Source,
    load_study,
    usual_config,
    write_report,
)
from r2r2.experiments.runner import RETRIES, FleetStatus, OnStatus, RunLimits, is_finished, run_plan
from r2r2.experiments.sweep_folder import (
    SweepFolder,
    finished_runs,
    lock_sweep,
    saved_step,
    sweep_name,
    sweep_names,
)
from r2r2.report.study import PlannedCell, Study
from r2r2.stats.scores import NEUTRAL_FIELDS, Cell, MemberKey
from r2r2.storage.disk_usage import find_runs
from r2r2.storage.files import check_report_dir
from r2r2.training.saved_config import find_config
from r2r2.training.signals import Interrupted, interruptible

ENGINES = ("local", "ray")  # that carry out a plan in this call
OUT = "sweeps"  # default folder

Finished = Mapping[RunKey, tuple[Path, int]]


class SweepPlan(NamedTuple):
    """What a sweep is going to do; made by `plan_sweep`, which writes nothing."""

    folder: SweepFolder
    cells: tuple[RunConfig, ...]  # finalized, with one task each
    finished: Finished  # runs of the cells that need not be trained again
    plan: Plan  # all fleets, as they will be stored
    fleets: tuple[PlannedFleet, ...]  # the fleets to train now
    machine: Machine
    stored: bytes | None  # the stored plan that this one is based on
    budget: float = math.inf  # seconds

    @property
    def keys(self) -> list[RunKey]:
        """All runs of the experiment."""
        return [key for cell in self.cells for key in run_keys(cell)]

    @property
    def postponed(self) -> tuple[PlannedFleet, ...]:
        """The fleets that are not finished, but do not fit into the budget."""
        names = {fleet.name for fleet in self.fleets}
        others = [fleet for fleet in self.plan.fleets if fleet.name not in names]
        done = {(key, steps) for key, (_, steps) in self.finished.items()}
        return tuple(fleet for fleet in others if not is_finished(fleet, done))


class CellScore(NamedTuple):
    """The scores of one method on one task, over seeds."""

    method: str  # the agent, with its settings if there are several
    utd: int | None
    task: str
    mean: float
    std: float  # ddof 1; NaN for one seed
    seeds: int


class SweepResult(NamedTuple):
    """What became of a sweep; as text, a table of its scores.

    Example:
        >>> score = CellScore("td7", 1, "Pendulum-v1", -150.0, 12.0, 5)
        >>> folder = SweepFolder(Path("sweeps"), "pendulum")
        >>> missing = CellScore("td7", 10, "Pendulum-v1", math.nan, math.nan, 0)
        >>> print(SweepResult(folder, (), (), {}, None, (score, missing)))
        method  UTD  task         mean    std   seeds
        td7     1    Pendulum-v1  -150.0  12.0  5
        td7     10   Pendulum-v1  -       -     0
    """

    folder: SweepFolder
    finished: tuple[RunKey, ...]  # runs, also those of earlier sweeps
    missing: tuple[RunKey, ...]  # runs of the experiment that are not finished
    set_aside: Mapping[str, str]  # fleets that kept failing, each with the reason
    report: Path | None  # its folder; None without any results
    scores: tuple[CellScore, ...]
    interrupted: bool = False
    postponed: tuple[PlannedFleet, ...] = ()  # fleets that did not fit into the budget

    def __str__(self) -> str:
        rows = [("method", "UTD", "task", "mean", "std", "seeds")]
        for score in self.scores:
            mean, std = ("-" if math.isnan(x) else f"{x:.1f}" for x in (score.mean, score.std))
            rows.append((score.method, str(score.utd), score.task, mean, std, str(score.seeds)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(lines)


def sweep(
    experiment: str | Experiment,
    out: Path | str = OUT,
    *,
    scale: float = 1.0,
    budget: float | None = None,
    engine: str = "local",
    address: str | None = None,
) -> SweepResult:
    """Train all runs of an experiment that are not finished in a folder, and report them.

    Runs that can share a program are trained together, on all GPUs of the machine or on its
    cores. Finished runs are skipped, interrupted ones resume, also those of other sweeps in the
    same folder. A failing fleet is retried, then set aside, and never stops the others. Ctrl-C
    ends all of them with a checkpoint and returns the result so far; Ctrl-C again is raised at
    once.

    Args:
        experiment: a preset, the path of a TOML file, or an `Experiment`.
        out: the folder of plans, runs, logs and reports, which several sweeps can share.
        scale: factor <= 1 of the length of all runs.
        budget: seconds; only what is expected to finish within them is started.
        engine: 'local', or 'ray' for a cluster.
        address: of the cluster.

    Raises:
        UserError: The experiment or an argument is invalid; nothing has been written then.

    Example:
        >>> import tempfile
        >>> from r2r2 import Experiment
        >>> base = {"steps": 20, "random_only": True, "eval_every": 10, "eval_episodes": 1}
        >>> grid = {"agent": "td7", "env": "Pendulum-v1", "seeds": 2, "max_episode_steps": 5}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = sweep(Experiment("pendulum", base=base, grids=(grid,)), folder)
        ...     result.report is not None
        True
        >>> len(result.finished), result.missing, result.scores[0].seeds
        (2, (), 2)
    """
    check_engine(engine, address)
    return run_sweep(plan_sweep(experiment, out, scale=scale, budget=budget), engine, address)


def check_engine(name: str, address: str | None) -> None:
    """Check an engine before anything is planned, which can take a minute.

    Raises:
        UserError: There is no such engine, or no cluster at the address.
    """
    _check_options(name, address)
    if name == "ray":
        from r2r2.experiments.ray_engine import check_cluster  # Ray is an extra

        check_cluster(address)


def _check_options(engine: str, address: str | None) -> None:
    if engine not in ENGINES:
        raise invalid_value("engine", f"one of {', '.join(ENGINES)}", engine)
    if engine == "local" and address is not None:
        raise UserError("only used with the engine 'ray'", "address")


def plan_sweep(
    experiment: str | Experiment,
    out: Path | str = OUT,
    *,
    scale: float = 1.0,
    budget: float | None = None,
) -> SweepPlan:
    """Return what `sweep` would do now; nothing is written.

    Raises:
        UserError: The experiment or an argument is invalid.

    Example:
        >>> grid = {"agent": "td7", "env": "Pendulum-v1", "seeds": 2}
        >>> planned = plan_sweep(Experiment("pendulum", grids=(grid,)), "no_such_folder")
        >>> [key.seed for key in planned.keys], planned.finished
        ([0, 1], {})
    """
    if isinstance(experiment, str):
        experiment = find_experiment(experiment)
    if budget is not None and not 0 < budget < math.inf:
        raise invalid_value("budget", "a number of seconds > 0", budget)
    cells = finalize_cells(experiment, scale)
    folder = SweepFolder(Path(out), sweep_name(experiment.name, scale))
    if folder.path.exists() and not folder.path.is_dir():
        raise UserError(f"{folder.path}: is a file; expected a folder")
    check_report_dir(folder.report, CONTENTS)
    steps = {key: cell.steps for cell in cells for key in run_keys(cell)}
    runs = finished_runs(folder.path / "runs")
    finished = {key: (runs[key, n], n) for key, n in steps.items() if (key, n) in runs}
    machine, stored = this_machine(), _usable(folder, steps)
    costs = load_costs(folder.path / "runs", machine)
    longest = math.inf if budget is None else budget
    wanted = ExperimentCells(experiment.name, scale, cells)
    plan = make_plan(wanted, machine, finished, stored, costs, longest=longest)
    plan = _with_unique_names(folder, plan, stored)
    fleets = tuple(
        fleet._replace(seconds=seconds_left(fleet, saved_step(folder.run(fleet.name)), costs))
        for fleet in plan.fleets
        if not is_finished(fleet, runs)
    )
    if budget is not None:
        fleets = within_budget(plan._replace(fleets=fleets), machine, budget).fleets
    text = folder.plan_file.read_bytes() if folder.plan_file.exists() else None
    return SweepPlan(folder, tuple(cells), finished, plan, fleets, machine, text, longest)


def _usable(folder: SweepFolder, steps: Mapping[RunKey, int]) -> Plan | None:
    """Return the stored plan with the fleets that are to stay as they are.

    Those that are longer than the experiment says now are not among them, nor those that were made
    short for a budget and have not started.
    """
    stored = folder.plan()
    if stored is None:
        return None
    fleets = [
        fleet
        for fleet in stored.fleets
        if all(steps.get(key, fleet.config.steps) >= fleet.config.steps for key in fleet.keys)
        and not (fleet.limited and find_config(folder.run(fleet.name)) is None)
    ]
    return stored._replace(fleets=tuple(fleets))


def _with_unique_names(folder: SweepFolder, plan: Plan, stored: Plan | None) -> Plan:
    """Return the plan with new names for fleets whose folder belongs to another config.

    A run of this sweep can be extended to more steps, unless another sweep plans it with fewer.
    """
    planned, trained = _planned_elsewhere(folder), _run_configs(folder)
    old = {fleet.name for fleet in stored.fleets} if stored else set[str]()

    def is_taken(name: str, config: RunConfig) -> bool:
        run = trained.get(name, config)
        can_extend = name in old and (run is None or run.steps <= config.steps)
        return planned.get(name, config) != config or (run != config and not can_extend)

    fleets: list[PlannedFleet] = []
    for fleet in plan.fleets:
        name, number = fleet.name, 2
        while is_taken(name, fleet.config):
            name, number = f"{fleet.name}_{number}", number + 1
        trained[name] = fleet.config
        fleets.append(fleet._replace(name=name))
    return plan._replace(fleets=tuple(fleets))


def _planned_elsewhere(folder: SweepFolder) -> dict[str, RunConfig]:
    """Return the configs of the fleets that other sweeps of the folder plan, by name."""
    others = [name for name in sweep_names(folder.path) if name != folder.name]
    plans = [read_plan(folder.path / "plans" / f"{name}.json") for name in others]
    return {fleet.name: fleet.config for plan in plans if plan for fleet in plan.fleets}


def _run_configs(folder: SweepFolder) -> dict[str, RunConfig | None]:
    """Return the configs of run folders by name, None where it cannot be read."""
    return {path.name: find_config(path) for path in find_runs(folder.path / "runs")}


def run_sweep(
    planned: SweepPlan,
    engine: str = "local",
    address: str | None = None,
    retries: int = RETRIES,
    on_status: OnStatus = lambda _: None,
    on_stage: OnStage = lambda _: None,
) -> SweepResult:
    """Carry out a plan of `plan_sweep`, write the report, and return what became of the runs.

    Args:
        planned: the plan.
        engine: 'local', or 'ray' for a cluster.
        address: of the cluster.
        retries: attempts after the first for a fleet that fails.
        on_status: called at least twice per second with the state of each fleet; an exception
            of it, such as KeyboardInterrupt, ends the fleets with a checkpoint and is raised.
        on_stage: called with the stages of the report.
    """
    _check_options(engine, address)
    statuses: Mapping[str, FleetStatus] = {}
    interrupted = False
    if planned.fleets:
        folder, now = planned.folder, planned.plan._replace(fleets=planned.fleets)
        with interruptible(program=False) as check, lock_sweep(folder):

            def report_status(current: Mapping[str, FleetStatus]) -> None:
                nonlocal statuses
                statuses = current
                on_status(current)
                check()

            def record(fleet: PlannedFleet) -> None:
                record_speed(folder.run(fleet.name))

            _check_unchanged(planned)
            running = make_engine(engine, folder, now, planned.machine, address)
            limits = RunLimits(retries, planned.budget)
            write_plan(folder.plan_file, planned.plan)
            try:
                run_plan(folder, now, running, report_status, record, limits)
            except Interrupted:
                interrupted = True
    return _finish(planned, statuses, interrupted, on_stage)


def make_engine(
    name: str, folder: SweepFolder, plan: Plan, machine: Machine, address: str | None
) -> Engine:
    """Return the engine of a name; a cluster must be reachable."""
    if name == "local":
        return LocalEngine(folder, plan, machine)
    from r2r2.experiments.ray_engine import RayEngine  # Ray is an extra

    return RayEngine(folder, plan, address)


def _check_unchanged(planned: SweepPlan) -> None:
    """Check that the plan on disk is still the one that this plan is based on."""
    path = planned.folder.plan_file
    if (path.read_bytes() if path.exists() else None) != planned.stored:
        raise UserError(f"{path}: another process has changed the plan meanwhile; run it again")


def _finish(
    planned: SweepPlan, statuses: Mapping[str, FleetStatus], interrupted: bool, on_stage: OnStage
) -> SweepResult:
    """Return the result of a sweep, after writing its report."""
    runs = finished_runs(planned.folder.path / "runs")
    steps = {key: cell.steps for cell in planned.cells for key in run_keys(cell)}
    finished = {key: runs[key, n] for key, n in steps.items() if (key, n) in runs}
    study = _load_results(planned, finished, on_stage)
    if study and not interrupted:
        sources = [Source(Path(run.path), run.name) for run in study.runs]
        write_report(study, sources, planned.folder.report, on_stage)
    return SweepResult(
        planned.folder,
        tuple(key for key in planned.keys if key in finished),
        tuple(key for key in planned.keys if key not in finished),
        {name: x.why for name, x in statuses.items() if x.state == "set aside"},
        planned.folder.report if study and not interrupted else None,
        _cell_scores(study) if study else (),
        interrupted,
        (*planned.postponed, *(x.fleet for x in statuses.values() if x.state == "postponed")),
    )


def _load_results(
    planned: SweepPlan, finished: Mapping[RunKey, Path], on_stage: OnStage
) -> Study | None:
    """Return the results of the experiment's runs; None if there are none yet."""
    folders = _run_folders(planned, finished)
    sources = [Source(path, path.name) for path in folders]
    try:
        study = load_study(sources, on_stage, folders) if sources else None
    except UserError:  # no run can be read
        return None
    cells = tuple(planned_cells(planned, finished))
    return study._replace(planned=cells) if study else None


def _run_folders(planned: SweepPlan, finished: Mapping[RunKey, Path]) -> dict[Path, set[MemberKey]]:
    """Return the folders with runs of the experiment, and which of their members belong to it."""
    places = dict(finished)
    for fleet in planned.plan.fleets:
        if find_config(planned.folder.run(fleet.name)) is not None:
            places = {key: planned.folder.run(fleet.name) for key in fleet.keys} | places
    folders: dict[Path, set[MemberKey]] = {}
    for key in planned.keys:
        if key in places:
            folders.setdefault(places[key], set()).add((key.task, key.seed))
    return folders


def planned_cells(planned: SweepPlan, finished: Collection[RunKey]) -> Iterable[PlannedCell]:
    """Yield the cells of an experiment for its report."""
    for cell in planned.cells:
        keys = run_keys(cell)
        changed = changed_fields(cell, usual_config(cell, planned.plan.scale))
        settings = [f"{path}={x}" for path, x in changed.items() if path not in NEUTRAL_FIELDS]
        done = tuple(key.seed for key in keys if key in finished)
        names = cell.agent.name, cell.utd, cell.env[0], "; ".join(settings)
        yield PlannedCell(*names, tuple(cell.seeds), done)


def _cell_scores(study: Study) -> tuple[CellScore, ...]:
    return tuple(_cell_score(study, cell) for cell in study.cells)


def _cell_score(study: Study, cell: Cell) -> CellScore:
    """Return the scores of a cell; settings are named only if its agent has several."""
    same = {method.settings for method in study.methods if method.agent == cell.method.agent}
    scores, count = cell.scores, len(cell.scores)
    return CellScore(
        cell.method.agent if len(same) == 1 else study.label(cell.method, utd=False),
        cell.method.utd,
        cell.task,
        float(scores.mean()) if count else math.nan,
        float(scores.std(ddof=1)) if count > 1 else math.nan,
        count,
    )
