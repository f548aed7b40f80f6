"""Automatic settings of a run, and the selection of its members."""

import dataclasses

import pytest

from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve
from r2r2.envs.spec import Member
from r2r2.training import run_config
from r2r2.training.run_config import finalize_config, select_members, task_default_config


def config(env: str, **values):
    return resolve({"agent": "simbav2", "env": env} | values)


@pytest.mark.parametrize(
    ("env", "critics", "discount"),
    [("Hopper-v5", 2, 0.995), ("cartpole-swingup", 1, 0.99), ("Reacher-v5", 2, 0.95)],
)
def test_task_determines_critics_and_discount(env, critics, discount):
    agent = finalize_config(config(env)).agent
    assert (agent.critics, agent.discount) == (critics, discount)


def test_discount_depends_on_decision_steps():
    # 1000 environment steps are 250 decisions: (50 - 1) / 50.
    agent = finalize_config(config("cartpole-swingup", action_repeat=4)).agent
    assert agent.discount == 0.98


def test_given_values_stay():
    agent = finalize_config(config("Hopper-v5", critics=1, discount=0.9)).agent
    assert (agent.critics, agent.discount) == (1, 0.9)


def test_tasks_of_equal_length_agree():
    assert finalize_config(config("Hopper-v5,Walker2d-v5")).agent.discount == 0.995


@pytest.mark.parametrize(
    ("env", "values", "field"),
    [
        ("Hopper-v5,Reacher-v5", {}, "discount"),
        ("Hopper-v5,cartpole-swingup", {"action_repeat": 1}, "critics"),
    ],
)
def test_tasks_that_disagree_are_refused(env, values, field):
    with pytest.raises(UserError) as error:
        finalize_config(config(env, **values))
    assert str(error.value) == (
        f"agent.{field}: 0 (automatic) differs between {env.replace(',', ', ')}; set "
        "one value for all"
    )
    given = {"discount": 0.9, "critics": 2}[field]
    agent = finalize_config(config(env, **values, **{field: given})).agent
    assert getattr(agent, field) == given


def test_task_without_time_limit_needs_a_discount(monkeypatch):
    monkeypatch.setattr(run_config, "step_limit", lambda *_: None)
    with pytest.raises(UserError, match=r"which 'Hopper-v5' does not have; set"):
        finalize_config(config("Hopper-v5"))
    given = finalize_config(config("Hopper-v5", discount=0.9))
    assert task_default_config(given).agent.critics == 0


def test_default_config_is_that_of_the_first_task():
    run = finalize_config(config("Hopper-v5,Walker2d-v5", utd=3))
    expected = dataclasses.replace(run, env=("Hopper-v5",), utd=1)
    assert task_default_config(run) == expected


def test_automatic_action_repeat_is_that_of_the_suite():
    config = resolve({"agent": "td7", "env": "Hopper-v5,cartpole-swingup"})
    with pytest.raises(UserError, match=r"^action_repeat: 0 \(automatic\) differs"):
        finalize_config(config)
    given = dataclasses.replace(config, action_repeat=4)
    assert finalize_config(given) == given
    for task, repeat in (("Hopper-v5", 1), ("cartpole-swingup", 2)):
        run = finalize_config(dataclasses.replace(config, env=(task,)))
        assert run.action_repeat == repeat


def test_agents_without_automatic_settings_are_unchanged():
    run = resolve({"agent": "td7", "env": "Hopper-v5"})
    assert finalize_config(run) == dataclasses.replace(run, action_repeat=1)


def test_members_are_selected_by_task_and_seed_or_by_folder():
    members = (Member("A-v0", 0), Member("A-v0", 1))
    assert select_members(members, None) == members
    assert select_members(members, "A-v0:1") == members[1:]
    assert select_members(members, "A-v0_s0") == members[:1]
    with pytest.raises(UserError) as error:
        select_members(members, "A-v0:7")
    assert str(error.value).startswith(
        "member: expected one of A-v0:0, A-v0:1, got 'A-v0:7'; did you mean"
    )
