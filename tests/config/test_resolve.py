import dataclasses

import pytest

from r2r2.config.agent_configs import MinPhiConfig, TD7Config
from r2r2.config.agents import AGENTS, agent_config
from r2r2.config.common import R2R2, Representation
from r2r2.config.errors import UserError
from r2r2.config.fields import flatten_config
from r2r2.config.resolve import (
    default_config,
    quick_config,
    resolve,
    resolve_toml,
    run_defaults,
    validate,
)
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import changed_fields, experiment_name, run_name, to_toml

ENV = {"env": "Hopper-v5"}


def error_of(*layers):
    with pytest.raises(UserError) as error:
        resolve(*layers)
    return str(error.value)


def test_default_agent_is_td7_with_r2r2():
    expected = dataclasses.replace(default_config("td7+r2r2"), env=("Hopper-v5",))
    assert resolve(ENV) == RunConfig(env=("Hopper-v5",)) == expected
    plain, with_r2r2 = agent_config("td7"), agent_config("td7+r2r2")
    assert dataclasses.replace(plain, name="td7+r2r2", representation=R2R2) == with_r2r2


@pytest.mark.parametrize("key", ["agent", "agent.name"])
def test_agent_selects_the_defaults_of_other_fields(key):
    config = resolve(ENV, {key: "td7", "lambda-rr": "0.5"})
    assert config.agent.name == "td7"
    assert config.agent.representation == Representation(lambda_rr=0.5)


def test_fields_may_be_in_nested_tables():
    agent = {"name": "td7", "width": 32, "representation": {"lambda_rr": 0.5}}
    config = resolve(ENV | {"agent": agent, "compute": {"fast": False}})
    assert (config.agent.name, config.agent.width, config.compute.fast) == ("td7", 32, False)
    assert config.agent.representation == Representation(lambda_rr=0.5)
    assert resolve(ENV, {"representation": {"lambda_rr": 0}}).agent.representation.lambda_rr == 0
    assert error_of(ENV, {"agent": {"widht": 3}}) == (
        "agent.widht: unknown field; did you mean 'agent.width'?"
    )


def test_steps_must_exceed_the_warmup_unless_actions_are_random():
    for steps in (10_000, 25_000):
        error = f"steps: expected more than warmup (25000), got {steps}; "
        assert error_of(ENV, {"steps": steps}).startswith(error)
        assert "--random-only" in error_of(ENV, {"steps": steps})
        assert resolve(ENV, {"steps": steps, "random_only": True}).steps == steps
    assert resolve(ENV, {"steps": 25_001}).steps == 25_001
    # Run folders from before this rule stay readable.
    assert resolve_toml('env = "Hopper-v5"\nsteps = 10').steps == 10


def test_later_layers_take_precedence():
    preset = {"steps": 1, "utd": 1, "agent": "td7", "warmup": 0}
    assert resolve(ENV, preset).steps == 1
    file = {"utd": 2, "steps": 2, "agent": "td7+r2r2"}
    config = resolve(ENV, preset, file, {"steps": "3"})
    assert (config.steps, config.utd, config.agent.name) == (3, 2, "td7+r2r2")


def test_all_names_of_a_field_set_the_same_field():
    assert resolve(ENV, {"agent.width": 3}, {"width": 4}).agent.width == 4
    config = resolve(ENV, {"batch-size": 3}, {"agent.batch_size": 4})
    assert config.agent.batch_size == 4


def test_agent_name_cannot_be_changed_alone():
    assert error_of(ENV, {"name": "mine"}).startswith("name: unknown field")


