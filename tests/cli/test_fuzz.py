"""Damaged or hostile files of every kind are read, or rejected in one sentence."""

import json
import os
import shutil
import signal
import tracemalloc
import zipfile
import zlib

import jax
import numpy as np
import pytest
from forgery import (
    CONFIG,
    OPTIONS,
    forge_arrays,
    forge_metadata,
    make_interrupted_run,
    mutate,
    update_checksums,
)

from r2r2 import resolve
from r2r2.agents.registry import build_agent, state_shapes
from r2r2.api import make_pool
from r2r2.config.errors import UserError
from r2r2.config.fields import Interval
from r2r2.config.toml_io import read_toml
from r2r2.envs.make import make_env, spec_of
from r2r2.report.charts import learning_curves
from r2r2.storage.arrays import load_weights, read_arrays, save_weights, write_arrays
from r2r2.storage.checkpoints import latest_valid
from r2r2.storage.disk_usage import removable_checkpoints, run_usage
from r2r2.storage.evaluations import Row, append_evaluations, read_evaluations
from r2r2.storage.events import read_events
from r2r2.storage.run_folder import (
    is_locked,
    lock_owner,
    lock_run,
    open_run,
    reopen_run,
    write_manifest,
)
from r2r2.training.checkpointing import CheckpointWriter
from r2r2.training.loop import Training
from r2r2.training.resume_plan import plan_resume
from r2r2.training.run_log import RunLog
from r2r2.training.saved_config import fleet_members, load_config
from r2r2.training.state import COUNTS, LEVELS, grow_replay

SPEC = spec_of(make_env("Pendulum-v1", 1))
SHAPES = state_shapes(build_agent(CONFIG.agent, SPEC, CONFIG.utd))
NAMES = [member.name for member in fleet_members(CONFIG)]
WEIGHTS = f"{NAMES[0]}/weights.npz"
TIMEOUT = 20  # seconds per case

