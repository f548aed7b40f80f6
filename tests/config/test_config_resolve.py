import dataclasses

import pytest

from r2r2.config.agents import AGENTS, agent_config
from r2r2.config.common import R2R2, Representation
from r2r2.config.errors import UserError
from r2r2.config.fields import flatten_config
from r2r2.config.resolve import (
    default_config,
    quick_config,
    resolve,
    validate,
    with_action_repeat,
)
from r2r2.config.run import RunConfig
from r2r2.config.td7 import TD7Config

ENV = {"env": "Hopper-v5"}


def refused(*layers):
    with pytest.raises(UserError) as refusal:
        resolve(*layers)
    return str(refusal.value)


def test_the_agents_differ_in_two_weights_alone():
    plain, with_r2r2 = agent_config("td7"), agent_config("td7+r2r2")
    assert plain.representation == Representation(lambda_rr=0, lambda_var=0)
    assert with_r2r2.representation == R2R2
    assert dataclasses.replace(plain, name="td7+r2r2", representation=R2R2) == with_r2r2


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_goes_by_its_own_name(name):
    assert default_config(name).agent.name == name


@pytest.mark.parametrize("name", ["td8", "TD7", "", 3, None, ["td7"], {}])
def test_an_agent_that_there_is_not_is_refused(name):
    sentence = refused(ENV, {"agent": name})
    assert sentence.startswith(f"agent is {name!r}; allowed are td7, td7+r2r2")
    assert ("did you mean 'td7'" in sentence) == (name in ("td8", "TD7"))


def test_without_anything_said_the_agent_has_r2r2():
    assert resolve(ENV) == dataclasses.replace(
        default_config("td7+r2r2"), env=("Hopper-v5",)
    )


@pytest.mark.parametrize("key", ["agent", "agent.name"])
def test_the_agent_decides_the_defaults_that_other_fields_change(key):
    config = resolve(ENV, {key: "td7", "lambda-rr": "0.5"})
    assert config.agent.name == "td7"
    assert config.agent.representation == Representation(lambda_rr=0.5)


def test_later_layers_win():
    preset, file, flags = {"steps": 1, "utd": 1, "agent": "td7"}, {}, {}
    assert resolve(ENV, preset).steps == 1
    file = {"utd": 2, "steps": 2, "agent": "td7+r2r2"}
    flags = {"steps": "3"}
    config = resolve(ENV, preset, file, flags)
    assert (config.steps, config.utd, config.agent.name) == (3, 2, "td7+r2r2")


def test_a_field_is_the_same_by_every_name_it_has():
    config = resolve(ENV, {"agent.width": 3}, {"width": 4})
    assert config.agent.width == 4
    config = resolve(ENV, {"batch-size": 3}, {"agent.batch_size": 4})
    assert config.agent.batch_size == 4


def test_the_agents_name_is_not_changed_alone():
    assert refused(ENV, {"name": "mine"}) == "'name' is not a field; see --help"


def test_an_unknown_field_is_refused_with_a_near_one():
    assert refused(ENV, {"agent.widht": 3}) == (
        "'agent.widht' is not a field; did you mean 'width'?"
    )


def test_a_run_needs_a_task():
    assert refused({}).startswith("env is missing; name a task, for example --env ")


def test_evaluations_are_averaged_in_whole_numbers():
    assert refused(ENV, {"eval_every": 10, "eval_average": 3}) == (
        "eval_average is 3; allowed is a divisor of eval_every, which is 10"
    )
    assert resolve(ENV, {"eval_every": 10, "eval_average": 5}).eval_average == 5


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (RunConfig(), "env is missing"),
        (RunConfig(env=("A-v0",), steps=0), "steps is 0; allowed is a whole"),
        (RunConfig(env=("A-v0",), seeds=(1, 1)), r"seeds is \(1, 1\); allowed is a"),
        (RunConfig(env=("A-v0", "A-v0")), "env is .* allowed is one task or several"),
        (RunConfig(TD7Config(width=0), ("A-v0",)), "agent.width is 0; allowed is"),
        (RunConfig(TD7Config("mine"), ("A-v0",)), "agent is 'mine'; allowed are td7"),
    ],
)
def test_a_config_made_in_python_is_checked_too(config, sentence):
    with pytest.raises(UserError, match=sentence):
        validate(config)


def test_a_good_config_stays_as_it_is():
    config = RunConfig(env=("A-v0",), seeds=(4,))
    assert validate(config) == config


def test_numbers_given_as_another_kind_become_the_fields_own():
    config = validate(RunConfig(TD7Config(discount=1), ("A-v0",)))
    assert type(config.agent.discount) is float


def test_zero_action_repeat_is_the_suites_own():
    config = resolve(ENV)
    assert with_action_repeat(config, {2}).action_repeat == 2
    given = dataclasses.replace(config, action_repeat=4)
    assert with_action_repeat(given, {1, 2}) == given
    with pytest.raises(UserError, match=r"action_repeat is 0, .*; give one for all"):
        with_action_repeat(config, {1, 2})


def test_the_quick_preset_is_a_config():
    config = resolve(quick_config())
    assert config.env == ("cartpole-swingup",)
    assert config.warmup < config.steps
    assert set(quick_config()) <= {*flatten_config(config), "agent"}


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolve(ENV).steps = 3


def test_more_updates_than_the_device_counts_are_refused():
    assert refused(ENV, {"steps": 2_000_000_000, "utd": 2}) == (
        "utd is 2; allowed with 2000000000 steps is at most 1, "
        "2147483647 updates in all"
    )


def test_r2r2_needs_an_encoder():
    with pytest.raises(UserError, match=r"no encoder .* simbav2-spl\+r2r2 has one"):
        agent_config("simbav2+r2r2")
    assert "simbav2-spl+r2r2" in AGENTS


def test_warm_up_is_the_releases():
    steps = {name: default_config(name).warmup for name in AGENTS}
    assert all(n == (25_000 if "td7" in name else 5_000) for name, n in steps.items())