@pytest.mark.parametrize("agent", [3, None, ["td7"]])
def test_agent_must_be_a_name(agent):
    error = f"agent: expected a name, got {agent!r}"
    assert error_of(ENV, {"agent": agent}) == error


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"env": ""}, "env: expected one or more different tasks"),
        (
            {"eval_every": 10, "eval_average": 3},
            "eval_average: expected a divisor of eval_every (10), got 3",
        ),
        (
            {"steps": 2_000_000_000, "utd": 2},
            "utd: expected at most 1 with 2000000000 steps, got 2",
        ),
        (
            {"probe_rows": 100},
            "diagnostics.probe_rows: expected at least diagnostics.probe_batch (4096), got 100",
        ),
        (
            {"agent": "simbav2", "lowest_value": 7},
            "agent.lowest_value: expected less than agent.highest_value (5.0), got 7.0",
        ),
        (
            {"agent": "simbav2", "highest_log_std": -10},
            "agent.lowest_log_std: expected less than agent.highest_log_std (-10.0), got -10.0",
        ),
    ],
)
def test_values_that_contradict_each_other_are_reported(values, error):
    assert error_of(ENV, values).startswith(error)


def test_env_is_required():
    assert error_of({}).startswith("env: expected one or more tasks, for example --env")
    assert resolve(ENV, {"eval_every": 10, "eval_average": 5}).eval_average == 5


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (RunConfig(), "env: expected one or more tasks"),
        (RunConfig(env=("A-v0",), steps=0), "steps: expected an integer >= 1, got 0"),
        (RunConfig(env=("A-v0",), seeds=(1, 1)), r"seeds: .*, got \(1, 1\)"),
        (RunConfig(env=("A-v0", "A-v0")), "env: expected one or more different tasks"),
        (RunConfig(TD7Config(width=0), ("A-v0",)), "agent.width: expected an integer"),
        (RunConfig(TD7Config("mine"), ("A-v0",)), "agent: expected one of td7, .*mine"),
        (
            RunConfig(MinPhiConfig("td7"), ("A-v0",)),
            "agent: expected TD7Config for 'td7', got MinPhiConfig",
        ),
    ],
)
def test_configs_built_in_python_are_validated(config, error):
    with pytest.raises(UserError, match=error):
        validate(config)


def test_validate_converts_numbers_and_changes_nothing_else():
    config = RunConfig(env=("A-v0",), seeds=(4,))
    assert validate(config) == config
    typed = validate(RunConfig(TD7Config(discount=1), ("A-v0",)))
    assert type(typed.agent.discount) is float


@pytest.mark.parametrize("agent", AGENTS)
def test_quick_preset_is_valid_for_every_agent(agent):
    config = resolve(quick_config(agent))
    assert config.env == ("cartpole-swingup",)
    assert config.warmup < config.steps
    assert config.agent.batch_size == (64 if agent.startswith("td7") else 128)
    assert config.steps == (13_000 if agent.startswith("td7") else 15_000)
    assert set(quick_config(agent)) <= {*flatten_config(config), "agent"}


def test_configs_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolve(ENV).steps = 3


SAVED = """
env = ["Pendulum-v1"]
warmup = 7
replay_size = 1000000
[agent]
name = "missing_module:Mine"
batch_size = 16
discount = 0.9
widths = [64, 32]
layers = ["a", "b"]
[agent.noise]
scale = 0.5
"""


def test_saved_config_is_readable_without_the_module_of_its_agent():
    config = resolve_toml(SAVED)
    assert config.agent.name == "missing_module:Mine"
    assert (config.agent.batch_size, config.agent.discount) == (16, 0.9)
    assert config.agent.widths == (64, 32)
    assert config.agent.layers == ("a", "b")
    assert config.agent.noise.scale == 0.5
    assert config.agent.representation is None
    default = run_defaults(config)
    assert changed_fields(config, default) == {"env": ("Pendulum-v1",)}
    assert experiment_name(config, default) == "missing_module.Mine_utd1"
    assert run_name(config).startswith("missing_module.Mine_Pendulum-v1_utd1_")
    with pytest.raises(UserError, match="agent: cannot import 'missing_module'"):
        validate(config)


def test_saved_config_of_a_known_agent_is_the_resolved_one():
    values = ENV | {"agent": "minphi", "width": 8}
    assert resolve_toml(to_toml(resolve(values))) == resolve(values)
    default = dataclasses.replace(default_config("minphi"), replay_size=100_000)
    assert run_defaults(resolve(values)) == default
    with pytest.raises(UserError, match="agent: expected one of td7"):
        resolve_toml('env = "Hopper-v5"\nagent = "td8"')
