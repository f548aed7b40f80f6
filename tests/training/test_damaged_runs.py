"""No change of a run's files goes unnoticed by a resume and by a report."""

import dataclasses
import json
import os
import random
import shutil

import pytest
from interrupted import interrupt
from runs import SMALL

from r2r2 import resolve, train
from r2r2.api import RunOptions
from r2r2.config.errors import UserError
from r2r2.config.toml_io import to_toml
from r2r2.experiments.run_report import find_sources, load_study
from r2r2.storage.arrays import read_arrays, write_arrays
from r2r2.storage.checkpoints import delete_files, latest_valid, serialize_manifest
from r2r2.storage.files import file_entry
from r2r2.storage.integrity import LOGS, find_damage, logged_files
from r2r2.storage.run_folder import open_run, read_manifest, reopen_run, write_manifest
from r2r2.training.resume_plan import plan_resume
from r2r2.training.run_config import finalize_config
from r2r2.training.run_log import RunLog
from r2r2.training.saved_config import fleet_members

pytestmark = pytest.mark.slow

CONFIG = finalize_config(resolve(SMALL, {"seeds": 2}))
OPTIONS = RunOptions(workers=0, checkpoint_every="15")
LONGER = dataclasses.replace(CONFIG, steps=CONFIG.steps + 10)
DIGITS = b"0123456789"


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run, an interrupted one, and one that was killed after its last checkpoint."""
    folder = tmp_path_factory.mktemp("runs")

    interrupt(CONFIG, folder / "interrupted", lambda x: x.decisions.min() >= 55, OPTIONS)
    killed = shutil.copytree(folder / "interrupted", folder / "killed")
    newest, _ = latest_valid(killed / "checkpoints")
    own = f"{newest.number:08}"
    delete_files(path for path in newest.folder.iterdir() if path.name.startswith(own))
    finished = shutil.copytree(folder / "interrupted", folder / "finished")
    train(CONFIG, finished, options=OPTIONS)
    return folder


@pytest.fixture
def run(runs, tmp_path):
    return lambda name: shutil.copytree(runs / name, tmp_path / name)


def files_below(run):
    return sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())


# Changes of a file's content; None deletes the file.


def flip_digit(content, chance):
    places = [n for n, byte in enumerate(content) if byte in DIGITS] or range(len(content))
    place = chance.choice(places)
    other = chance.choice([x for x in DIGITS if x != content[place]])
    return content[:place] + bytes([other]) + content[place + 1 :]


def zero_bytes(content, chance):
    place, length = chance.randrange(len(content)), chance.randrange(1, 20)
    zeros = bytes(len(content[place : place + length]))
    return content[:place] + zeros + content[place + length :]


def truncate(content, chance):
    return content[: chance.randrange(len(content))]


def append_garbage(content, chance):
    return content + chance.choice((b"\n", b"}", b"0,1,2\n", chance.randbytes(30), content[-40:]))


def delete_file(content, chance):
    return None


def change_lines(change):
    def changed(content, chance):
        lines = content.splitlines(keepends=True)
        first, second = (chance.randrange(len(lines)) for _ in range(2))
        change(lines, first, second)
        return b"".join(lines)

    return changed


def swap(lines, first, second):
    lines[first], lines[second] = lines[second], lines[first]


CHANGES = {
    "digit": flip_digit,
    "zeros": zero_bytes,
    "truncated": truncate,
    "garbage": append_garbage,
    "deleted": delete_file,
    "line deleted": change_lines(lambda lines, first, _: lines.pop(first)),
    "line repeated": change_lines(lambda lines, first, _: lines.insert(first, lines[first])),
    "lines swapped": change_lines(swap),
}


def put(path, content):
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


def resume(run, config):
    """Resume a run up to its first step; return the messages, and whether it is refused."""
    messages = []
    try:
        open_run(run)
        plan = plan_resume(run, config, messages.append)
        if plan.restart:
            return messages, True
        folder = reopen_run(run, to_toml(config), {"step": plan.checkpoint.step}, plan.repairs)
    except UserError as error:
        return one_line_each(error), True
    with RunLog(config, folder, fleet_members(config), "name") as log:
        notes = plan.checkpoint.metadata["journal"]
        log.restore(notes, set(), logged_files(plan.checkpoint))
        assert log.notes()["events"][0] == notes["events"][0]
    return messages, False


def one_line_each(*errors):
    texts = [str(error) for error in errors]
    assert all(text and "\n" not in text for text in texts)
    return texts


def update_checksums(checkpoint):
    """Rewrite the manifest of a checkpoint whose arrays were changed."""
    entry = file_entry(checkpoint.arrays)
    files = checkpoint.files | {checkpoint.arrays.name: entry}
    text = serialize_manifest(checkpoint._replace(files=files))
    checkpoint.arrays.with_suffix(".json").write_text(text)


def report(run):
    """Return what a report says about damage."""
    try:
        return list(load_study(find_sources([run])).damage)
    except UserError as error:
        return one_line_each(error)


def cases(runs, count):
    """Yield a run, a file of it, a change and the new content; all files and changes in turn."""
    chance = random.Random(17)
    files = [(name, file) for name in sorted(os.listdir(runs)) for file in files_below(runs / name)]
    for number in range(count):
        name, file = files[number % len(files)]
        how = list(CHANGES)[(number + number // len(files)) % len(CHANGES)]
        before = (runs / name / file).read_bytes()
        tries = [CHANGES[how](before, chance) for _ in range(20)]
        content = next((x for x in tries if x != before), before[:-1])
        yield name, file, how, content


def test_no_change_of_a_file_is_silent(runs, tmp_path):
    """Each is refused, restored to the bit, or reported; what resuming cuts off may be ignored."""
    handled = dict.fromkeys(("refused", "restored", "reported", "not needed"), 0)
    for name, file, how, content in cases(runs, 320):
        case = f"{name}/{file}: {how}"
        path = shutil.copytree(runs / name, tmp_path / "run")
        checkpoint, _ = latest_valid(path / "checkpoints")
        before = (path / file).read_bytes()
        put(path / file, content)
        entry = logged_files(checkpoint).get(file)
        length = entry.bytes if entry and name != "finished" else None
        cut_off = content is not None and content[:length] == before[:length]
        inside = file.startswith("checkpoints/")
        # The best weights are in the checkpoint, and are written again.
        cut_off |= file.endswith("best_weights.npz") and name != "finished"
        said = report(path)
        # Without a manifest, the folder is not a run.
        name_in_text = f"{path}" if file == "manifest.json" else f"/{file}:"
        assert inside or cut_off or any(name_in_text in text for text in said), case
        messages, refused = resume(path, LONGER if name == "finished" else CONFIG)
        named = any(file.rpartition("/")[2] in text for text in messages)
        if refused:
            assert named or inside, case
            handled["refused"] += 1
        elif cut_off or (inside and file[12:] not in checkpoint.files):
            handled["not needed"] += 1
        elif file in LOGS:
            assert named, case
            assert (path / file).read_bytes()[: entry.bytes] == before[: entry.bytes], case
            handled["restored"] += 1
        else:
            assert named, case
            handled["reported"] += 1
        shutil.rmtree(path)
    assert all(number > 20 for number in handled.values()), handled


def test_intact_runs_have_no_damage(run):
    for name in ("finished", "interrupted", "killed"):
        path = run(name)
        assert find_damage(path) == {}
        assert report(path) == []
        messages, refused = resume(path, LONGER if name == "finished" else CONFIG)
        assert not refused
        assert [text.partition(": ")[2][:8] for text in messages] == ["resuming"]


def test_damaged_files_are_restored_and_named_by_line(run):
    path, step = run("interrupted"), 55
    files = ("config.toml", "versions.json", "evaluations.csv", "events.jsonl")
    before = {file: (path / file).read_text() for file in files}
    for file, text in before.items():
        lines = text.splitlines(keepends=True)
        (path / file).write_text(
            "".join([*lines[:1], lines[1].replace("0", "7") + "x", *lines[2:]])
        )
    messages, refused = resume(path, CONFIG)
    assert not refused
    line = "line 2 is damaged: not as it was written; restored from"
    assert messages == [
        *(f"{path / file}: {line} manifest.json" for file in files[:2]),
        *(f"{path / file}: {line} the checkpoint of step {step}" for file in files[3:1:-1]),
        f"{path}: resuming from step {step}",
    ]
    for file in files:
        if file != "versions.json":
            assert (path / file).read_text() == before[file]
    versions = json.loads((path / "versions.json").read_text())
    assert versions.pop("resumed") == [{"step": step}]
    assert versions == json.loads(before["versions.json"])


def test_log_without_a_copy_is_refused(run):
    path = run("interrupted")
    checkpoint, _ = latest_valid(path / "checkpoints")
    arrays = {x: y for x, y in read_arrays(checkpoint.arrays).items() if x != "logs/events.jsonl"}
    with checkpoint.arrays.open("wb") as file:
        write_arrays(file, arrays.items())
    update_checksums(checkpoint)
    (path / "events.jsonl").write_text("")
    (sentence,), refused = resume(path, CONFIG)
    assert refused
    assert sentence.startswith(f"{path / 'events.jsonl'}: damaged; expected ")


def test_checkpoint_of_another_config_is_refused(run):
    path = run("interrupted")
    other = dataclasses.replace(CONFIG, warmup=CONFIG.warmup + 1)
    copies = {"config.toml": to_toml(other)}
    write_manifest(path, read_manifest(path).members, "running", copies=copies)
    (sentence,), refused = resume(path, other)
    assert refused
    assert "written by a run with another config" in sentence


def test_folders_without_checksums_are_not_verified(run):
    path = run("finished")
    write_manifest(path, read_manifest(path).members, "finished")
    shutil.rmtree(path / "checkpoints")
    (path / "versions.json").write_text("{}")
    assert find_damage(path) == {}
    assert report(path) == []
