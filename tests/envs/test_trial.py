"""Environments are tried once before a run, and an error names the user's file and line."""

import inspect
import threading
from functools import partial

import faulty_envs
import numpy as np
import pytest
from test_pool import children, env_slot

from r2r2 import train
from r2r2.api import RunOptions
from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve
from r2r2.envs.make import BorrowedEnv
from r2r2.envs.spec import Member, Spec
from r2r2.envs.vector.pool import EnvPool, try_task

SHAPE = "reset: observation: expected shape (2,), got (3,)"
BOX = "expected a gymnasium.spaces.Box, got"
# What is said, and in which line of which function the user finds the cause.
FOUND_HERE = {
    "RaisesInReset": ("reset failed: RuntimeError: the motor is hot", faulty_envs.fail, 1),
    "RaisesInStep": ("step failed: RuntimeError: the motor is hot", faulty_envs.fail, 1),
    "RaisesInClose": ("close failed: RuntimeError: the motor is hot", faulty_envs.fail, 1),
    "RaisesInInit": ("cannot be built: RuntimeError: the motor is hot", faulty_envs.fail, 1),
    "QuitsInInit": ("__init__ failed: SystemExit: bye", faulty_envs.quit_python, 1),
    "NoActionSpace": (f"action_space: {BOX} none", faulty_envs.NoActionSpace.__init__, 0),
    "OddObservationSpace": (f"observation_space: {BOX} a str", faulty_envs.Fine.reset, 0),
    "LongObservation": (SHAPE, faulty_envs.LongObservation.reset, 0),
    "NaNReward": ("step: reward: expected a finite number, got nan", faulty_envs.NaNReward.step, 0),
    "OldStep": (
        "step failed: ValueError: not enough values to unpack (expected 5, got 4)",
        faulty_envs.OldStep.step,
        0,
    ),
}
HUNG = "no response within 0.5 seconds; process killed"
LOST = {"Hangs": HUNG, "Exits": "worker process exited with code 3"}
LOST["Crashes"] = "worker process killed by signal SIGSEGV"


def place(function, offset):
    return f"({faulty_envs.__file__}:{inspect.getsourcelines(function)[1] + offset})"


def message(task, **options):
    limit = 0.5 if task.startswith("Hangs") else 60.0
    with pytest.raises(UserError) as error:
        try_task(f"faulty_envs:{task}", None, limit, **options)
    return str(error.value).removeprefix(f"env 'faulty_envs:{task}': ")


@pytest.mark.parametrize("task", FOUND_HERE)
def test_error_names_file_and_line(task):
    text, function, offset = FOUND_HERE[task]
    assert message(task, local=True) == f"{text} {place(function, offset)}"


def test_error_in_a_worker_is_the_same_sentence():
    text, function, offset = FOUND_HERE["LongObservation"]
    assert message("LongObservation") == f"{text} {place(function, offset)}"


def test_interrupt_raised_by_an_environment_is_its_failure():
    line = inspect.getsourcelines(faulty_envs.interrupt)[1] + 1
    expected = f"KeyboardInterrupt, in {faulty_envs.__file__}, line {line}"
    assert message("InterruptsInReset") == expected


def check_lost(way, method):
    hint = "; --env-timeout sets the limit" if way == "Hangs" else ""
    where = place(faulty_envs.WAYS[way], 1)
    expected = f"{faulty_envs.METHODS[method]}: {LOST[way]} {where}{hint}"
    assert message(f"{way}In{method}") == expected


@pytest.mark.parametrize(("way", "method"), [("Hangs", "Init"), ("Exits", "Close")])
def test_worker_that_hangs_or_dies_is_named(way, method):
    before = children()
    check_lost(way, method)
    assert children() == before


@pytest.mark.slow
@pytest.mark.parametrize("way", LOST)
@pytest.mark.parametrize("method", faulty_envs.METHODS)
def test_worker_that_hangs_or_dies_is_named_in_every_method(way, method):
    check_lost(way, method)


def test_trial_returns_sizes_and_time_limit():
    fine, pendulum = (try_task(x, None, 60.0) for x in ("faulty_envs:Fine", "Pendulum-v1"))
    assert (fine.spec, fine.step_limit) == (Spec(2, 1), None)
    assert (pendulum.spec, pendulum.step_limit) == (Spec(3, 1), 200)
    assert try_task("scripted:Count-v0", None, 60.0, local=True).step_limit == 7


@pytest.mark.parametrize(
    ("env", "workers"), [(faulty_envs.RaisesInReset, 0), (faulty_envs.RaisesInInit, None)]
)
def test_failed_trial_creates_no_folder(tmp_path, env, workers):
    config = resolve({"env": "arm", "steps": 10, "warmup": 5})
    with pytest.raises(
        UserError, match=r"^env 'arm': .*the motor is hot \(.*faulty_envs.py:\d+\)$"
    ):
        train(config, tmp_path / "run", env=env, options=RunOptions(workers=workers))
    assert list(tmp_path.iterdir()) == []


def test_class_of_a_notebook_is_tried_in_this_process_if_it_cannot_be_sent():
    lock = threading.Lock()

    def locked():
        with lock:
            return faulty_envs.RaisesInStep()

    with pytest.raises(UserError, match="env 'mine': step failed: RuntimeError"):
        try_task("mine", locked, 60.0)


def test_trial_does_not_change_global_random_numbers():
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.rand()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    try_task("faulty_envs:DrawsGlobally", None, 60.0, local=True)
    assert np.random.rand() == expected  # noqa: NPY002


def test_instance_is_checked_but_never_stepped():
    assert try_task("mine", partial(BorrowedEnv, faulty_envs.RaisesInReset()), 60.0, local=True)
    with pytest.raises(UserError, match="env 'mine': action_space: expected"):
        try_task("mine", partial(BorrowedEnv, faulty_envs.NoActionSpace()), 60.0, local=True)


def test_failure_to_close_is_a_warning():
    slot = env_slot(Member("arm", 0), builder=faulty_envs.RaisesWhenUsed)
    with pytest.warns(UserWarning, match="env 'arm': close failed: RuntimeError: the motor"):
        with EnvPool([slot], workers=0) as pool:
            pool.reset([0], [0])


@pytest.mark.slow
def test_worker_that_hangs_when_closed_is_killed_with_a_warning():
    slot = env_slot(Member("arm", 0), builder=faulty_envs.HangsWhenUsed)
    with pytest.warns(
        UserWarning, match="env 'arm': not closed within 5 seconds; .*faulty_envs.py:"
    ):
        with EnvPool([slot], workers=1) as pool:
            pool.reset([0], [0])
