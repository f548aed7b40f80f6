"""`r2r2 doctor`: what is installed, what works, and one line of advice per problem."""

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from r2r2.cli.argparser import ArgumentParser, field_table
from r2r2.cli.main import one_line
from r2r2.config.fields import ANY
from r2r2.doctor.report import examine

PARSER = ArgumentParser(
    "doctor",
    "[--json]",
    """\
Examine this installation: versions, the device that training uses and why it
is not a GPU, rendering back ends, cache, disk and memory, with one line of
advice per problem. Takes a few seconds, changes nothing and keeps no memory of
a GPU. Home folders and user names are left out: paste the output into a bug
report. The exit code is 1 if a problem stops training, else 0.
""",
    """\
  r2r2 doctor
  r2r2 doctor --json > doctor.json
""",
    field_table(("json", bool, False, "print one JSON document", ANY)),
)

LABEL, WIDTH = 13, 80  # columns
SHOWN_PACKAGES = 2  # of each extra


def run(argv: list[str]) -> int:
    """Run `r2r2 doctor` and return its exit code: 1 if a problem stops training."""
    given = PARSER.parse(argv)
    report = examine()
    if given.get("json"):
        print(json.dumps(report, indent=2))
    else:
        for line in _lines(report):
            print(one_line(line))
    return 0 if report["can_train"] else 1


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield _row("r2r2", f"{report['r2r2']}, commit {report['commit']}")
    yield _row("python", f"{report['python']} on {report['platform']}")
    yield from _package_lines(report)
    yield _row("device", _device(report["device"]))
    if driver := report["device"]["driver"]["gpus"]:
        yield _row("GPUs", f"{', '.join(driver)}; driver {_driver(report['device'])}")
    if rendering := report.get("rendering"):
        states = {name: "works" if x["works"] else "fails" for name, x in rendering.items()}
        yield _row("rendering", ", ".join(f"{name} {state}" for name, state in states.items()))
    cache, disk, machine = report["cache"], report["disk"], report["machine"]
    yield _row("cache", f"{cache['folder']}, {_size(cache['bytes'])}, {_writable(cache)}")
    yield _row("disk", f"{_size(disk['free_bytes'])} free in the working folder, {_writable(disk)}")
    memory = f"{_size(machine['available_bytes'])} of {_size(machine['memory_bytes'])}"
    yield _row("machine", f"{machine['cores']} cores, {memory} of memory available")
    for name, value in report["environment"].items():
        yield _row("variable", f"{name}={value}")
    yield from _problem_lines(report)


def _package_lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"{'packages':16} {'installed':12} {'required':16} known to work"
    for package in report["packages"]:
        version, known = package["version"] or "absent", package["known_to_work"] or ""
        yield f"  {package['name']:14} {version:12} {package['required']:16} {known}".rstrip()
    extras = [f"{extra} ({_versions(found)})" for extra, found in report["extras"].items()]
    yield from _list_rows("extras", extras)
    others = [f"{name} {version}" for name, version in report["others"].items()]
    yield from _list_rows("others", others)


def _versions(packages: list[dict[str, Any]]) -> str:
    """Return the first packages of an extra, and how many more it has."""
    names = [f"{x['name']} {x['version'] or 'absent'}" for x in packages[:SHOWN_PACKAGES]]
    more = len(packages) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _problem_lines(report: dict[str, Any]) -> Iterator[str]:
    yield ""
    for problem in report["problems"]:
        level = "error" if problem["stops_training"] else "warning"
        yield f"{level}: {problem['subject']}: {problem['what']}"
        yield f"  advice: {problem['advice']}"
    if not report["problems"]:
        yield "no problems found"
    elif report["can_train"]:
        yield "training works; the warnings above do not stop it"
    else:
        yield "training does not work; see the errors above"


def _device(device: dict[str, Any]) -> str:
    used = device["used"]
    if not used:
        return "none works"
    count = f"{used['count']} x " if used["count"] > 1 else ""
    why = f"; not a GPU: {device['why_not_gpu']}" if device["why_not_gpu"] else ""
    return f"{used['platform']} ({count}{used['kind']}){why}"


def _driver(device: dict[str, Any]) -> str:
    plugin = device["cuda_plugin"] or "absent"
    return f"{device['driver']['version'] or 'unknown'}, CUDA plugin of JAX {plugin}"


def _row(label: str, text: str) -> str:
    return f"{label:{LABEL}}{text}"


def _list_rows(label: str, items: list[str]) -> Iterator[str]:
    """Yield rows with a list, broken between its items only."""
    whole = [item.replace(" ", "\N{NO-BREAK SPACE}") for item in items]
    text = ", ".join(whole) or "none"
    rows = textwrap.wrap(text, WIDTH - LABEL, break_long_words=False, break_on_hyphens=False)
    for number, row in enumerate(rows):
        yield _row("" if number else label, row.replace("\N{NO-BREAK SPACE}", " "))


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 10**8 else f"{size / 1e6:.1f} MB"


def _writable(facts: dict[str, Any]) -> str:
    return "writable" if facts["writable"] else "not writable"
