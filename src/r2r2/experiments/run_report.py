"""Read runs and result files as a study, and write its report: tables, figures and a page."""

import contextlib
import math
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import r2r2
from r2r2.config.errors import UserError
from r2r2.config.fields import flatten_config, replace_fields
from r2r2.config.resolve import resolve_toml, run_defaults
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import parse_toml
from r2r2.envs.spec import Member
from r2r2.envs.suites import clean_task_name, default_action_repeat
from r2r2.experiments.scaling import scale_config
from r2r2.report.comparison_tables import all_tables
from r2r2.report.figures import write_figures
from r2r2.report.load import (
    STEP_FIELDS,
    Event,
    compute_timing,
    consistent_rows,
    early_ends,
    effective_precision,
    ended_early,
    load_evaluations,
    load_events,
    load_results_file,
    load_scale,
    load_versions,
    member_marks,
    read_members,
    truncated_logs,
)
from r2r2.report.page import write_page
from r2r2.report.study import RunData, RunTiming, Status, Study, make_study
from r2r2.report.tables import write_tables
from r2r2.stats.scores import MemberKey, Shortfall, ShortfallKind, run_results
from r2r2.stats.suites import SAMPLES, SEED
from r2r2.storage.disk_usage import find_runs
from r2r2.storage.evaluations import Row
from r2r2.storage.files import atomic_dir
from r2r2.storage.integrity import find_damage
from r2r2.storage.results import (
    CONFIG_DIR,
    SPEEDS,
    TABLES,
    ResultTables,
    TableRow,
    is_results,
    read_results_folder,
)
from r2r2.storage.run_folder import MANIFEST_FILE, PRUNED_FILE, is_locked, open_run, read_manifest
from r2r2.training.run_config import task_default_config
from r2r2.training.saved_config import fleet_members, load_config

CONTENTS = ("index.html", "figures", "tables")  # of a report's folder
SLOW_STAGE = "figures"
STAGES_AFTER_READING = 4  # statistics, tables, figures and the page
OnStage = Callable[[str], None]

# Fields in which 0 means that the task decides.
TASK_FIELDS = ("action_repeat", "agent.critics", "agent.discount")


class Source(NamedTuple):
    """A run folder, a folder of results or a CSV file, and its name in a report."""

    path: Path
    name: str


def find_sources(paths: Sequence[Path]) -> list[Source]:
    """Return the runs and files in paths, and in folders below them, each once."""
    expanded: list[Path] = []
    for path in paths:
        whole = path.is_file() or is_results(path)
        runs = [path] if whole else find_runs(path, damaged=True)
        expanded += runs or _raise_no_run(path)
    unique = list({path.resolve(): path for path in expanded}.values())
    names = [path.resolve().name for path in unique]
    return [
        Source(path, name if names.count(name) == 1 else str(path))
        for path, name in zip(unique, names, strict=True)
    ]


def load_study(
    sources: Sequence[Source],
    on_stage: OnStage = lambda _: None,
    wanted: Mapping[Path, Collection[MemberKey]] | None = None,
) -> Study:
    """Read runs and files, and compute their statistics; of runs in `wanted`, of these members."""
    runs: list[RunData] = []
    unreadable: list[str] = []
    for source in sources:
        on_stage(source.name)
        if source.path.is_file():
            runs += map(_with_usual_tasks, load_results_file(source.path, source.name))
            continue
        if is_results(source.path):
            runs += _load_results(source.path)
            continue
        try:
            run = load_run(source)
            keys = (wanted or {}).get(source.path)
            runs.append(run if keys is None else _select_members(run, keys))
        except UserError as error:  # must not stop the report of other runs
            unreadable.append(str(error))
    if not runs:
        raise UserError(unreadable[0])
    on_stage("statistics")
    return make_study(runs)._replace(unreadable=tuple(unreadable))


