"""Collect runs in a folder of results: `r2r2 collect`."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from r2r2.config.errors import UserError
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import experiment_name, run_name
from r2r2.experiments.experiment import RunKey, run_keys
from r2r2.experiments.run_report import Source, find_sources, load_run, usual_config
from r2r2.export.export import export_policy
from r2r2.report.load import PLOTTED_EVENTS, Event, load_events, load_scale
from r2r2.report.study import MemberData, RunData, format_seeds
from r2r2.saved_run import SavedRun
from r2r2.stats.scores import METRIC, SCORE_POINTS, ShortfallKind
from r2r2.storage.files import replace_dir
from r2r2.storage.results import (
    POLICY_DIR,
    TABLES,
    ResultTables,
    TableRow,
    check_results_dir,
    is_results,
    read_results_folder,
    write_results,
)
from r2r2.storage.run_folder import VERSIONS_FILE, open_run

ENDED = ("finished", "failed")
MAX_SPECTRA = 11  # of a seed: the last one, and others evenly spaced
MAX_POLICY_BYTES = 8_000_000  # of one policy
COLLAPSE = "collapse"  # event, and metric in the table of diagnostics


class Collected(NamedTuple):
    """What was written: texts for people, one for each cell or run."""

    cells: dict[str, list[int]]  # seeds collected now, by cell
    left_out: tuple[str, ...]  # runs that were not used, each with the reason
    policies: tuple[str, ...] = ()  # folders of policies written now
    no_policy: tuple[str, ...] = ()  # cells without one, each with the reason


class _Run(NamedTuple):
    """One run as rows of the tables."""

    path: Path
    tables: ResultTables
    keys: tuple[RunKey, ...]
    stopped: frozenset[RunKey]


def collect(
    paths: Sequence[Path | str], out: Path | str = "results", policies: bool = False
) -> Collected:
    """Add runs to a folder of results, completely or not at all.

    A seed of a cell that is there already is replaced; everything else is kept. Runs that have not
    ended or are damaged are left out. The same runs give the same bytes.

    Args:
        paths: run folders, or folders with runs anywhere below them, such as that of a sweep.
        out: the folder of results; it is created if it is missing.
        policies: whether to write the final policy of the first seed of each cell, if it is small.

    Raises:
        UserError: There is no run to collect, two of them disagree on a seed, or `out` is not a
            folder of results; nothing has been written then.

    Example:
        >>> import tempfile
        >>> from r2r2 import resolve, train
        >>> config = resolve({"env": "Pendulum-v1", "steps": 10, "random_only": True})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = train(config, f"{folder}/run")
        ...     collected = collect([f"{folder}/run"], f"{folder}/results")
        >>> [*collected.cells.values()], collected.left_out
        ([[0]], ())
    """
    out = Path(out)
    check_results_dir(out)
    runs, left_out = _read_runs(find_sources([Path(path) for path in paths]))
    runs = _without_copies(runs)
    if not runs:
        raise UserError(left_out[0] if left_out else "expected at least one run")
    old = read_results_folder(out) if is_results(out) else None
    fresh = {key for run in runs for key in run.keys}
    tables = _merge([*([_without(old, fresh)] if old else []), *(run.tables for run in runs)])
    with replace_dir(out, lambda: check_results_dir(out)) as folder:
        write_results(folder, tables)
        kept = _keep_policies(out, folder, fresh)
        written, failed = _write_policies(runs, folder, kept) if policies else ((), ())
    cells: dict[str, list[int]] = {}
    for key in sorted(fresh):
        cells.setdefault(key.config, []).append(key.seed)
    return Collected(cells, tuple(left_out), written, failed)


def _read_runs(sources: Sequence[Source]) -> tuple[list[_Run], list[str]]:
    """Return the runs that have ended, and a sentence for each other one."""
    runs: list[_Run] = []
    left_out: list[str] = []
    for source in sources:
        if source.path.is_file() or is_results(source.path):
            raise UserError(f"{source.path}: expected a run folder or a folder with runs")
        try:
            run = load_run(source)
        except UserError as error:
            left_out.append(str(error))
            continue
        problem = _problem(run)
        if problem:
            left_out.append(f"{source.path}: left out: {problem}")
        else:
            runs.append(_make_run(source.path, run))
    return runs, left_out


def _problem(run: RunData) -> str:
    """Return why a run cannot be collected; empty if it can."""
    if run.status not in ENDED:
        return f"its status is {run.status}; expected finished or failed"
    if run.damage:
        return run.damage[0]
    marks = [mark for marks in run.results.marks.values() for mark in marks]
    cut = [str(mark) for mark in marks if mark.kind is ShortfallKind.TRUNCATED_LOG]
    return cut[0] if cut else ""


def _make_run(path: Path, run: RunData) -> _Run:
    folder, saved = open_run(path), SavedRun(path)
    config, keys = saved.config, tuple(run_keys(saved.config))
    name = _unique_name(config)
    place = {"agent": config.agent.name, "utd": config.utd, "run": name}
    scale = load_scale(path / VERSIONS_FILE, [])
    exp_names = {row.env_name: row.exp_name for row in run.results.rows}
    default = experiment_name(config, usual_config(config, scale))
    evaluations = [
        {**row._asdict(), "decision_step": row.env_step // max(1, config.action_repeat), **place}
        for key in keys
        for row in run.results.rows
        if (row.env_name, row.seed) == (key.task, key.seed)
    ]
    events: dict[str | None, list[Event]] = {}
    for event in load_events(folder.events):
        events.setdefault(event.member, []).append(event)
    members, diagnostics, spectra = list[TableRow](), list[TableRow](), list[TableRow]()
    for key, member in zip(keys, run.members, strict=True):
        name_of_curve = exp_names.get(key.task, default)
        start = {"exp_name": name_of_curve, "env_name": key.task, "seed": key.seed}
        members.append({"cell": key.config, **start, **place, **_member_facts(run, member, config)})
        of_member = events.get(member.name, [])
        diagnostics += [{**start, **x, **place} for x in _diagnostic_rows(of_member)]
        spectra += [{**start, **x, **place} for x in _spectrum_rows(of_member)]
    info = [{"run": name, **place, **_run_facts(run, config, scale)}]
    configs = {name: folder.config_text()}
    tables = ResultTables(info, members, evaluations, diagnostics, spectra, configs)
    stopped = {k for k, m in zip(keys, run.members, strict=True) if m.stopped}
    return _Run(path, tables, keys, frozenset(stopped))


def _unique_name(config: RunConfig) -> str:
    """Return the name of a run in a folder of results: its config's, and its seeds."""
    seeds = sorted(config.seeds)
    text = f"s{seeds[0]}" if len(seeds) == 1 else f"s{seeds[0]}-{seeds[-1]}"
    if seeds != [*range(seeds[0], seeds[-1] + 1)]:
        text = f"s{hashlib.sha256(json.dumps(seeds).encode()).hexdigest()[:8]}"
    return f"{run_name(config)}_{text}"


