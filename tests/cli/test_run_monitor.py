import os
import shutil

import pytest
from growing_run import GrowingRun

from r2r2.cli import run_monitor as subject
from r2r2.cli.run_monitor import RunMonitor
from r2r2.config.errors import UserError
from r2r2.storage.events import EventLog, LogPosition


@pytest.fixture(autouse=True)
def disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def growing(tmp_path):
    return GrowingRun(tmp_path / "run")


@pytest.fixture
def run(growing):
    return RunMonitor(growing.path)


def test_run_goes_through_its_states(growing, run):
    run.refresh()
    assert run.state == "not started"
    with growing.training():
        run.refresh()
        assert run.state == "starting"
        growing.step(1, 50)
        run.refresh()
        assert run.state == "warm-up"
        growing.step(2, 100)
        run.refresh()
        assert run.state == "training"
    run.refresh()
    assert run.state == "interrupted"
    growing.folder.finish()
    run.refresh()
    assert run.state == "finished"


def test_killed_run_is_interrupted(growing, run, monkeypatch):
    growing.step(1, 200)
    growing.age(subject.RECENT_SECONDS + 1)
    # The lock file has the pid of a process that no longer exists.
    (growing.path / "lock").write_text(str(2**22 + 1))
    run.refresh()
    assert run.state == "interrupted"


def test_run_on_another_machine_is_training_while_its_log_changes(growing, run):
    growing.step(1, 200)
    (growing.path / "lock").write_text(str(2**22 + 1))
    run.refresh()
    assert run.state == "training"


@pytest.mark.parametrize("number", ["0", "-1", "9" * 19, "x", ""])
def test_invalid_pid_is_not_alive(growing, run, number):
    growing.step(1, 200)
    growing.age(subject.RECENT_SECONDS + 1)
    (growing.path / "lock").write_text(number)
    run.refresh()
    assert run.state == "interrupted"


def test_refresh_neither_locks_nor_writes(growing, run, monkeypatch):
    def forbidden(*_):
        raise AssertionError("the lock was taken")

    growing.step(1, 200)
    growing.returns(200, 1.0, 2.0)

    def state():
        paths = [growing.path, *sorted(growing.path.rglob("*"))]
        return [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths]

    with growing.training():
        before = state()
        monkeypatch.setattr("fcntl.flock", forbidden)
        run.refresh()
        run.refresh()
        assert state() == before
    assert run.state == "training"


def test_eta_is_from_training_steps_minus_the_age_of_the_log(growing, run):
    with growing.training():
        growing.step(1, 100)
        run.refresh()
        assert run.eta(run.modified) is None  # warm-up is much faster
        growing.step(30, 100, 50)
        growing.step(50, 200, 150)
        run.refresh()
        # 100 steps in 20 s; 800 are left.
        assert run.eta(run.modified) == pytest.approx(160)
        assert run.eta(run.modified + 100) == pytest.approx(60)
        assert run.eta(run.modified + 161) is None  # overdue
    run.refresh()
    assert run.eta(run.modified) is None


def test_eta_of_a_resumed_run_is_from_its_new_steps(growing, run):
    with growing.training():
        growing.step(30, 100, 50)
        growing.step(50, 200, 150)
        growing.event("resumed", 200, 150, checkpoint=3)
        run.refresh()
        assert run.eta(run.modified) is None
        growing.step(60, 300, 250)
        growing.step(100, 400, 350)
        run.refresh()
        # 100 steps in 40 s; 600 are left.
        assert run.eta(run.modified) == pytest.approx(240)
        assert run.summary.resumed == 1


def test_speed_is_of_the_whole_fleet_in_the_window(growing, run):
    for second in range(0, 200, 10):
        growing.step(second, second, 3 * second)
    run.refresh()
    assert str(run.summary.speed) == "2.0 steps/s, 6.0 updates/s"


def test_evaluation_results_do_not_lower_the_counts(growing, run):
    with growing.training():
        for second in range(0, 80, 10):
            growing.step(second, 5 * second, 15 * second)
        run.refresh()
        before = str(run.summary.speed), run.eta(run.modified)
        assert before[0] == "10 steps/s, 30 updates/s"
        # Results of an evaluation have the counts of its start.
        for member in (0, 1):
            growing.event("evaluation", 300, 900, member, episodes=10)
            growing.event("value", 300, 900, member, bias=1.0)
        run.refresh()
        assert run.summary.decisions == 350
        assert [m.updates for m in run.summary.members.values()] == [1050, 1050]
        assert (str(run.summary.speed), run.eta(run.modified)) == before