def _select_members(run: RunData, keys: Collection[MemberKey]) -> RunData:
    """Return a run with the results of some of its members."""
    results = run.results
    rows = [row for row in results.rows if (row.env_name, row.seed) in keys]
    kept = tuple(key for key in results.members if key in keys)
    members = tuple(member for member in run.members if (member.task, member.seed) in keys)
    return run._replace(results=results._replace(rows=rows, members=kept), members=members)


def load_run(source: Source) -> RunData:
    """Return what a report reads of a run folder, finished or not."""
    folder = open_run(source.path)
    config, damage = load_config(folder), list[str]()
    versions_file = source.path / "versions.json"
    versions, scale = load_versions(versions_file, damage), load_scale(versions_file, damage)
    rows = load_evaluations(folder.evaluations, damage)
    rows = consistent_rows(folder.evaluations, rows, {*fleet_members(config)}, damage)
    results = run_results(
        config,
        usual_config(config, scale),
        rows,
        effective_precision(parse_toml(folder.config_text()).get("precision"), versions),
        scale,
    )
    events = load_events(folder.events, damage)
    changed = {f"{file}: ": why for file, why in find_damage(source.path).items()}
    damage += [x + why for x, why in changed.items() if not any(y.startswith(x) for y in damage)]
    members, status = read_members(folder.members, results.members, events), _status(source.path)
    finished = status == "finished"
    early = finished and ended_early(events)
    logs = truncated_logs(config, results.rows, members, early) if finished else {}
    logs = {**(early_ends(config, members) if early else {}), **logs}
    if damage:
        logs = {key: Shortfall(ShortfallKind.DAMAGED, seed=key[1]) for key in results.members}
    return RunData(
        source.name,
        str(source.path),
        status,
        results._replace(marks=member_marks(status, members, logs)),
        members,
        compute_timing(events),
        versions,
        dict.fromkeys(config.env, config.action_repeat),
        config.diagnostics,
        tuple(damage),
    )


def _status(run: Path) -> Status:
    manifest = read_manifest(run)
    status = "unknown" if manifest is None else str(manifest.status)
    if status in ("finished", "failed"):
        return "finished" if status == "finished" else "failed"
    if (run / PRUNED_FILE).exists():
        return "pruned"
    return "running" if is_locked(run) else "interrupted"


def _load_results(path: Path) -> list[RunData]:
    """Return the runs in a folder of results."""
    tables = read_results_folder(path)
    return [_load_collected(path, tables, row) for row in tables.runs]


def _load_collected(path: Path, tables: ResultTables, info: Mapping[str, Any]) -> RunData:
    """Return one run in a folder of results, with the members that are there."""
    name = info["run"]
    file = path / CONFIG_DIR / f"{name}.toml"
    try:
        config = resolve_toml(tables.configs[name])
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: {error}") from None
    rows = [Row(*(x[k] for k in Row._fields)) for x in tables.evaluations if x["run"] == name]
    usual = usual_config(config, info["scale"])
    results = run_results(config, usual, rows, info["precision"], info["scale"])
    present = {(x["env_name"], x["seed"]): x for x in tables.members if x["run"] == name}
    keys = [key for key in results.members if key in present]
    names = [Member(*key).name for key in keys]
    members = read_members(names, keys, _collected_events(tables, name))
    ended = [member for member in members if present[member.task, member.seed]["ended_early"]]
    marks = member_marks(info["status"], members, early_ends(config, ended))
    return RunData(
        name,
        str(path),
        info["status"],
        results._replace(members=tuple(keys), marks=marks),
        members,
        _stored_timing(info),
        {k: x for k, x in info.items() if k not in TABLES["runs"] and x},
        dict.fromkeys(config.env, config.action_repeat),
        config.diagnostics,
    )


