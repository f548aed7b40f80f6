"""Run exported policies as their users do."""

import ctypes
import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import onnxruntime
from jax import export

Run = Callable[[np.ndarray], np.ndarray]  # flat observations [B, obs] -> actions [B, action]

C_SOURCE = """\
#include "policy.h"

void run(const double *observations, double *actions, int count);

void run(const double *observations, double *actions, int count)
{
    for (int n = 0; n < count; n++)
        r2r2_policy(observations + n * R2R2_OBSERVATION_SIZE, actions + n * R2R2_ACTION_SIZE);
}
"""
C_FLAGS = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-O2", "-shared", "-fPIC")
COMPILERS = {"c": ("cc", "-std=c99"), "c++": ("c++", "-x", "c++", "-std=c++11")}


def load_module(path: Path):
    """Import a file by its path."""
    spec = importlib.util.spec_from_file_location(f"exported_{path.parent.name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_numpy(folder: Path, parts) -> Run:
    return load_module(folder / "policy.py").Policy()


def nested(parts, obs: np.ndarray) -> dict[str, np.ndarray]:
    """Return a batch of flat observations as the named inputs of its parts."""
    inputs, start = {}, 0
    for part in parts.spaces.observation:
        name = "/".join(map(str, ("observation", *part.path)))
        rows = obs[:, start : start + part.size]
        inputs[name] = rows.reshape(len(obs), *part.shape)
        start += part.size
    return inputs


def run_onnx(folder: Path, parts) -> Run:
    session = onnxruntime.InferenceSession(folder / "policy.onnx")
    return lambda obs: session.run(None, nested(parts, obs))[0]


def run_stablehlo(folder: Path, parts) -> Run:
    call = export.deserialize(bytearray((folder / "policy.stablehlo").read_bytes())).call

    def run(obs):
        inputs = nested(parts, obs)
        with jax.enable_x64(True):
            plain = inputs.get("observation")
            return np.asarray(call(inputs if plain is None else plain))

    return run


def run_c(folder: Path, parts, language: str = "c") -> Run:
    source, library = folder / "run.c", folder / f"policy_{language}.so"
    text = C_SOURCE if language == "c" else f'extern "C" {{\n{C_SOURCE}}}\n'
    source.write_text(text)
    compiler, *standard = COMPILERS[language]
    command = [shutil.which(compiler), *standard, *C_FLAGS, "-o", library, source, "-lm"]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).run
    pointer = ctypes.POINTER(ctypes.c_double)

    def run(obs):
        obs = np.ascontiguousarray(obs, np.float64)
        actions = np.full((len(obs), parts.spaces.action_dim), 99.0)
        function(obs.ctypes.data_as(pointer), actions.ctypes.data_as(pointer), len(obs))
        return actions

    return run


RUNNERS = {"numpy": run_numpy, "onnx": run_onnx, "stablehlo": run_stablehlo, "c": run_c}
