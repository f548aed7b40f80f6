"""Time of one action of an exported policy on this machine."""

import importlib
import importlib.util
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from r2r2.export.layout import is_nested, observation_layout
from r2r2.export.numpy_format import check_observations
from r2r2.policy.policy import PolicyParts

SECONDS = 0.2  # of one measurement
CALLS_AT_ONCE = 20

C_PROGRAM = """\
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <time.h>
#include "policy.h"

static const double observation[R2R2_OBSERVATION_SIZE] = {%s};

int main(void)
{
    double action[R2R2_ACTION_SIZE], sum = 0;
    for (int block = 0; block < 20; block++) {
        struct timespec begin, end;
        int calls = 0;
        double seconds = 0;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        while (seconds < 0.01) {
            r2r2_policy(observation, action);
            sum += action[0];
            calls++;
            clock_gettime(CLOCK_MONOTONIC, &end);
            seconds = (double)(end.tv_sec - begin.tv_sec);
            seconds += 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
        }
        printf("%%.9g\\n", seconds / calls);
    }
    fprintf(stderr, "%%g\\n", sum); /* used, so that no call is left out */
    return 0;
}
"""


class MeasurementError(Exception):
    """An exported policy does not run on this machine; the text is one line."""


def action_seconds(folder: Path, parts: PolicyParts, name: str) -> float | None:
    """Return the median seconds of one action, batch size 1, of a format in an exported folder.

    None means that what the format needs to run is not installed here: onnxruntime or a C compiler.

    Raises:
        MeasurementError: The policy does not run here for another reason.
    """
    try:
        return _action_seconds(folder, parts, name)
    except MeasurementError:
        raise
    except Exception as error:  # of any runtime
        lines = str(error).strip().splitlines()
        raise MeasurementError(lines[0] if lines else type(error).__name__) from error


def _action_seconds(folder: Path, parts: PolicyParts, name: str) -> float | None:
    obs = check_observations(parts, 1)
    if name == "c":
        return _time_c(folder, obs[0])
    make = {"numpy": _numpy_call, "onnx": _onnx_call, "stablehlo": _stablehlo_call}[name]
    call = make(folder, parts, obs)
    return None if call is None else _time(call)


def _time(call: Callable[[], Any]) -> float:
    """Return the median time of a call, over blocks of calls."""
    call()
    times, deadline = list[float](), time.perf_counter() + SECONDS
    while not times or time.perf_counter() < deadline:
        begin = time.perf_counter()
        for _ in range(CALLS_AT_ONCE):
            call()
        times.append((time.perf_counter() - begin) / CALLS_AT_ONCE)
    return statistics.median(times)


def _numpy_call(folder: Path, parts: PolicyParts, obs: Any) -> Callable[[], Any]:
    # Without the importer, which would leave a folder of bytecode in the export.
    path = folder / "policy.py"
    names: dict[str, Any] = {"__name__": "policy", "__file__": str(path)}
    exec(compile(path.read_bytes(), path, "exec"), names)
    policy, one = names["Policy"](), obs[0]
    return lambda: policy(one)


def _inputs(parts: PolicyParts, obs: Any) -> dict[str, Any]:
    layout = observation_layout(parts)
    return {x.name: obs[:, x.start : x.stop].reshape(-1, *x.part.shape) for x in layout}


def _onnx_call(folder: Path, parts: PolicyParts, obs: Any) -> Callable[[], Any] | None:
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1  # a small network is slower with more
    session = runtime.InferenceSession(folder / "policy.onnx", options)
    inputs = _inputs(parts, obs)
    return lambda: session.run(None, inputs)


def _stablehlo_call(folder: Path, parts: PolicyParts, obs: Any) -> Callable[[], Any]:
    jax: Any = importlib.import_module("jax")
    export: Any = importlib.import_module("jax.export")
    exported = export.deserialize(bytearray((folder / "policy.stablehlo").read_bytes()))
    inputs = _inputs(parts, obs)
    argument = inputs if is_nested(parts) else inputs["observation"]
    function = jax.jit(exported.call)

    def call() -> Any:
        with jax.enable_x64(True):
            return np.asarray(function(argument))

    return call


def _time_c(folder: Path, obs: Any) -> float | None:
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        source, program = Path(scratch) / "time.c", Path(scratch) / "time"
        source.write_text(C_PROGRAM % ", ".join(map(repr, obs.tolist())))
        flags = ("-std=c99", "-O2", "-I", str(folder.absolute()), "-o", str(program))
        _run([compiler, *flags, str(source), "-lm"], 300)
        output = _run([str(program)], 60)
    return float(np.median([float(line) for line in output.split()]))


def _run(command: list[str], seconds: float) -> str:
    """Run a program and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        errors = [line for line in lines if "error" in line]
        raise MeasurementError(f"{Path(command[0]).name}: {(errors or lines)[0]}")
    return done.stdout
