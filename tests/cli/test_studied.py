"""Runs and files as one study: what a report must know of each of them."""

from pathlib import Path

from made import make_csv, make_run
from r2r2.cli.load_study import sources_of, study_sources

SMALL = {"steps": 1000, "warmup": 100, "eval_every": 200, "env": "cartpole-swingup"}


def test_decisions_are_counted_with_the_runs_own_action_repeat(here):
    make_run("usual", **SMALL)
    make_run("own", action_repeat=4, **SMALL)
    study = study_sources(sources_of([Path("usual"), Path("own")]))
    repeats = {run.name: run.repeats for run in study.runs}
    assert repeats == {
        "usual": {"cartpole-swingup": 2},
        "own": {"cartpole-swingup": 4},
    }
    assert sorted(curve.repeat for curve in study.curves) == [2, 4]


def test_a_files_tasks_have_the_action_repeat_of_their_suites_if_any(here):
    tasks = ("cartpole-swingup", "Hopper-v5", "Pendulum-v1", "nobody's")
    make_csv("other.csv", {("td7_utd1", task, 0): [1.0] for task in tasks})
    (run,) = study_sources(sources_of([Path("other.csv")])).runs
    assert run.repeats == {"cartpole-swingup": 2, "Hopper-v5": 1, "Pendulum-v1": 1}
