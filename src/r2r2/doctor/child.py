"""Checks in a child process: what crashes or reserves memory there does not do so here."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

TIME_LIMIT = 180.0  # seconds; importing everything from a slow network disk takes a minute


class Problem(NamedTuple):
    """Something that is wrong, and what to do about it."""

    subject: str  # the package, variable or folder
    what: str
    advice: str  # one line
    stops_training: bool = False


class Answer(NamedTuple):
    """What a check in a child process printed, and how it ended."""

    facts: list[dict[str, Any]]
    log: str  # its standard error
    failure: str  # "": it ended normally


def run_check(
    arguments: Sequence[str],
    variables: Mapping[str, str] | None = None,
    time_limit: float = TIME_LIMIT,
) -> Answer:
    """Run a check of `r2r2.doctor.probe` in a child process and return its answer.

    Example:
        >>> run_check(["imports", "json"])
        Answer(facts=[{'name': 'json', 'error': ''}], log='', failure='')
    """
    command = [sys.executable, "-m", "r2r2.doctor.probe", *arguments]
    process = subprocess.Popen(
        command,
        env={**os.environ, **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )
    failure = ""
    try:
        output, log = process.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired:
        process.kill()
        output, log = process.communicate()
        failure = f"no answer after {time_limit:g} s"
    return Answer(_facts(output), log, failure or _failure(process.returncode, log))


def _facts(output: str) -> list[dict[str, Any]]:
    """Return the lines that are JSON objects; libraries may print others."""
    facts: list[dict[str, Any]] = []
    for line in output.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            facts.append(value)
    return facts


def _failure(code: int, log: str) -> str:
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return last_line(log) or f"exit code {code}" if code else ""


def last_line(text: str) -> str:
    r"""Return the last line of a text that is not empty.

    Example:
        >>> last_line("Traceback:\n ...\nOSError: libEGL.so.1\n\n")
        'OSError: libEGL.so.1'
    """
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
