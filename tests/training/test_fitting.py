import dataclasses

import pytest

from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve
from r2r2.training import task_defaults as fitting
from r2r2.training.task_defaults import apply_task_defaults, task_default_config


def config(env: str, **values):
    return resolve({"agent": "simbav2", "env": env} | values)


@pytest.mark.parametrize(
    ("env", "critics", "discount"),
    [("Hopper-v5", 2, 0.995), ("cartpole-swingup", 1, 0.99), ("Reacher-v5", 2, 0.95)],
)
def test_tasks_decide_critics_and_discount(env, critics, discount):
    agent = apply_task_defaults(config(env)).agent
    assert (agent.critics, agent.discount) == (critics, discount)


def test_the_discount_counts_decision_steps():
    # 1000 environment steps are 250 decisions: (50 - 1) / 50.
    agent = apply_task_defaults(config("cartpole-swingup", action_repeat=4)).agent
    assert agent.discount == 0.98


def test_what_is_given_stays():
    agent = apply_task_defaults(config("Hopper-v5", critics=1, discount=0.9)).agent
    assert (agent.critics, agent.discount) == (1, 0.9)


def test_several_tasks_of_one_length_agree():
    assert apply_task_defaults(config("Hopper-v5,Walker2d-v5")).agent.discount == 0.995


@pytest.mark.parametrize(
    ("env", "values", "field"),
    [
        ("Hopper-v5,Reacher-v5", {}, "discount"),
        ("Hopper-v5,cartpole-swingup", {"action_repeat": 1}, "critics"),
    ],
)
def test_tasks_that_disagree_are_refused(env, values, field):
    with pytest.raises(UserError) as refusal:
        apply_task_defaults(config(env, **values))
    assert str(refusal.value) == (
        f"agent.{field}: 0 (automatic) differs between {env.replace(',', ', ')}; set "
        "one value for all"
    )
    given = {"discount": 0.9, "critics": 2}[field]
    assert (
        getattr(
            apply_task_defaults(config(env, **values, **{field: given})).agent, field
        )
        == given
    )


def test_a_task_without_a_limit_is_refused_until_a_discount_is_given(monkeypatch):
    monkeypatch.setattr(fitting, "step_limit", lambda *_: None)
    with pytest.raises(UserError, match=r"which 'Hopper-v5' does not have; set"):
        apply_task_defaults(config("Hopper-v5"))
    given = apply_task_defaults(config("Hopper-v5", discount=0.9))
    assert task_default_config(given).agent.critics == 0


def test_plain_is_what_the_same_run_would_be_with_nothing_changed():
    run = apply_task_defaults(config("Hopper-v5,Walker2d-v5", utd=3))
    assert task_default_config(run) == dataclasses.replace(
        run, env=("Hopper-v5",), utd=1
    )


def test_other_agents_are_left_alone():
    run = resolve({"agent": "td7", "env": "Hopper-v5"})
    assert apply_task_defaults(run) == dataclasses.replace(run, action_repeat=1)