def test_only_new_events_are_parsed(growing, run, monkeypatch):
    growing.step(1, 200)
    run.refresh()
    parsed = []

    def counting(path, number, line):
        parsed.append(number)
        return parse(path, number, line)

    parse = subject.parse_event
    monkeypatch.setattr(subject, "parse_event", counting)
    run.refresh()
    growing.step(2, 300)
    run.refresh()
    assert parsed == [3, 4]
    assert run.summary.decisions == 300


def test_truncated_log_withdraws_its_events(growing, run):
    growing.step(1, 200)
    with EventLog(growing.folder.events) as log:
        mark = log.position()
    table = growing.folder.evaluations
    growing.returns(200, 1.0, 2.0)
    size = table.stat().st_size
    growing.event("stopped", 250, 9, 1, why="its loss is not finite")
    growing.step(5, 400, 100)
    growing.returns(400, 3.0, 4.0)
    run.refresh()
    assert run.summary.members["walk_s1"].stopped == "its loss is not finite"
    with EventLog(growing.folder.events) as log:
        log.truncate(LogPosition(mark.length, mark.seconds))
    os.truncate(table, size)
    growing.event("resumed", 200, 0, checkpoint=1)
    run.refresh()
    assert run.summary.decisions == 200
    assert run.summary.members["walk_s1"].stopped is None
    assert [row.value for row in run.rows] == [1.0, 2.0]


def test_increased_steps_are_noticed(growing, run):
    growing.step(1, 500)
    run.refresh()
    text = growing.folder.config_text()
    (growing.path / "config.toml").write_text(text.replace("steps = 1000", "steps = 2000"))
    run.refresh()
    assert run.config.steps == 2000
    assert run.summary.decisions == 500


def test_problems_of_members_are_reported(growing, run):
    fields = {"why": "RuntimeError: no power", "own": True, "failures": 2}
    growing.event("episode_dropped", 150, 10, 0, episode=1, length=5, **fields)
    growing.event("collapse", 200, 20, 1, effective_rank=1.26, dead=60)
    run.refresh()
    first, second = run.summary.members.values()
    assert (first.failures, first.last_failure) == (2, "RuntimeError: no power")
    assert second.collapse == "at step 200: effective rank 1.3, 60 dead coordinates"
    assert list(first.messages("walk_s0")) == [
        "walk_s0: environment failed 2 times: RuntimeError: no power"
    ]


def test_recovered_representation_is_no_longer_reported(growing, run):
    growing.event("collapse", 200, 20, 1, effective_rank="nan", dead=60)
    run.refresh()
    assert run.summary.members["walk_s1"].collapse is not None
    growing.event("diagnostics", 300, 30, 1, effective_rank=9.0, collapsed=False)
    run.refresh()
    assert run.summary.members["walk_s1"].collapse is None


def test_stopped_members_do_not_count(growing, run):
    growing.step(1, 200, 10)
    growing.event("stopped", 200, 10, 0, why="its loss is not finite")
    growing.event("losses", 600, 90, 1)
    run.refresh()
    assert run.summary.decisions == 600


def test_missing_folder_is_reported_and_can_return(growing, run, tmp_path):
    growing.step(1, 200)
    run.refresh()
    growing.path.rename(tmp_path / "away")
    run.refresh()
    assert run.state == "unavailable"
    assert run.error == f"{growing.path}: no longer exists"
    (tmp_path / "away").rename(growing.path)
    run.refresh()
    assert (run.state, run.error) == ("interrupted", None)


def test_future_folder_is_waited_for(tmp_path):
    run = RunMonitor(tmp_path / "later")
    run.refresh()
    assert run.state == "not started"
    assert run.error == f"{run.path}: does not exist yet"
    run.path.mkdir()
    run.refresh()
    assert run.error == f"{run.path}: contains no run yet"
    GrowingRun(run.path).step(1, 200)
    run.refresh()
    assert (run.state, run.error) == ("interrupted", None)