def _collected_events(tables: ResultTables, run: str) -> list[Event]:
    """Return what a folder of results has of a run's events."""

    def event(kind: str, row: TableRow, **fields: Any) -> Event:
        steps = (row.get(name, 0) for name in STEP_FIELDS)
        return Event(kind, 0.0, Member(row["env_name"], row["seed"]).name, *steps, **fields)

    events: list[Event] = []
    for row in (x for x in tables.diagnostics if x["run"] == run):
        is_collapse = row["metric"] == "collapse"
        numbers = {} if is_collapse else {row["metric"]: row["value"]}
        events.append(event("collapse" if is_collapse else "diagnostics", row, numbers=numbers))
    for row in (x for x in tables.spectra if x["run"] == run):
        values = tuple(row["singular_values"])
        events.append(event("spectrum", row, singular_values=values))
    for row in (x for x in tables.members if x["run"] == run):
        steps = row["env_steps"], row["decision_steps"], row["updates"]
        end = {**row, **dict(zip(STEP_FIELDS, steps, strict=True))}
        events.append(event("stopped" if row["stopped"] else "end", end, reason=row["stopped"]))
    return events


def _stored_timing(info: Mapping[str, Any]) -> RunTiming | None:
    seconds, *rates = (info[name] for name in SPEEDS)
    if seconds is None:
        return None
    counts = info["members"], info["decisions"], info["updates"]
    return RunTiming(seconds, *counts, *(math.nan if x is None else x for x in rates))


def _with_usual_tasks(run: RunData) -> RunData:
    """Return a file's results with the usual names of their tasks, and their action repeats."""
    names = {task: clean_task_name(task) for task in run.tasks}
    rows = [row._replace(env_name=names[row.env_name]) for row in run.results.rows]
    run = run._replace(results=run.results._replace(rows=rows))
    known: dict[str, int] = {}
    for task in run.tasks:
        with contextlib.suppress(UserError):  # of an unknown suite
            known[task] = default_action_repeat(task)
    return run._replace(repeats=known)


def usual_config(config: RunConfig, scale: float = 1.0) -> RunConfig:
    """Return an agent's defaults; fields that only a user's environment decides are the run's.

    Defaults are scaled as the run was, so that what differs are its own settings.
    """
    is_user_env = ":" in config.env[0]
    default = run_defaults(config) if is_user_env else task_default_config(config)
    with contextlib.suppress(UserError):  # the run was longer than usual, and scaled further
        default = scale_config(default, scale)
    values, defaults = flatten_config(config), flatten_config(default)
    open_paths = [x for x in TASK_FIELDS if x in defaults and not defaults[x].value]
    return replace_fields(default, {path: values[path].value for path in open_paths})


def _raise_no_run(path: Path) -> list[Path]:
    """Raise the error for a folder without runs."""
    with contextlib.suppress(OSError):  # reported by open_run
        if path.is_dir() and not (path / MANIFEST_FILE).exists():
            raise UserError(f"{path}: no runs in this folder or below it")
    open_run(path)
    raise UserError(f"{path}: changed while it was read")


def write_report(study: Study, sources: Sequence[Source], out: Path, on_stage: OnStage) -> str:
    """Write a report completely or not at all, and return a summary of it."""
    facts = {
        "r2r2": r2r2.__version__,
        "runs": [str(source.path) for source in sources],
        "resamples": SAMPLES,
        "generator_seed": SEED,
    }
    with atomic_dir(out, facts, CONTENTS) as folder:
        on_stage("tables")
        tables = all_tables(study)
        (folder / "tables").mkdir()
        write_tables(tables, folder / "tables")
        on_stage(SLOW_STAGE)
        figures = write_figures(study, folder / "figures")
        on_stage("page")
        write_page(study, tables, figures, folder)
    files = sum(source.path.is_file() for source in sources)
    runs = sum(run.status != "file" for run in study.runs) + len(study.unreadable)
    counts = {"run": runs, "file": files}
    read = [f"{n} {what}{'s' * (n > 1)}" for what, n in counts.items() if n]
    return (
        f"{' and '.join(read)}: {len(tables)} tables and {len(figures.charts)} figures "
        f"in '{out}'; open {shlex.quote(str(out / 'index.html'))}"
    )
