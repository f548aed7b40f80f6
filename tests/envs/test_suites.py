import subprocess
import sys

import gymnasium
import pytest

from r2r2.config.errors import UserError
from r2r2.envs.make import make_env
from r2r2.envs.suites import (
    PAPER_TASKS,
    default_action_repeat,
    dmc_parts,
    find_suite,
    known_tasks,
)


def test_the_paper_has_four_and_seven_tasks():
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
def test_suite_and_repeat(task, suite, repeat):
    assert find_suite(task) == suite
    assert default_action_repeat(task) == repeat


def test_a_dmc_id_is_split_at_its_first_hyphen():
    assert dmc_parts("ball_in_cup-catch") == ("ball_in_cup", "catch")
    assert dmc_parts("a-b-c") == ("a", "b-c")


NEITHER = "which is neither a Gymnasium id nor a DMC domain-task"
LIST = "('r2r2 list envs' shows them)"


@pytest.mark.parametrize(
    ("task", "ending"),
    [
        ("Hoper-v5", f"; did you mean 'Hopper-v5'? {LIST}"),
        ("hopper-v5", f"; did you mean 'Hopper-v5'? {LIST}"),
        ("dog-rum", f"; did you mean 'dog-run'? {LIST}"),
        ("dog_run", f"; did you mean 'dog-run'? {LIST}"),
        ("cheetah", f"; did you mean 'cheetah-run'? {LIST}"),
        ("zzzzqq", f" {LIST}"),
        ("", f" {LIST}"),
    ],
)
def test_an_unknown_task_is_refused_with_the_nearest_name(task, ending):
    with pytest.raises(UserError) as refusal:
        find_suite(task)
    assert str(refusal.value) == f"env is {task!r}, {NEITHER}{ending}"


def test_every_listed_task_can_be_built():
    listed = known_tasks()
    assert set(PAPER_TASKS) <= {*listed["gymnasium"], *listed["dmc"]}
    for suite, tasks in listed.items():
        for task in tasks:
            assert find_suite(task) == suite
            make_env(task, 1).close()


def test_what_is_not_listed_is_missing_something():
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


def test_nothing_is_said_and_no_file_left(tmp_path):
    # Both cheetahs make MuJoCo's compiler warn; importing dm_control looks for a
    # display; Hopper-v4 is called out of date. Gymnasium's comes first: dm_control
    # would change who hears MuJoCo.
    tasks = ["HalfCheetah-v5", "Hopper-v4", "cheetah-run"]
    script = f"from r2r2.envs.make import make_env\nfor t in {tasks}: make_env(t, 1)"
    result = run(script, tmp_path)
    assert (result.stdout, result.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_a_paper_task_is_placed_without_importing_dm_control(tmp_path):
    script = (
        "import sys; from r2r2.envs.suites import find_suite\n"
        "print(find_suite('dog-run'), find_suite('Ant-v5'))\n"
        "print('dm_control' in sys.modules)"
    )
    assert run(script, tmp_path).stdout == "dmc gymnasium\nFalse\n"
