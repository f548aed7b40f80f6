"""What is told of a run that is looked at from outside."""

import os
import shutil

import pytest
from followed import Grown

from r2r2.cli import run_monitor as subject
from r2r2.cli.run_monitor import Watched
from r2r2.config.errors import UserError
from r2r2.storage.events import EventLog, LogPosition


@pytest.fixture(autouse=True)
def disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def grown(tmp_path):
    return Grown(tmp_path / "run")


@pytest.fixture
def run(grown):
    return Watched(grown.path)


def test_a_run_goes_through_its_states(grown, run):
    run.look()
    assert run.state == "not begun"
    with grown.trained():
        run.look()
        assert run.state == "starting"
        grown.step(1, 50)
        run.look()
        assert run.state == "warm-up"
        grown.step(2, 100)
        run.look()
        assert run.state == "training"
    run.look()
    assert run.state == "interrupted"
    grown.folder.finish()
    run.look()
    assert run.state == "finished"


def test_a_run_whose_process_was_killed_is_interrupted(grown, run, monkeypatch):
    grown.step(1, 200)
    grown.age(subject.FRESH + 1)
    # It left its lock behind, with the number of a process that is no more.
    (grown.path / "lock").write_text(str(2**22 + 1))
    run.look()
    assert run.state == "interrupted"


def test_a_run_on_another_machine_is_in_training_while_it_has_news(grown, run):
    grown.step(1, 200)
    (grown.path / "lock").write_text(str(2**22 + 1))
    run.look()
    assert run.state == "training"


@pytest.mark.parametrize("number", ["0", "-1", "9" * 19, "x", ""])
def test_no_process_has_such_a_number(grown, run, number):
    grown.step(1, 200)
    grown.age(subject.FRESH + 1)
    (grown.path / "lock").write_text(number)
    run.look()
    assert run.state == "interrupted"


def test_nothing_in_the_folder_is_locked_or_written(grown, run, monkeypatch):
    def forbidden(*_):
        raise AssertionError("a run that is watched is only read")

    grown.step(1, 200)
    grown.returns(200, 1.0, 2.0)

    def state():
        found = [grown.path, *sorted(grown.path.rglob("*"))]
        return [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in found]

    with grown.trained():
        before = state()
        monkeypatch.setattr("fcntl.flock", forbidden)
        run.look()
        run.look()
        assert state() == before
    assert run.state == "training"


def test_the_estimate_is_the_pace_of_steps_trained_on_less_the_age_of_the_log(
    grown, run
):
    with grown.trained():
        grown.step(1, 100)
        run.look()
        assert run.eta(run.changed) is None  # warm-up says nothing about the rest
        grown.step(30, 100, 50)
        grown.step(50, 200, 150)
        run.look()
        # 100 steps in 20 s; 800 are to go.
        assert run.eta(run.changed) == pytest.approx(160)
        assert run.eta(run.changed + 100) == pytest.approx(60)
        assert run.eta(run.changed + 161) is None  # overdue: nobody knows
    run.look()
    assert run.eta(run.changed) is None


def test_a_resumed_run_is_estimated_by_its_new_steps(grown, run):
    with grown.trained():
        grown.step(30, 100, 50)
        grown.step(50, 200, 150)
        grown.event("resumed", 200, 150, checkpoint=3)
        run.look()
        assert run.eta(run.changed) is None
        grown.step(60, 300, 250)
        grown.step(100, 400, 350)
        run.look()
        # 100 steps in 40 s; 600 are to go.
        assert run.eta(run.changed) == pytest.approx(240)
        assert run.digest.resumed == 1


def test_speed_is_the_whole_fleets_of_late(grown, run):
    for second in range(0, 200, 10):
        grown.step(second, second, 3 * second)
    run.look()
    assert run.digest.speed == "2.0 steps/s, 6.0 updates/s"