FACTOR = pytest.mark.parametrize("factor", [1, pytest.param(5, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def interrupted_run(tmp_path_factory):
    """An unfinished run with every kind of file."""
    run = make_interrupted_run(tmp_path_factory.mktemp("interrupted") / "run")
    folder = open_run(run)
    append_evaluations(folder.evaluations, [Row("e", "Pendulum-v1", 0, "return", 9, 1)])
    save_weights(folder.weights(NAMES[0]), jax.tree.map(zeros, SHAPES))
    (run / "lock").write_text("1234567")
    write_manifest(run, NAMES, "running")  # without a copy of the config
    return run


@pytest.fixture
def run(interrupted_run, tmp_path):
    """A copy of it, beside a file that must not change."""
    (tmp_path / "precious").write_text("precious")
    yield shutil.copytree(interrupted_run, tmp_path / "run")
    assert sorted(os.listdir(tmp_path)) == ["precious", "run"]
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.fixture(autouse=True)
def time_limit(monkeypatch):
    """Find cases that hang, and do not wait for the disk."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    before = signal.signal(signal.SIGALRM, _hang)
    yield
    signal.signal(signal.SIGALRM, before)


def _hang(*_):
    raise AssertionError("it hangs")


def zeros(shape):
    return np.zeros(shape.shape, shape.dtype)


def plan(run):
    """Plan to resume from the second checkpoint, or not at all."""
    (run / "checkpoints" / "00000001.json").unlink(missing_ok=True)
    return plan_resume(run, CONFIG, lambda _: None)


def lock_and_read(run):
    with lock_run(run):
        return lock_owner(run), is_locked(run)


READERS = {
    "--config": ("config.toml", lambda run: resolve(read_toml(run / "config.toml"))),
    "config": ("config.toml", lambda run: load_config(open_run(run))),
    "manifest": ("manifest.json", open_run),
    "usage": ("manifest.json", lambda run: removable_checkpoints(run_usage(run))),
    "events": ("events.jsonl", lambda run: read_events(run / "events.jsonl")),
    "evaluations": (
        "evaluations.csv",
        lambda run: learning_curves(read_evaluations(run / "evaluations.csv")),
    ),
    "weights": (WEIGHTS, lambda run: load_weights(run / WEIGHTS, SHAPES)),
    "lock": ("lock", lock_and_read),
    "checkpoint": ("checkpoints/00000002.json", plan),
    "arrays": (
        "checkpoints/00000002.npz",
        lambda run: read_arrays(run / "checkpoints/00000002.npz"),
    ),
    "worlds": (
        "checkpoints/00000002.worlds.npz",
        lambda run: read_arrays(run / "checkpoints/00000002.worlds.npz"),
    ),
    "replay": (
        "checkpoints/00000002.replay.npz",
        lambda run: read_arrays(run / "checkpoints/00000002.replay.npz"),
    ),
}


def error_from(read, *arguments):
    """Return the sentence of a UserError, or None if there was none."""
    signal.alarm(TIMEOUT)
    try:
        read(*arguments)
    except UserError as error:
        sentence = str(error)
        assert sentence
        assert "\n" not in sentence
        return sentence
    finally:
        signal.alarm(0)
    return None


@FACTOR
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", READERS)
def test_mutated_files_are_read_or_rejected(run, kind, factor):
    name, read = READERS[kind]
    path = run / name
    valid = path.read_bytes()
    assert error_from(read, run) is None
    sentences = []
    for content in mutate(valid, 150 * factor, seed=zlib.crc32(kind.encode())):
        path.write_bytes(content)
        sentences.append(error_from(read, run))
    assert kind == "lock" or any(sentences)
    for sentence in filter(None, sentences):
        # Errors of --config name the field.
        assert kind == "--config" or str(run) in sentence


@pytest.fixture(scope="module")
def training(interrupted_run, tmp_path_factory):
    """The state of a resuming process before it reads arrays."""
    run = shutil.copytree(interrupted_run, tmp_path_factory.mktemp("training") / "run")
    members, folder = fleet_members(CONFIG), open_run(run)
    with (
        make_pool(CONFIG, options=OPTIONS) as pool,
        RunLog(CONFIG, folder, members, "name") as journal,
    ):
        saver = CheckpointWriter(folder.checkpoints, Interval(), 2)
        yield Training(CONFIG, pool, journal, saver)
        saver.close()


def resume(run, training):
    training.resume(plan(run).checkpoint)


def test_an_unchanged_checkpoint_is_resumed(run, training):
    update_checksums(run / "checkpoints", 2)
    resume(run, training)


@FACTOR
def test_forged_metadata_is_rejected(run, training, factor):
    folder = run / "checkpoints"
    (metadata, path), sentences = metadata_of(folder), []
    for forged in forge_metadata(metadata, 300 * factor, seed=5):
        update_checksums(folder, 2, lambda manifest, new=forged: manifest.update(notes=new))
        sentences.append(error_from(plan, run))
        if sentences[-1] is not None:
            assert str(path) in sentences[-1] or "events.jsonl" in sentences[-1]
        elif sentences.count(None) <= 10 * factor:
            error_from(resume, run, training)
    assert sum(map(bool, sentences)) > 100 * factor


CONTRADICTIONS = {
    "points.counts": lambda points: points["counts"].pop(),
    "points.returns": lambda points: points["returns"].append(points["returns"][0]),
    "points.first": lambda points: points["first"].pop(),
    "points.playing": lambda points: points["playing"][0].__setitem__(1, 5),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictory_metadata_is_rejected(run, name):
    change = CONTRADICTIONS[name]
    update_checksums(run / "checkpoints", 2, lambda manifest: change(manifest["notes"]["points"]))
    assert f"'{name}' in its notes is missing or invalid" in error_from(plan, run)


def change_arrays(run, change):
    """Change the arrays of the newest checkpoint, and return the file."""
    path = run / "checkpoints" / "00000002.npz"
    arrays = read_arrays(path)
    change(arrays)
    with path.open("wb") as file:
        write_arrays(file, arrays.items())
    update_checksums(path.parent, 2)
    return path


@pytest.mark.parametrize("name", COUNTS)
def test_negative_counts_are_rejected(run, training, name):
    def change(arrays):
        shape = (3, 2) if "waiting" in name else arrays[name].shape
        arrays[name] = np.full(shape, -1, arrays[name].dtype)

    path = change_arrays(run, change)
    sentence = error_from(resume, run, training)
    assert sentence.startswith(f"{path}: array '{name}'")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("obs", "array 'obs': expected 4 rows, got 0"),
        ("fleet/waiting/members", "the arrays of 'fleet/waiting/' have different lengths"),
    ],
)
def test_arrays_of_wrong_lengths_are_rejected(run, training, name, reason):
    def change(arrays):
        length = 0 if name == "obs" else len(arrays[name]) + 1
        shape = length, *arrays[name].shape[1:]
        arrays[name] = np.zeros(shape, arrays[name].dtype)

    path = change_arrays(run, change)
    assert error_from(resume, run, training) == f"{path}: {reason}"


def metadata_of(folder):
    checkpoint, _ = latest_valid(folder)
    return checkpoint.metadata, checkpoint.arrays.with_suffix(".json")


@pytest.mark.filterwarnings("ignore:overflow encountered")
@FACTOR
@pytest.mark.parametrize("suffix", ["npz", "worlds.npz", "replay.npz"])
def test_forged_arrays_are_rejected(run, training, suffix, factor):
    folder = run / "checkpoints"
    path, sentences = folder / f"00000002.{suffix}", []
    for _ in forge_arrays(path, 15 * factor, seed=len(suffix)):
        update_checksums(folder, 2)
        sentences.append(error_from(resume, run, training))
        assert sentences[-1] is None or str(path) in sentences[-1]
    assert any(sentences)


@FACTOR
@pytest.mark.parametrize("suffix", ["npz", "worlds.npz", "replay.npz"])
def test_mutated_archives_with_a_valid_checksum_are_rejected(run, training, suffix, factor):
    folder = run / "checkpoints"
    path = folder / f"00000002.{suffix}"
    for content in mutate(path.read_bytes(), 8 * factor, seed=len(suffix)):
        path.write_bytes(content)
        update_checksums(folder, 2)
        sentence = error_from(resume, run, training)
        assert sentence is None or str(path) in sentence


@pytest.mark.parametrize(
    "levels",
    [
        {},
        {"0": np.zeros(())},
        {"0": np.zeros((0, 1, 8))},
        {"0": np.zeros((2, 9))},
        {"0": np.zeros((2, 1, 7)), "1": np.zeros((2, 1, 1))},
    ],
)
def test_incomplete_replay_rows_are_rejected(levels):
    arrays = {LEVELS + number: level for number, level in levels.items()}
    assert "array" in error_from(grow_replay, arrays, 8, 20)


def link(path, target):
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def make_folder(path, _):
    path.unlink(missing_ok=True)
    path.mkdir()


def pipe(path, _):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def absent(path, _):
    path.unlink()


def empty(path, _):
    path.write_bytes(b"")


def unreadable(path, _):
    path.chmod(0)


NOT_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")


@pytest.mark.parametrize(
    "put", [link, make_folder, pipe, absent, empty, pytest.param(unreadable, marks=NOT_ROOT)]
)
@pytest.mark.parametrize("kind", [kind for kind in READERS if kind != "lock"])
def test_special_files_are_rejected(run, kind, put, tmp_path):
    name, read = READERS[kind]
    if kind == "--config" and put is pipe:
        pytest.skip("--config <(command) is allowed")
    put(run / name, tmp_path / "precious")
    sentence = error_from(read, run)
    # A log may be empty, and a run may have no checkpoints.
    allowed = kind == "events" and put is empty, kind == "checkpoint" and put is absent
    assert bool(sentence) != any(allowed)


@pytest.mark.parametrize("place", ["events.jsonl", "evaluations.csv", NAMES[0], "lock"])
@pytest.mark.parametrize("put", [link, pipe])
def test_a_run_with_links_to_files_or_pipes_does_not_resume(run, place, put, tmp_path):
    is_folder = (run / place).is_dir()
    if is_folder:
        shutil.rmtree(run / place)
    put(run / place, tmp_path / "precious")
    before = (run / "manifest.json").read_bytes()
    sentence = error_from(reopen_run, run, "steps = 9")
    if is_folder:
        what = "is a symbolic link to a file" if put is link else "not a folder"
    else:
        what = "is a symbolic link" if put is link else "not a regular file"
    assert sentence.startswith(f"{run / place}: {what}; ")
    assert (run / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("place", ["events.jsonl", "evaluations.csv"])
def test_a_run_with_a_folder_as_log_does_not_resume(run, place):
    make_folder(run / place, None)
    sentence = f"{run / place}: is a folder; cannot resume the run"
    assert error_from(reopen_run, run, "") == sentence


def test_a_missing_member_folder_is_created(run):
    (run / WEIGHTS).unlink()
    (run / NAMES[0]).rmdir()
    reopen_run(run, "")
    assert (run / NAMES[0]).is_dir()


def forget_checksums(run):
    """Make the newest checkpoint like one from before logs had checksums."""
    update_checksums(run / "checkpoints", 2, lambda manifest: manifest["notes"].pop("files"))


def test_a_log_shorter_than_in_the_checkpoint_is_rejected(run):
    forget_checksums(run)
    (run / "events.jsonl").write_text("")
    sentence = error_from(plan, run)
    assert str(run / "events.jsonl") in sentence


def test_a_damaged_table_is_rejected_before_the_run_resumes(run):
    forget_checksums(run)
    with (run / "evaluations.csv").open("a") as file:
        file.write("e,Pendulum-v1,0,return,9e9,1\n")
    sentence = error_from(plan, run)
    assert sentence.startswith(f"{run / 'evaluations.csv'}: line 3 is damaged")


HOSTILE = {
    "config": ["a" + ".a" * 60_000 + " = 1", "a = " + "[" * 60_000, "x = 1\n" * 30_000],
    "--config": ["a" + ".a" * 60_000 + " = 1", "a = " + "{a=" * 40_000, "#" * 2**18],
    "manifest": [
        "[" * 200_000,
        json.dumps({"kind": "r2r2 run", "format": 10**400}),
        *(
            json.dumps({"kind": "r2r2 run", "format": 1, "status": "finished", "members": x})
            for x in (["../.."], ["/etc"], ["a\0b"], ["\ud800"], [[]], {}, 3, ["a/b"])
        ),
    ],
    "events": ["[" * 200_000 + "\n", "9" * 5000 + "\n", '{"event": NaN}\n'],
    "evaluations": [
        "exp_name,env_name,seed,metric,env_step,value\n" + row + "\n"
        for row in (
            *("a,b,0,return," + "9" * 4000 + ",1", "a,b,-1,return,0,1"),
            *('"' * 99_999, "a,b,0,return,0", "a,b,0,return,0,one", "," * 200_000),
        )
    ],
    "checkpoint": [
        "[" * 200_000,
        '{"kind": "r2r2 checkpoint", "format": 1, "blake2b": "\\ud800"}',
        '{"kind": "r2r2 checkpoint", "format": [1], "blake2b": {}}',
        '{"kind": "r2r2 checkpoint", "format": 1, "step": ' + "9" * 5000 + "}",
    ],
}


@pytest.mark.parametrize(
    ("kind", "content"),
    [(kind, content) for kind, contents in HOSTILE.items() for content in contents],
    ids=lambda x: x[:9],
)
def test_hostile_text_is_rejected_quickly(run, kind, content):
    name, read = READERS[kind]
    (run / name).write_text(content)
    assert error_from(read, run)


BOMB = bytes(60_000_000)


@pytest.mark.parametrize("packing", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
@pytest.mark.parametrize("kind", ["weights", "arrays", "worlds", "replay"])
def test_zip_bombs_are_not_unpacked(run, kind, packing):
    name, read = READERS[kind]
    inside = zipfile.ZipFile(run / name).namelist()
    with zipfile.ZipFile(run / name, "w", packing) as archive:
        for entry in inside:
            archive.writestr(entry, BOMB if entry == inside[0] else b"")
    del archive
    tracemalloc.start()
    try:
        assert error_from(read, run)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()
