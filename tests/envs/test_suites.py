"""Known tasks and their suites."""

import subprocess
import sys

import gymnasium
import pytest

from r2r2.config.errors import UserError
from r2r2.envs.make import make_env
from r2r2.envs.suites import (
    PAPER_TASKS,
    default_action_repeat,
    find_suite,
    known_tasks,
    split_dmc_task,
)


def test_paper_has_four_gymnasium_and_seven_dmc_tasks():
    suites = [task.suite for task in PAPER_TASKS.values()]
    assert (suites.count("gymnasium"), suites.count("dmc")) == (4, 7)


@pytest.mark.parametrize(
    ("task", "suite", "repeat"),
    [
        ("Hopper-v5", "gymnasium", 1),
        ("CartPole-v1", "gymnasium", 1),
        ("phys2d/Pendulum-v0", "gymnasium", 1),
        ("not.installed:Arm-v0", "gymnasium", 1),
        ("dog-run", "dmc", 2),
        ("ball_in_cup-catch", "dmc", 2),
        ("humanoid_CMU-run", "dmc", 2),
        ("swimmer-swimmer6", "dmc", 2),
    ],
)
def test_suite_and_action_repeat(task, suite, repeat):
    assert find_suite(task) == suite
    assert default_action_repeat(task) == repeat


def test_dmc_id_is_split_at_its_first_hyphen():
    assert split_dmc_task("ball_in_cup-catch") == ("ball_in_cup", "catch")
    assert split_dmc_task("a-b-c") == ("a", "b-c")


UNKNOWN = "unknown task; expected a Gymnasium id or a DMC domain-task (see 'r2r2 list envs')"


@pytest.mark.parametrize(
    ("task", "ending"),
    [
        ("Hoper-v5", "; did you mean 'Hopper-v5'?"),
        ("hopper-v5", "; did you mean 'Hopper-v5'?"),
        ("dog-rum", "; did you mean 'dog-run'?"),
        ("dog_run", "; did you mean 'dog-run'?"),
        ("cheetah", "; did you mean 'cheetah-run'?"),
        ("zzzzqq", ""),
        ("", ""),
    ],
)
def test_unknown_task_is_an_error_with_the_nearest_name(task, ending):
    with pytest.raises(UserError) as error:
        find_suite(task)
    assert str(error.value) == f"env {task!r}: {UNKNOWN}{ending}"


def test_listed_tasks_include_the_paper_and_belong_to_their_suite():
    tasks = known_tasks()
    assert set(PAPER_TASKS) <= {*tasks["gymnasium"], *tasks["dmc"]}
    for suite, names in tasks.items():
        assert {find_suite(name) for name in names} == {suite}


@pytest.mark.slow
def test_every_listed_task_can_be_built():
    for names in known_tasks().values():
        for name in names:
            make_env(name, 1).close()


def test_unsupported_tasks_are_not_listed():
    tasks = known_tasks()
    assert not {"CartPole-v1", "Hopper-v3"} & {*tasks["gymnasium"]}
    assert not {"lqr-lqr_2_1", "lqr-lqr_6_2"} & {*tasks["dmc"]}
    try:
        gymnasium.make("BipedalWalker-v3")
    except gymnasium.error.DependencyNotInstalled:
        assert "BipedalWalker-v3" not in tasks["gymnasium"]
    else:
        assert "BipedalWalker-v3" in tasks["gymnasium"]


def run(script, folder):
    return subprocess.run(
        [sys.executable, "-W", "default", "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )


def test_building_tasks_prints_nothing_and_leaves_no_file(tmp_path):
    # Both cheetahs make MuJoCo's compiler warn, importing dm_control looks for a
    # display, and Hopper-v4 is deprecated. Gymnasium's tasks come first, because
    # dm_control replaces MuJoCo's warning handler.
    tasks = ["HalfCheetah-v5", "Hopper-v4", "cheetah-run"]
    script = f"from r2r2.envs.make import make_env\nfor t in {tasks}: make_env(t, 1)"
    result = run(script, tmp_path)
    assert (result.stdout, result.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_suite_of_a_paper_task_needs_no_dm_control(tmp_path):
    script = (
        "import sys; from r2r2.envs.suites import find_suite\n"
        "print(find_suite('dog-run'), find_suite('Ant-v5'))\n"
        "print('dm_control' in sys.modules)"
    )
    assert run(script, tmp_path).stdout == "dmc gymnasium\nFalse\n"