def _run_facts(run: RunData, config: RunConfig, scale: float) -> TableRow:
    timing = run.timing
    speeds = (
        timing and timing.seconds,
        timing and timing.updates_per_second,
        timing and timing.decisions_per_second,
    )
    return {
        "tasks": " ".join(config.env),
        "seeds": " ".join(map(str, config.seeds)),
        "status": run.status,
        "precision": run.results.method.precision,
        "scale": scale,
        "steps": config.steps,
        "action_repeat": config.action_repeat,
        "members": len(run.members),
        "decisions": timing.decisions if timing else 0,
        "updates": timing.updates if timing else 0,
        **dict(zip(("wall_clock_s", "updates_per_s", "decisions_per_s"), speeds, strict=True)),
        **{name: text for name, text in run.versions.items() if name not in TABLES["runs"]},
    }


def _member_facts(run: RunData, member: MemberData, config: RunConfig) -> TableRow:
    key = member.task, member.seed
    points = {
        row.env_step: row.value
        for row in run.results.rows
        if (row.env_name, row.seed) == key and row.metric == METRIC
    }
    last = [points[step] for step in sorted(points)][-SCORE_POINTS:]
    early = any(m.kind is ShortfallKind.ENDED_EARLY for m in run.results.marks.get(key, ()))
    return {
        "env_steps": member.env_steps,
        "decision_steps": member.env_steps // max(1, config.action_repeat),
        "updates": member.updates,
        "evaluations": len(points),
        "score": float(np.mean(last)) if last else float("nan"),
        "final_return": last[-1] if last else float("nan"),
        "ended_early": early,
        "stopped": member.stopped,
    }


def _steps(event: Event) -> TableRow:
    return {name: getattr(event, name) for name in ("env_step", "decision_step", "update_step")}


def _diagnostic_rows(events: Iterable[Event]) -> Iterable[TableRow]:
    for event in events:
        numbers = event.numbers if event.kind in PLOTTED_EVENTS else {}
        if event.kind == COLLAPSE:
            numbers = {COLLAPSE: 1.0}
        for metric, value in numbers.items():
            yield {"metric": metric, "value": value, **_steps(event)}


