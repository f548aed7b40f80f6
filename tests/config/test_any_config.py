"""Any config is either trained or reported in one sentence."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from r2r2 import resolve, train
from r2r2.api import RunFailed, RunOptions, ended_run
from r2r2.config.agents import AGENTS
from r2r2.config.errors import UserError
from r2r2.config.fields import MAX_FLOAT, MAX_INT, JsonObject, flatten_config
from r2r2.config.resolve import default_config
from r2r2.config.toml_io import parse_toml, to_toml
from r2r2.envs.spec import Spec
from r2r2.training.memory import check_fits
from r2r2.training.run_config import finalize_config

# Ten steps are two and a half episodes: warm-up, updates and evaluations.
TEN = {
    "env": "Pendulum-v1",
    "action_repeat": 50,
    "steps": 10,
    "warmup": 2,
    "eval_every": 5,
    "eval_episodes": 1,
    "log_every": 3,
    "replay_size": 30,
}
WRONG = st.sampled_from(["", "x", "-", None, True, -1, 1.5, [], [[]], {}, "1,,2", b"1"])
WORDS = st.text(max_size=5)
INTEGERS = st.integers(-3, 300) | st.integers() | st.sampled_from([MAX_INT, 2**20])
FLOATS = st.floats() | st.floats(0, 1) | st.integers(-1, 10**40)
ANY_VALUE = {
    int: INTEGERS,
    float: FLOATS,
    bool: st.booleans() | st.sampled_from(["true", "False", "no"]),
    str: st.sampled_from(["updates", "decisions"]) | WORDS,
    tuple[int, ...]: st.integers(-1, 1001) | st.lists(INTEGERS, max_size=4),
    tuple[str, ...]: st.lists(st.just("Pendulum-v1") | WORDS, max_size=2),
    JsonObject: st.sampled_from(["{}", '{"g": 9}', {"g": 9.0}, '{"k": 1}', "[]"]) | WORDS,
}
# Settings that train quickly: small sizes, other numbers within their ranges.
SMALL = {
    int: st.integers(0, 9),
    float: st.floats(0, 1) | st.floats(1e-6, 1e6) | st.floats(-MAX_FLOAT, MAX_FLOAT),
    bool: st.booleans(),
    tuple[int, ...]: st.sampled_from([1, 2, (7,), (2**31 - 1, 0)]),
    JsonObject: st.sampled_from(['{"g": 9.0}', {"g": 3}]),
}
FAMILIES = ("td7+r2r2", "minphi+r2r2", "simbav2", "simbav2-spl+r2r2")
FIXED = ("env", "steps", "action_repeat", "env_timeout", "agent.name")


@st.composite
def any_values(draw):
    """An agent and some of its fields, with values that may be valid."""
    name = draw(st.sampled_from(sorted(AGENTS)))
    table = flatten_config(default_config(name))
    values = {"agent": name, "env": "Pendulum-v1"}
    for path in draw(st.lists(st.sampled_from(sorted(table)), max_size=4)):
        kind = ANY_VALUE[table[path].kind]
        values[path] = draw(kind if draw(st.integers(0, 9)) else WRONG)
    return values


@st.composite
def small_values(draw, name):
    """Fields of an agent within their ranges; they may contradict each other."""
    table = {p: x for p, x in flatten_config(default_config(name)).items() if p not in FIXED}
    sizes = {p for p, x in table.items() if p.startswith("agent.") and x.kind is int}
    others = draw(st.sets(st.sampled_from(sorted(table)), min_size=5, max_size=12))
    values = {path: draw(_small(table[path])) for path in sorted(sizes | others)}
    return {"agent": name, **TEN, **values}


def _small(field):
    if field.path.endswith("blocks"):
        return st.integers(1, 2)  # more blocks take long to compile
    if field.allowed.choices:
        return st.sampled_from(field.allowed.choices)
    small = SMALL[field.kind]
    return small if field.path == "seeds" else small.filter(field.allowed.is_valid)


def check_sentence(error):
    assert str(error)
    assert "\n" not in str(error)


@settings(max_examples=25)
@given(any_values())
def test_any_config_is_valid_or_reported_in_one_sentence(values):
    try:
        config = finalize_config(resolve(values))
        check_fits(config, Spec(obs_dim=3, action_dim=1))
    except UserError as error:
        check_sentence(error)
    else:
        assert finalize_config(resolve(parse_toml(to_toml(config)))) == config


def train_ten_steps_or_report(values, path):
    """Train ten steps with a config, unless it is invalid."""
    try:
        config = finalize_config(resolve(values))
        result = train(config, path, options=RunOptions(workers=0, overwrite=True))
    except UserError as error:
        check_sentence(error)
        return
    except RunFailed as failure:
        result = failure.result
    assert ended_run(config, path)
    for member in result.members:
        stopped = member.name in result.stopped
        assert stopped or result.folder.weights(member.name).exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::r2r2.config.errors.StoppedMembersWarning")
@pytest.mark.parametrize("agent", FAMILIES)
@settings(
    max_examples=2,
    phases=[Phase.generate],  # shrinking would compile every smaller config
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_any_config_trains_ten_steps_or_is_reported(tmp_path, agent, data):
    path = tmp_path / "run"
    train_ten_steps_or_report(data.draw(small_values(agent)), path)
