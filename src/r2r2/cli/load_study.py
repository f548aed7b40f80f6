"""Runs and files, as people name them, read into one study."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from r2r2.config.errors import UserError
from r2r2.config.fields import flatten_config, replace_fields
from r2r2.config.resolve import run_defaults
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import parse_toml
from r2r2.envs.suites import default_action_repeat
from r2r2.report.load import (
    compute_timing,
    effective_precision,
    load_evaluations,
    load_events,
    load_results_file,
    load_versions,
    read_members,
    truncated_logs,
)
from r2r2.report.study import RunData, Study, make_study
from r2r2.stats.scores import run_results
from r2r2.storage.disk_usage import find_runs
from r2r2.storage.run_folder import MANIFEST_FILE, open_run, read_manifest
from r2r2.training.run_config import load_config, task_default_config

VERSIONS = "versions.json"

# What 0 leaves to the task to decide.
BY_TASK = ("action_repeat", "agent.critics", "agent.discount")


class Source(NamedTuple):
    """A run's folder or a file of results, and what a report calls it."""

    path: Path
    name: str

    @property
    def is_file(self) -> bool:
        """Whether it is a file in the long CSV format."""
        return self.path.is_file()


def sources_of(paths: Sequence[Path]) -> list[Source]:
    """The runs and files in what was named, each once.

    Args:
        paths: folders of runs, folders with runs anywhere below them, CSV files.

    Raises:
        UserError: One holds no run, or does not exist.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_file():
            found.append(path)
        else:
            below = find_runs(path)
            if not below:
                _refuse(path)
            found += below
    once = list({path.resolve(): path for path in found}.values())
    names = [path.resolve().name for path in once]
    return [
        Source(path, name if names.count(name) == 1 else str(path))
        for path, name in zip(once, names, strict=True)
    ]


def study_sources(
    sources: Sequence[Source], watch: Callable[[str], None] = lambda _: None
) -> Study:
    """Reads runs and files, and works out what follows from them.

    Args:
        sources: what to read.
        watch: called with the name of what is read next.

    Raises:
        UserError: One is damaged, or contradicts itself.
    """
    runs: list[RunData] = []
    for source in sources:
        watch(source.name)
        if source.is_file:
            runs += map(_with_repeats, load_results_file(source.path, source.name))
        else:
            runs.append(_run(source))
    watch("statistics")
    return make_study(runs)


def _run(source: Source) -> RunData:
    folder = open_run(source.path)
    config = load_config(folder)
    versions = load_versions(source.path / VERSIONS)
    stated = parse_toml(folder.config_text()).get("precision")
    results = run_results(
        config,
        usual(config),
        load_evaluations(folder.evaluations),
        effective_precision(stated, versions),
    )
    known = set(results.members)
    if any((row.env_name, row.seed) not in known for row in results.rows):
        raise UserError(
            f"run is '{source.path}', whose evaluations.csv is of other members than "
            "its manifest.json"
        )
    events = load_events(folder.events)
    manifest = read_manifest(source.path)
    over = manifest is not None and manifest.status == "finished"
    members = read_members(folder.members, results.members, events)
    truncated = truncated_logs(config, results.rows, members) if over else {}
    return RunData(
        source.name,
        str(source.path),
        "finished" if over else "unfinished",
        results._replace(truncated_logs=truncated),
        members,
        compute_timing(events),
        versions,
        dict.fromkeys(config.env, config.action_repeat),
    )


def _with_repeats(run: RunData) -> RunData:
    """Results of a file, whose tasks have the action repeat of their suites."""
    known: dict[str, int] = {}
    for task in run.tasks:
        with contextlib.suppress(UserError):  # it is nobody's that is known here
            known[task] = default_action_repeat(task)
    return run._replace(repeats=known)


def usual(config: RunConfig) -> RunConfig:
    """The defaults of a run's agent on its task, without building anybody's own.

    What only an environment of one's own could tell is taken as the run has it.

    Example:
        >>> from r2r2.config.resolve import resolve
        >>> usual(resolve({"env": "my:Arm", "action_repeat": 3})).action_repeat
        3
    """
    own = ":" in config.env[0]
    default = run_defaults(config) if own else task_default_config(config)
    held, open_ = flatten_config(config), flatten_config(default)
    left = [p for p in BY_TASK if p in open_ and not open_[p].value]
    return replace_fields(default, {path: held[path].value for path in left})


def _refuse(path: Path) -> None:
    """Says why a folder holds no runs."""
    with contextlib.suppress(OSError):  # of which `open_run` tells
        if path.is_dir() and not (path / MANIFEST_FILE).exists():
            raise UserError(
                f"run is '{path}', which holds no run, nor does any folder in it"
            )
    open_run(path)
    raise UserError(f"run is '{path}', which has changed meanwhile")