def _spectrum_rows(events: Iterable[Event]) -> Iterable[TableRow]:
    spectra = [event for event in events if event.singular_values]
    chosen = np.linspace(0, len(spectra) - 1, min(len(spectra), MAX_SPECTRA)).round()
    for index in chosen.astype(int):
        event = spectra[index]
        yield {**_steps(event), "singular_values": list(event.singular_values)}


def _without_copies(runs: Sequence[_Run]) -> list[_Run]:
    """Return each run once; runs that disagree on a seed cannot be collected together."""
    first: dict[RunKey, _Run] = {}
    kept: list[_Run] = []
    for run in runs:
        known = {key: first[key] for key in run.keys if key in first}
        for key, other in known.items():
            if _curve(run, key) != _curve(other, key):
                raise UserError(
                    f"{run.path}: seed {key.seed} of {key.config} differs from that in "
                    f"{other.path}; expected one run of each seed"
                )
        if len(known) < len(run.keys):
            tables = _without(run.tables, known.keys())
            kept.append(run._replace(tables=tables, keys=tuple({*run.keys} - {*known})))
        first |= {key: run for key in run.keys if key not in known}
    return kept


def _curve(run: _Run, key: RunKey) -> list[tuple[int, str]]:
    rows = run.tables.evaluations
    # As texts, since NaN differs from itself.
    return [
        (row["env_step"], repr(row["value"]))
        for row in rows
        if (row["env_name"], row["seed"]) == (key.task, key.seed)
    ]


def _without(tables: ResultTables, keys: Iterable[RunKey]) -> ResultTables:
    """Return tables without some members, and without runs that have no member left."""
    dropped = {*keys}
    gone = {
        (row["run"], row["env_name"], row["seed"])
        for row in tables.members
        if RunKey(row["cell"], row["env_name"], row["seed"]) in dropped
    }

    def keep(rows: Iterable[TableRow]) -> list[TableRow]:
        return [row for row in rows if (row["run"], row["env_name"], row["seed"]) not in gone]

    members = keep(tables.members)
    names = {row["run"] for row in members}
    return ResultTables(
        [row for row in tables.runs if row["run"] in names],
        members,
        keep(tables.evaluations),
        keep(tables.diagnostics),
        keep(tables.spectra),
        {name: text for name, text in tables.configs.items() if name in names},
    )


def _merge(parts: Sequence[ResultTables]) -> ResultTables:
    """Return all rows, by run; the rows of a run keep their order."""
    configs: dict[str, str] = {}
    for part in parts:
        configs |= part.configs
    names = ("runs", "members", "evaluations", "diagnostics", "spectra")
    rows = {
        name: sorted((row for part in parts for row in getattr(part, name)), key=lambda x: x["run"])
        for name in names
    }
    return ResultTables(**rows, configs=dict(sorted(configs.items())))


def _keep_policies(old: Path, new: Path, fresh: Iterable[RunKey]) -> set[str]:
    """Copy the policies whose seeds are not collected now; return the cells that have one."""
    replaced = {_policy_name(key) for key in fresh}
    folders = sorted((old / POLICY_DIR).iterdir()) if (old / POLICY_DIR).is_dir() else []
    kept = [folder for folder in folders if folder.name not in replaced]
    for folder in kept:
        shutil.copytree(folder, new / POLICY_DIR / folder.name)
    return {folder.name.rpartition("_s")[0] for folder in kept}


def _policy_name(key: RunKey) -> str:
    return f"{key.config}_s{key.seed}"


def _write_policies(
    runs: Iterable[_Run], folder: Path, kept: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write the policy of the first seed of each cell that has none; return names and problems."""
    chosen: dict[str, tuple[RunKey, Path]] = {}
    for run in runs:
        for key in sorted({*run.keys} - run.stopped):
            if key.config not in {*kept}:
                chosen.setdefault(key.config, (key, run.path))
    written: list[str] = []
    failed: list[str] = []
    for cell, (key, path) in chosen.items():
        target = folder / POLICY_DIR / _policy_name(key)
        try:
            export_policy(SavedRun(path).policy(key.task, key.seed), "numpy", target)
        except UserError as error:
            failed.append(f"{cell}: no policy: {error}")
            continue
        if (size := (target / "policy.npz").stat().st_size) > MAX_POLICY_BYTES:
            shutil.rmtree(target)
            failed.append(f"{cell}: no policy: it has {size:,} bytes, limit {MAX_POLICY_BYTES:,}")
            continue
        written.append(target.name)
    return tuple(written), tuple(failed)


def describe_cells(cells: Mapping[str, Sequence[int]]) -> list[str]:
    """Return a line for each cell with its seeds."""
    return [
        f"{cell}: seed{'s' * (len(seeds) > 1)} {format_seeds(seeds)}"
        for cell, seeds in cells.items()
    ]