def test_restarted_run_is_read_again(growing, run, tmp_path):
    growing.step(1, 800)
    run.refresh()
    GrowingRun(growing.path, overwrite=True).step(1, 150)
    run.refresh()
    assert run.summary.decisions == 150


STEPS = '"env_step": 2, "decision_step": 1, "update_step": 0'
DAMAGE = {
    "no JSON": ("{half", "not valid JSON"),
    "a list": ("[1]", "not a JSON object"),
    "a field is missing": ('{"event": "end"}', "missing field 'time'"),
    "time is text": (
        f'{{"event": "x", "time": "a", "member": null, {STEPS}}}',
        "time: expected a number",
    ),
    "time has no end": (
        f'{{"event": "x", "time": 1e999, "member": null, {STEPS}}}',
        "time: expected a number >= 0",
    ),
    "a step below 0": (
        f'{{"event": "x", "time": 1, "member": null, {STEPS}}}'.replace(" 0", " -1"),
        "update_step: expected an integer >= 0",
    ),
    "nobody's": (
        f'{{"event": "x", "time": 1, "member": "other", {STEPS}}}',
        "member: not a member of the run",
    ),
    "failures are text": (
        f'{{"event": "episode_dropped", "time": 1, "member": "walk_s0", {STEPS}}}',
        "failures: expected an integer >= 0",
    ),
}


@pytest.mark.parametrize(("line", "why"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_event_is_reported_and_skipped(growing, run, line, why):
    growing.step(1, 200)
    with growing.folder.events.open("a") as file:
        file.write(line + "\n")
    growing.step(2, 300)
    run.refresh()
    prefix = f"{growing.folder.events}: line 3 is damaged: "
    assert run.error.startswith(prefix)
    assert why in run.error
    assert run.summary.decisions == 300
    run.refresh()
    assert run.error.startswith(prefix)


def test_damaged_table_is_reported(growing, run):
    growing.step(1, 200)
    growing.returns(200, 1.0, 2.0)
    with growing.folder.evaluations.open("a") as file:
        file.write("td7,walk,0,return,soon,3.0\n")
    run.refresh()
    assert run.error.startswith(f"{growing.folder.evaluations}: line 4 is damaged")
    assert len(run.rows) == 2
    growing.folder.evaluations.write_text("another,header\n")
    run.refresh()
    assert run.error.startswith(f"{growing.folder.evaluations}: line 1")
    growing.folder.evaluations.unlink()
    run.refresh()
    assert run.error is None


def test_damage_is_reported_per_file(growing, run):
    growing.step(1, 200)
    growing.folder.evaluations.write_text("another,header\n")
    with growing.folder.events.open("a") as file:
        file.write("no JSON\n")
    run.refresh()
    assert "events.jsonl" in run.error
    growing.folder.events.write_text("")
    run.refresh()
    assert "evaluations.csv" in run.error


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("manifest.json", "{", "manifest.json: damaged or not a run's manifest"),
        ("config.toml", "= 3", "config.toml: "),
        ("config.toml", "steps = 'x'", "config.toml: line 1: steps: expected an integer"),
        ("config.toml", None, "config.toml: cannot read: No such file"),
        ("events.jsonl", None, None),
    ],
)
def test_unreadable_file_is_reported(growing, run, name, content, expected):
    growing.step(1, 200)
    path = growing.path / name
    path.unlink()
    if content is not None:
        path.write_text(content)
    run.refresh()
    if expected is None:
        assert (run.state, run.error) == ("not started", None)
    else:
        assert run.state == "unavailable"
        assert expected in run.error


def test_folder_instead_of_a_log_is_reported(growing, run):
    growing.folder.events.mkdir()
    run.refresh()
    assert run.state == "unavailable"
    assert "cannot read" in run.error


def test_run_deleted_during_refresh_is_unavailable(growing, run, monkeypatch):
    growing.step(1, 200)
    run.refresh()

    def vanish(path):
        shutil.rmtree(growing.path)
        raise UserError("gone")

    monkeypatch.setattr(subject, "open_run", vanish)
    run.refresh()
    assert run.state == "unavailable"
    assert run.error.endswith(": no longer exists")
