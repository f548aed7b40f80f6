import dataclasses
import sys

import pytest

from r2r2.config.agent_configs import TD7Config
from r2r2.config.agents import AGENTS, AgentSpec, agent_config, agent_spec, register_agent
from r2r2.config.common import AgentConfig, TaskInfo
from r2r2.config.errors import UserError
from r2r2.config.resolve import default_config


def error_of(name):
    with pytest.raises(UserError) as error:
        agent_spec(name)
    return str(error.value)


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """Return a function that writes a module of a user and returns its name."""

    def write(text, name="user_agents"):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


def test_every_agent_has_its_name_in_its_config():
    for name, spec in AGENTS.items():
        assert spec.name == spec.config.name == default_config(name).agent.name == name


def test_warmup_is_that_of_the_releases():
    for name in AGENTS:
        assert default_config(name).warmup == (25_000 if "td7" in name else 5_000)


def test_agents_with_r2r2_differ_from_their_base_in_two_weights():
    pairs = {name: spec.base for name, spec in AGENTS.items() if spec.base}
    assert pairs == {name: name.removesuffix("+r2r2") for name in AGENTS if "+" in name}
    for name, base in pairs.items():
        weights = dataclasses.replace(agent_config(name).representation, lambda_rr=0, lambda_var=0)
        plain = dataclasses.replace(agent_config(name), name=base, representation=weights)
        assert plain == agent_config(base)


@pytest.mark.parametrize(
    ("name", "near"), [("td8", "; did you mean 'td7'"), ("TD7", "; did you mean 'td7'"), ("", "")]
)
def test_unknown_agent_is_reported_with_all_agents(name, near):
    error = error_of(name)
    assert error.startswith("agent: expected one of td7, td7+r2r2, td7-ln")
    assert f"or module:NAME, got {name!r}{near}" in error


def test_simbav2_with_r2r2_points_to_the_agent_with_an_encoder():
    error = error_of("simbav2+r2r2")
    assert error.endswith("SimbaV2 has no encoder; did you mean 'simbav2-spl+r2r2'?")


def test_register_agent_names_the_config_and_refuses_a_taken_name():
    spec = AgentSpec("mine", TD7Config(width=8), "r2r2.agents.td7:td7")
    try:
        assert register_agent(spec).config == TD7Config("mine", width=8)
        assert agent_spec("mine").warmup == 5_000
        with pytest.raises(UserError, match="agent: 'mine' is already registered"):
            register_agent(spec)
        register_agent(dataclasses.replace(spec, warmup=3), replace=True)
        assert default_config("mine").warmup == 3
    finally:
        del AGENTS["mine"]
    for name in ("", "my:agent"):
        with pytest.raises(UserError, match="agent: expected a name without ':'"):
            register_agent(dataclasses.replace(spec, name=name))


def test_agent_of_a_user_module_is_named_by_its_path(user_module):
    module = user_module(
        "from r2r2 import AgentSpec, TD7Config\n"
        "MINE = AgentSpec('ignored', TD7Config(width=8), print, warmup=3)\n"
    )
    spec = agent_spec(f"{module}:MINE")
    assert spec.name == spec.config.name == f"{module}:MINE"
    assert default_config(f"{module}:MINE").warmup == 3


@pytest.mark.parametrize(
    ("text", "attribute", "error"),
    [
        ("1 / 0", "X", "agent: cannot import '{}' (ZeroDivisionError: division"),
        ("exit('a\\nb')", "X", "agent: cannot import '{}' (SystemExit: a b)"),
        ("", "X", "agent: '{}' has no attribute 'X'"),
        ("X = 3", "X", "agent: expected an AgentSpec at '{}:X', got 3"),
        (
            "from r2r2 import AgentSpec, TD7Config as C\nTD3 = AgentSpec('', C(), '')",
            "TD4",
            "agent: '{}' has no attribute 'TD4'; did you mean 'TD3'?",
        ),
    ],
)
def test_errors_of_user_modules(user_module, text, attribute, error):
    module = user_module(text)
    assert error_of(f"{module}:{attribute}").startswith(error.format(module))


def test_missing_module_is_reported():
    assert error_of("no_such_module:X") == (
        "agent: cannot import 'no_such_module' (ModuleNotFoundError: No module named "
        "'no_such_module')"
    )


def test_agent_config_defaults_and_required_settings():
    @dataclasses.dataclass(frozen=True)
    class Mine(AgentConfig):
        batch_size: int = 8
        discount: float = 0.9

    config = Mine("mine")
    assert config.representation is config.normalization is None
    assert not config.policy_checkpoints
    assert not config.depends_on_run_length
    assert config.for_task(TaskInfo("Hopper-v5", "gymnasium", lambda: None)) is config
    with pytest.raises(TypeError, match="batch_size"):
        AgentConfig("incomplete")


@pytest.mark.parametrize(
    ("agent", "values", "depends"),
    [
        ("td7", {}, False),
        ("simbav2", {}, True),
        ("simbav2", {"last_rate": 1e-4}, False),
        ("simbav2-spl", {"last_rate": 1e-4}, True),
        ("simbav2-spl", {"last_rate": 1e-4, "encoder_last_rate": 3e-4}, False),
    ],
)
def test_learning_rate_schedules_depend_on_the_run_length(agent, values, depends):
    config = dataclasses.replace(agent_config(agent), **values)
    assert config.depends_on_run_length == depends
