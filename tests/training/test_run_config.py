"""Automatic settings of a run, and the selection of its members."""

import dataclasses

import pytest
from small_agent import SLOPE, SlopeConfig

from r2r2.agents.registry import build_agent
from r2r2.config.agents import AGENTS, AgentSpec, register_agent
from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve
from r2r2.envs.spec import Member, Spec
from r2r2.envs.vector.trial import Trial
from r2r2.training import run_config
from r2r2.training.run_config import finalize_config, task_default_config
from r2r2.training.saved_config import select_members


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
    monkeypatch.setattr(run_config, "try_task", lambda *_: Trial(None, None))
    with pytest.raises(UserError, match=r"which 'Hopper-v5' does not have; set"):
        finalize_config(config("Hopper-v5"))
    given = finalize_config(config("Hopper-v5", discount=0.9))
    assert task_default_config(given).agent.critics == 0
    limited = finalize_config(config("Hopper-v5", max_episode_steps=1000))
    assert limited.agent.discount == 0.995


def test_default_config_is_that_of_the_first_task():
    run = finalize_config(config("Hopper-v5,Walker2d-v5", utd=3))
    expected = dataclasses.replace(run, env=("Hopper-v5",), utd=1)
    assert task_default_config(run) == expected


def test_automatic_action_repeat_is_that_of_the_suite():
    config = resolve({"agent": "td7", "env": "Hopper-v5,cartpole-swingup"})
    with pytest.raises(UserError, match=r"^action_repeat: 0 \(automatic\) differs"):
        finalize_config(config)
    given = dataclasses.replace(config, action_repeat=4, replay_size=9)
    assert finalize_config(given) == given
    for task, repeat in (("Hopper-v5", 1), ("cartpole-swingup", 2)):
        run = finalize_config(dataclasses.replace(config, env=(task,)))
        assert run.action_repeat == repeat


def test_agents_without_automatic_settings_are_unchanged():
    run = resolve({"agent": "td7", "env": "Hopper-v5", "replay_size": 7})
    assert finalize_config(run) == dataclasses.replace(run, action_repeat=1)


@pytest.mark.parametrize(
    ("agent", "env", "rows"),
    [
        ("td7", "Hopper-v5", 1_000_000),
        ("simbav2", "dog-run", 1_000_000),
        ("minphi", "Hopper-v5", 100_000),
        ("minphi+r2r2", "Humanoid-v5", 100_000),
        ("minphi+r2r2", "dog-run", 100_000),
    ],
)
def test_replay_size_is_that_of_the_releases(agent, env, rows):
    values = {"agent": agent, "env": env}
    run = finalize_config(resolve(values))
    assert run.replay_size == task_default_config(run).replay_size == rows
    assert finalize_config(resolve(values, {"replay_size": 9_000})).replay_size == 9_000


def test_minimalist_phi_has_a_larger_replay_on_the_task_that_its_release_names():
    run = resolve({"agent": "minphi", "env": "Humanoid-v2"})
    assert finalize_config(run, builder=print).replay_size == 1_000_000


def test_the_config_decides_whether_an_agent_normalizes():
    assert normalizes(of_config=True, of_agent=True)
    assert normalizes(of_config=True, of_agent=False)
    assert not normalizes(of_config=False, of_agent=False)
    with pytest.raises(UserError, match="'mine': it normalizes observations, but its config has"):
        normalizes(of_config=False, of_agent=True)


def normalizes(of_config, of_agent):
    """Return whether an agent normalizes whose config and record say so."""
    config, spec = SlopeConfig("mine", normalize=of_config), Spec(obs_dim=3, action_dim=1)
    record = SLOPE.make(config, spec, 1)._replace(normalizes=of_agent)
    register_agent(AgentSpec("mine", config, lambda *_: record))
    try:
        return build_agent(config, spec, 1).normalizes
    finally:
        del AGENTS["mine"]


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
