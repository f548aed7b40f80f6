"""Damaged and forged files, and an interrupted run to damage."""

import contextlib
import copy
import json
import random

import numpy as np

from r2r2 import resolve
from r2r2.api import RunOptions, train
from r2r2.storage.arrays import read_arrays, write_arrays
from r2r2.storage.checkpoints import CHECKSUM_PREFIX, checksum, file_digest, latest_valid
from r2r2.training.run_config import finalize_config

CONFIG = finalize_config(
    resolve(
        {
            "env": "Pendulum-v1",
            "seeds": "0,3",
            "width": 8,
            "latent": 8,
            "batch_size": 8,
            "steps": 90,
            "warmup": 80,
            "replay_size": 150,
            "action_repeat": 10,
            "eval_every": 20,
            "eval_episodes": 2,
        }
    )
)
OPTIONS = RunOptions(workers=0, checkpoint_every="25")

# Unexpected contents of a text or binary file.
TOKENS = (
    *(b"\0", b"\xff\xfe", b"\n", b"\r", b'"', b"{", b"}", b"[" * 2000, b"]", b","),
    *(b"=", b"NaN", b"-1", b"1e999", b"9" * 5000, b"null", b"true", b"../", b"\\ud800"),
    *(b"\x1b[2J", b"PK\x05\x06", b"PK\x01\x02", b"\x93NUMPY"),
)
# Unexpected values in JSON.
VALUES = (
    *(None, True, -1, 0, 1, 7, 2**31, 2**63, 10**400, 0.5, -1.5, 1e308, float("nan")),
    *("", "x", "..", "/etc/passwd", "a\0b", "\ud800", "a\nb"),
    *([], [[]], [0], [[0, 0]], [[0, 2, 0]], [[9, 9, 9]], [["x"]], {}, {"x": []}),
)


class StopTraining(KeyboardInterrupt):
    """Raised to interrupt a run during an evaluation."""


def make_interrupted_run(path):
    """Train until two checkpoints exist and an evaluation is in progress."""

    def leave(progress):
        if progress.decisions.min() >= 31:
            raise StopTraining

    with contextlib.suppress(StopTraining):
        train(CONFIG, path, on_progress=leave, options=OPTIONS)
    checkpoint, _ = latest_valid(path / "checkpoints")
    assert checkpoint.metadata["points"]["playing"]
    assert checkpoint.metadata["journal"]["events"][0]
    return path


def mutate(content, count, seed):
    """Yield contents with one or a few random changes."""
    chance = random.Random(seed)
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            place = chance.randrange(len(changed) + 1)
            token, few = chance.choice(TOKENS), chance.randrange(1, 20)
            removed, put = chance.choice(
                (
                    *((len(changed), b""), (few, b""), (0, chance.randbytes(few))),
                    *((0, token), (4, token[:4]), (1, chance.randbytes(1))),
                )
            )
            changed[place : place + removed] = put
        yield bytes(changed)


def update_checksums(folder, number, change=lambda manifest: None):
    """Rewrite a checkpoint's manifest with the checksums of its files."""
    path = folder / f"{number:08}.json"
    manifest = json.loads(path.read_bytes())
    del manifest["blake2b"]
    for name, entry in manifest["files"].items():
        entry["bytes"] = (folder / name).stat().st_size
        entry["blake2b"] = file_digest(folder / name)
    change(manifest)
    rest = json.dumps(manifest)[1:] + "\n"
    path.write_text(CHECKSUM_PREFIX.format(checksum(rest.encode()).hexdigest()) + rest)


def forge_metadata(metadata, count, seed):
    """Yield metadata with a value replaced, repeated or removed."""
    chance = random.Random(seed)
    for _ in range(count):
        changed = copy.deepcopy(metadata)
        for _ in range(chance.choice((1, 1, 2))):
            holder, key = chance.choice(list(_places(changed)))
            match chance.randrange(4):
                case 0:
                    del holder[key]
                case 1 if isinstance(holder, list):
                    holder.insert(key, copy.deepcopy(holder[key]))
                case _:
                    holder[key] = copy.deepcopy(chance.choice(VALUES))
        yield changed


def _places(inside):
    keys = inside if isinstance(inside, dict) else range(len(inside))
    for key in keys:
        yield inside, key
        if isinstance(inside[key], dict | list):
            yield from _places(inside[key])


def forge_arrays(path, count, seed):
    """Rewrite a file of arrays repeatedly with changed arrays."""
    chance, good = random.Random(seed), read_arrays(path)
    for _ in range(count):
        arrays = dict(good)
        for _ in range(chance.choice((1, 1, 3))):
            _forge(arrays, chance)
        with path.open("wb") as file:
            write_arrays(file, arrays.items())
        yield


NAMES = ("../x", "/x", "x\ny", "0/", "é/x", "9" * 30)
CHANGES = (
    lambda array, chance: array.astype(chance.choice(("f8", "f4", "u8", "i2", "?"))),
    lambda array, _: array.reshape(-1),
    lambda array, _: array[None],
    lambda array, _: array[:0] if array.ndim else np.zeros(0),
    lambda array, _: np.concatenate([np.atleast_1d(array)] * 2),
    lambda array, chance: np.full_like(array, _odd(array.dtype, chance)),
)


def _forge(arrays, chance):
    """Change, rename or remove one array."""
    name = chance.choice(list(arrays))
    array = arrays.pop(name)
    how = chance.random()
    if how < 0.7:
        arrays[name] = chance.choice(CHANGES)(array, chance)
    elif how < 0.9:
        arrays[chance.choice((*NAMES, *arrays))] = array


def _odd(kind, chance):
    if kind.kind == "f":
        return chance.choice((np.nan, np.inf, -np.inf, 0, -1))
    limits = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    return chance.choice((*limits, 0, 1))