def test_the_end_of_an_evaluation_takes_no_step_back(grown, run):
    with grown.trained():
        for second in range(0, 80, 10):
            grown.step(second, 5 * second, 15 * second)
        run.look()
        before = run.digest.speed, run.eta(run.changed)
        assert before[0] == "10 steps/s, 30 updates/s"
        # What an evaluation found is written when its episodes are over, and has the
        # counts of when it began.
        for member in (0, 1):
            grown.event("evaluation", 300, 900, member, episodes=10)
            grown.event("value", 300, 900, member, bias=1.0)
        run.look()
        assert run.digest.decisions == 350
        assert [m.updates for m in run.digest.members.values()] == [1050, 1050]
        assert (run.digest.speed, run.eta(run.changed)) == before


def test_only_what_is_new_is_taken_in(grown, run, monkeypatch):
    grown.step(1, 200)
    run.look()
    parsed = []

    def counting(path, number, line):
        parsed.append(number)
        return parse(path, number, line)

    parse = subject.parse_event
    monkeypatch.setattr(subject, "parse_event", counting)
    run.look()
    grown.step(2, 300)
    run.look()
    assert parsed == [3, 4]
    assert run.digest.decisions == 300


def test_a_log_that_is_cut_back_takes_back_what_it_said(grown, run):
    grown.step(1, 200)
    with EventLog(grown.folder.events) as log:
        mark = log.position()
    table = grown.folder.evaluations
    grown.returns(200, 1.0, 2.0)
    size = table.stat().st_size
    grown.event("stopped", 250, 9, 1, why="its loss is not finite")
    grown.step(5, 400, 100)
    grown.returns(400, 3.0, 4.0)
    run.look()
    assert run.digest.members["walk_s1"].stopped == "its loss is not finite"
    with EventLog(grown.folder.events) as log:
        log.truncate(LogPosition(mark.length, mark.seconds))
    os.truncate(table, size)
    grown.event("resumed", 200, 0, checkpoint=1)
    run.look()
    assert run.digest.decisions == 200
    assert run.digest.members["walk_s1"].stopped is None
    assert [row.value for row in run.rows] == [1.0, 2.0]


def test_more_steps_are_seen(grown, run):
    grown.step(1, 500)
    run.look()
    text = grown.folder.config_text()
    (grown.path / "config.toml").write_text(
        text.replace("steps = 1000", "steps = 2000")
    )
    run.look()
    assert run.config.steps == 2000
    assert run.digest.decisions == 500


def test_what_befell_members_is_kept(grown, run):
    fields = {"why": "RuntimeError: no power", "own": True, "failures": 2}
    grown.event("episode_dropped", 150, 10, 0, episode=1, length=5, **fields)
    grown.event("collapse", 200, 20, 1, effective_rank=1.26, dead=60)
    run.look()
    first, second = run.digest.members.values()
    assert (first.failures, first.failure) == (2, "RuntimeError: no power")
    assert second.collapse == "at step 200: effective rank 1.3, 60 dead coordinates"
    assert list(first.sentences("walk_s0")) == [
        "the environment of walk_s0 failed 2 times: RuntimeError: no power"
    ]


def test_a_representation_that_recovers_is_not_warned_of_any_more(grown, run):
    grown.event("collapse", 200, 20, 1, effective_rank="nan", dead=60)
    run.look()
    assert run.digest.members["walk_s1"].collapse is not None
    grown.event("diagnostics", 300, 30, 1, effective_rank=9.0, collapsed=False)
    run.look()
    assert run.digest.members["walk_s1"].collapse is None


def test_members_that_were_stopped_are_not_waited_for(grown, run):
    grown.step(1, 200, 10)
    grown.event("stopped", 200, 10, 0, why="its loss is not finite")
    grown.event("losses", 600, 90, 1)
    run.look()
    assert run.digest.decisions == 600


def test_a_folder_that_disappears_is_told_and_can_come_back(grown, run, tmp_path):
    grown.step(1, 200)
    run.look()
    grown.path.rename(tmp_path / "away")
    run.look()
    assert run.state == "lost"
    assert run.trouble == f"run is '{grown.path}', which is not there any more"
    (tmp_path / "away").rename(grown.path)
    run.look()
    assert (run.state, run.trouble) == ("interrupted", None)


