"""The whole report of `r2r2 doctor`, as JSON values without names of the user."""

import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import r2r2
from r2r2.doctor import packages as installed
from r2r2.doctor.child import Problem
from r2r2.doctor.devices import VARIABLES, examine_devices
from r2r2.doctor.resources import examine_cache, examine_disk, examine_machine, examine_rendering
from r2r2.storage.versions import package_version, source_commit

USER_VARIABLES = ("USER", "LOGNAME", "USERNAME")


def examine() -> dict[str, Any]:
    """Return what is installed, what works and what is wrong, as JSON values.

    The home folder is written as `~`, and the user's name in other paths as `<user>`.
    """
    report: dict[str, Any] = {
        "r2r2": r2r2.__version__,
        "commit": source_commit(installed.PACKAGE),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    problems = _examine_packages(report)
    works = {x["name"] for x in report["packages"] if x["version"] and not x["error"]}
    device = examine_devices("jax" in works)
    report["device"] = device.facts
    problems += device.problems
    sections: dict[str, Callable[[], tuple[dict[str, Any], list[Problem]]]] = {
        "cache": examine_cache,
        "disk": examine_disk,
        "machine": examine_machine,
    }
    if {"mujoco", "numpy"} <= works:
        sections = {"rendering": examine_rendering, **sections}
    for name, section in sections.items():
        report[name], found = section()
        problems += found
    report["environment"] = {x: os.environ[x] for x in VARIABLES if x in os.environ}
    problems.sort(key=lambda problem: not problem.stops_training)
    report["problems"] = [problem._asdict() for problem in problems]
    report["can_train"] = not any(problem.stops_training for problem in problems)
    private: dict[str, Any] = without_names(report)
    return private


def _examine_packages(report: dict[str, Any]) -> list[Problem]:
    """Add the packages to a report and return what is wrong with them."""
    report |= {"packages": [], "extras": {}, "others": {}}
    try:
        wanted = installed.requirements()
    except ModuleNotFoundError as error:  # packaging itself
        name = str(error.name)
        return [Problem(name, "not installed", f"install it: pip install {name}", True)]
    needed = installed.find_packages(wanted[""])
    errors = installed.import_errors(needed)
    needed = [package._replace(error=errors.get(package.name, "")) for package in needed]
    extras = installed.find_extras(wanted)
    others = {name: package_version(name) for name in ("jaxlib", *installed.NOT_NEEDED)}
    report |= {
        "packages": [_facts(package) for package in needed],
        "extras": {extra: [_facts(x) for x in found] for extra, found in extras.items()},
        "others": {name: version for name, version in others.items() if _present(version)},
    }
    return [
        *installed.python_problems(),
        *installed.package_problems(needed),
        *installed.installation_problems(),
        *installed.extra_problems(extras),
    ]


def _facts(package: installed.Package) -> dict[str, Any]:
    return {
        "name": package.name,
        "version": _present(package.version),
        "required": package.required,
        "known_to_work": package.known or None,
        "error": package.error or None,
    }


def _present(version: str) -> str | None:
    return None if version == installed.ABSENT else version


def without_names(value: Any) -> Any:
    """Return JSON values with the home folder as `~` and the user's name as `<user>`."""
    if isinstance(value, dict):
        return {key: without_names(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_names(item) for item in value]
    return _shorten(value) if isinstance(value, str) else value


def _shorten(text: str) -> str:
    home = os.path.expanduser("~")
    for path in {home, str(Path(home).resolve())} - {"/", "~"}:
        text = re.sub(rf"{re.escape(path)}(?=/|\W|$)", "~", text)
    names = {Path(home).name, *(os.environ.get(name, "") for name in USER_VARIABLES)} - {""}
    for name in names:
        text = re.sub(rf"(?<=/){re.escape(name)}(?=/|\W|$)", "<user>", text)
    return text
