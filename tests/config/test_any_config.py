"""Any config there can be: it is trained, or refused in a sentence."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from r2r2 import resolve, train
from r2r2.api import RunOptions, finalize_config
from r2r2.config.agents import AGENTS
from r2r2.config.errors import UserError
from r2r2.config.fields import HUGE, LARGEST, flatten_config
from r2r2.config.resolve import default_config
from r2r2.config.toml_io import parse_toml, to_toml
from r2r2.envs.spec import Spec
from r2r2.storage.run_folder import is_finished
from r2r2.training.memory import check_fits

# Ten steps of it are two episodes and a half: warm-up, bursts and evaluations.
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
INTEGERS = st.integers(-3, 300) | st.integers() | st.sampled_from([LARGEST, 2**20])
FLOATS = st.floats() | st.floats(0, 1) | st.integers(-1, 10**40)
ANY_VALUE = {
    int: INTEGERS,
    float: FLOATS,
    bool: st.booleans() | st.sampled_from(["true", "False", "no"]),
    str: st.sampled_from(["updates", "decisions"]) | WORDS,
    tuple[int, ...]: st.integers(-1, 1001) | st.lists(INTEGERS, max_size=4),
    tuple[str, ...]: st.lists(st.just("Pendulum-v1") | WORDS, max_size=2),
}
# What can be trained in a moment: sizes are small, other numbers may be anything.
SMALL = {
    int: st.integers(0, 9),
    float: st.floats(0, 1) | st.floats(1e-6, 1e6) | st.floats(-HUGE, HUGE),
    bool: st.booleans(),
    str: st.sampled_from(["updates", "decisions", "mixed", "tf32", "float32"]),
    tuple[int, ...]: st.sampled_from([1, 2, (7,), (2**31 - 1, 0)]),
}
FAMILIES = ("td7+r2r2", "minphi+r2r2", "simbav2", "simbav2-spl+r2r2")
FIXED = ("env", "steps", "action_repeat", "env_timeout", "agent.name")


@st.composite
def any_values(draw):
    """An agent and some of its fields, each with a value that may be right."""
    name = draw(st.sampled_from(sorted(AGENTS)))
    table = flatten_config(default_config(name))
    values = {"agent": name, "env": "Pendulum-v1"}
    for path in draw(st.lists(st.sampled_from(sorted(table)), max_size=4)):
        kind = ANY_VALUE[table[path].kind]
        values[path] = draw(kind if draw(st.integers(0, 9)) else WRONG)
    return values


@st.composite
def small_values(draw, name):
    """Fields of an agent that fit their ranges, if not always each other."""
    table = {
        p: x for p, x in flatten_config(default_config(name)).items() if p not in FIXED
    }
    sizes = {p for p, x in table.items() if p.startswith("agent.") and x.kind is int}
    others = draw(st.sets(st.sampled_from(sorted(table)), min_size=5, max_size=12))
    values = {path: draw(_small(table[path])) for path in sorted(sizes | others)}
    return {"agent": name, **TEN, **values}


def _small(leaf):
    if leaf.path.endswith("blocks"):
        return st.integers(1, 2)  # more take long to compile
    small = SMALL[leaf.kind]
    return small if leaf.path == "seeds" else small.filter(leaf.allowed.is_valid)


def check_sentence(refusal):
    assert str(refusal)
    assert "\n" not in str(refusal)


@settings(max_examples=60)
@given(any_values())
def test_a_config_is_one_that_can_be_built_or_is_refused_in_a_sentence(values):
    try:
        config = finalize_config(resolve(values))
        check_fits(config, Spec(obs_dim=3, action_dim=1))
    except UserError as refusal:
        check_sentence(refusal)
    else:
        assert finalize_config(resolve(parse_toml(to_toml(config)))) == config


def trains_ten_steps_or_is_refused(values, path):
    """What the issue asks of every config; gives whether it was trained."""
    try:
        config = finalize_config(resolve(values))
        result = train(config, path, options=RunOptions(workers=0, overwrite=True))
    except UserError as refusal:
        check_sentence(refusal)
        return False
    assert is_finished(path, to_toml(config))
    for member in result.members:
        stopped = member.name in result.stopped
        assert stopped or result.folder.weights(member.name).exists()
    return True


@pytest.mark.parametrize("agent", ["minphi"])
@settings(max_examples=1, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_config_trains_ten_steps_or_is_refused(tmp_path, agent, data):
    trains_ten_steps_or_is_refused(data.draw(small_values(agent)), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("agent", FAMILIES)
@settings(
    max_examples=2,
    phases=[Phase.generate],  # every smaller one is compiled again
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_any_config_trains_ten_steps_or_is_refused(tmp_path, agent, data):
    path = tmp_path / "run"
    trains_ten_steps_or_is_refused(data.draw(small_values(agent)), path)