def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path):
    run = Watched(tmp_path / "later")
    run.look()
    assert run.state == "not begun"
    assert run.trouble == f"run is '{run.path}', which does not exist yet"
    run.path.mkdir()
    run.look()
    assert run.trouble == f"run is '{run.path}', which holds no run yet"
    Grown(run.path).step(1, 200)
    run.look()
    assert (run.state, run.trouble) == ("interrupted", None)


def test_a_run_that_begins_anew_is_read_anew(grown, run, tmp_path):
    grown.step(1, 800)
    run.look()
    Grown(grown.path, overwrite=True).step(1, 150)
    run.look()
    assert run.digest.decisions == 150


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
        "its member is none of the run's",
    ),
    "failures are text": (
        f'{{"event": "episode_dropped", "time": 1, "member": "walk_s0", {STEPS}}}',
        "failures: expected an integer >= 0",
    ),
}


@pytest.mark.parametrize(("line", "why"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_line_is_told_in_a_sentence_and_passed_over(grown, run, line, why):
    grown.step(1, 200)
    with grown.folder.events.open("a") as file:
        file.write(line + "\n")
    grown.step(2, 300)
    run.look()
    told = f"{grown.folder.events}: line 3 is damaged: "
    assert run.trouble.startswith(told)
    assert why in run.trouble
    assert run.digest.decisions == 300
    run.look()
    assert run.trouble.startswith(told)


def test_a_table_that_is_damaged_is_told_in_a_sentence(grown, run):
    grown.step(1, 200)
    grown.returns(200, 1.0, 2.0)
    with grown.folder.evaluations.open("a") as file:
        file.write("td7,walk,0,return,soon,3.0\n")
    run.look()
    assert run.trouble.startswith(f"{grown.folder.evaluations}: line 4 is damaged")
    assert len(run.rows) == 2
    grown.folder.evaluations.write_text("another,header\n")
    run.look()
    assert run.trouble.startswith(f"{grown.folder.evaluations}: line 1")
    grown.folder.evaluations.unlink()
    run.look()
    assert run.trouble is None


def test_damage_of_one_file_outlasts_that_of_the_other(grown, run):
    grown.step(1, 200)
    grown.folder.evaluations.write_text("another,header\n")
    with grown.folder.events.open("a") as file:
        file.write("no JSON\n")
    run.look()
    assert "events.jsonl" in run.trouble
    grown.folder.events.write_text("")
    run.look()
    assert "evaluations.csv" in run.trouble


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("manifest.json", "{", "manifest.json: damaged or not a run's manifest"),
        ("config.toml", "= 3", "has a config.toml that cannot be read"),
        ("config.toml", "steps = 'x'", "steps is 'x'"),
        ("config.toml", None, "config.toml: cannot read: No such file"),
        ("events.jsonl", None, None),
    ],
)
def test_what_cannot_be_read_is_one_sentence(grown, run, name, content, said):
    grown.step(1, 200)
    path = grown.path / name
    path.unlink()
    if content is not None:
        path.write_text(content)
    run.look()
    if said is None:
        assert (run.state, run.trouble) == ("not begun", None)
    else:
        assert run.state == "lost"
        assert said in run.trouble


def test_a_folder_in_place_of_a_log_is_told(grown, run):
    grown.folder.events.mkdir()
    run.look()
    assert run.state == "lost"
    assert "cannot read" in run.trouble


def test_a_run_that_disappears_while_it_is_read_is_lost(grown, run, monkeypatch):
    grown.step(1, 200)
    run.look()

    def vanish(path):
        shutil.rmtree(grown.path)
        raise UserError("it is gone")

    monkeypatch.setattr(subject, "open_run", vanish)
    run.look()
    assert run.state == "lost"
    assert run.trouble.endswith("which is not there any more")
