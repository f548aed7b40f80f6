import dataclasses
import re
import tomllib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from r2r2.cli.train_flags import parse_train
from r2r2.config.agents import AGENTS
from r2r2.config.errors import UserError
from r2r2.config.fields import flatten_config, replace_fields
from r2r2.config.resolve import PAIRS, default_config, resolve
from r2r2.config.toml_io import (
    NON_RESULT_FIELDS,
    digest,
    experiment_name,
    parse_toml,
    read_toml,
    run_name,
    safe_name,
    to_toml,
)

FIELDS = [
    (agent, path)
    for agent in AGENTS
    for path in flatten_config(default_config(agent))
    if path != "agent.name"
]
WORDS = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters=","))
KINDS = {
    int: st.integers(0, 10**7),
    float: st.floats(0, 1) | st.floats(0, 1e300),
    bool: st.booleans(),
    str: st.sampled_from(["updates", "decisions", "mixed", "tf32", "float32"]),
    tuple[int, ...]: st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple),
    tuple[str, ...]: st.lists(WORDS.map(str.strip), max_size=3).map(tuple),
}


@st.composite
def configs(draw):
    """Any config that is allowed: an agent, some tasks, and some fields changed."""
    plain = default_config(draw(st.sampled_from(sorted(AGENTS))))
    own = [path for agent, path in FIELDS if agent == plain.agent.name]
    chosen = draw(st.sets(st.sampled_from(own)))
    chosen = {"env"} | chosen - {"eval_average"}
    values = {}
    for path in sorted(chosen):
        leaf = flatten_config(plain)[path]
        values[path] = draw(KINDS[leaf.kind].filter(leaf.allowed.is_valid))
    config = replace_fields(plain, values)
    assume(config.steps * config.utd < 2**31)
    for pair in PAIRS:
        low, high = (getattr(config.agent, field, None) for field in pair)
        assume(low is None or low < high)
    return config


def as_text(value):
    if isinstance(value, tuple):
        return "".join(f"{item}," for item in value)
    return str(value)


def changed(path, config):
    """The config with one field changed to another value that is allowed."""
    leaf = flatten_config(config)[path]
    if leaf.kind is bool:
        value = not leaf.value
    elif leaf.kind is str:
        value = leaf.allowed.choices[-1]
    elif isinstance(leaf.value, tuple):
        value = ("dog-run",) if path == "env" else (7,)
    else:
        value = leaf.value + 1 if leaf.kind is int else leaf.value / 2 or 0.5
    return replace_fields(config, {path: value})


@given(configs())
def test_toml_brings_a_config_back(config):
    assert resolve(parse_toml(to_toml(config))) == config


@given(configs())
def test_the_command_line_reaches_every_field(config):
    flags = [
        f"--{path.replace('_', '-')}={as_text(leaf.value)}"
        for path, leaf in flatten_config(config).items()
        if path not in ("agent.name", "env")
    ]
    env = ",".join(config.env)
    read = parse_train([f"--agent={config.agent.name}", f"--env={env}", *flags])
    assert read.config == config


@pytest.mark.parametrize(("agent", "path"), FIELDS)
def test_every_field_has_one_name_in_a_file_and_on_the_command_line(agent, path):
    plain = dataclasses.replace(default_config(agent), env=("Hopper-v5",))
    config = changed(path, plain)
    assert config != plain
    values = tomllib.loads(to_toml(config))
    for part in path.split("."):
        values = values[part]
    layer = {"agent": agent, "env": "Hopper-v5"}
    assert resolve(layer, {path: values}) == config
    text = as_text(flatten_config(config)[path].value)
    flags = ["--agent", agent, "--env", "Hopper-v5"]
    for name in (path, path.replace("_", "-"), path.rpartition(".")[2]):
        given = [f"--{name}", text.removesuffix(",") if path == "env" else text]
        assert parse_train(flags + given).config == config


def test_a_file_may_use_tables_dots_dashes_and_short_names():
    text = """
    env = "Hopper-v5"
    seeds = 3
    agent.batch-size = 8
    lambda_rr = 0
    [agent.adam]
    beta1 = 0
    """
    config = resolve(parse_toml(text))
    assert config.seeds == (0, 1, 2)
    assert config.agent.batch_size == 8
    assert config.agent.representation.lambda_rr == 0.0
    assert config.agent.adam.beta1 == 0.0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"steps = = 1", r"Invalid value \(at line 1, column 9\)"),
        (b"\xff\xfe", "'utf-8' codec"),
        (b"steps = " + b"9" * 5000, "Exceeds the limit"),
        (b"steps = " + b"[" * 9000, "recursion"),
    ],
)
def test_a_file_that_is_no_toml_is_refused(tmp_path, content, reason):
    path = tmp_path / "c.toml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=reason) as refusal:
        read_toml(path)
    assert str(refusal.value).startswith(f"config is '{path}', which cannot be read: ")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"x.toml', .*: No such file or directory$"):
        read_toml(tmp_path / "x.toml")
    with pytest.raises(UserError, match=r"which cannot be read: Is a directory$"):
        read_toml(tmp_path)


@pytest.mark.parametrize(("agent", "path"), FIELDS)
def test_the_digest_hangs_on_every_field_but_seeds_steps_and_guards(agent, path):
    config = dataclasses.replace(default_config(agent), env=("Hopper-v5",))
    same = digest(changed(path, config)) == digest(config)
    assert same == (path in ("seeds", "steps", *NON_RESULT_FIELDS))


def test_the_digest_hangs_on_the_agent():
    assert digest(default_config("td7")) != digest(default_config("td7+r2r2"))
    assert re.fullmatch("[0-9a-f]{8}", digest(default_config("td7")))


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        ("Hopper-v5", "Hopper-v5"),
        ("my.package:Arm-v0", "my.package.Arm-v0"),
        ("ALE/Pong-v5", "ALE.Pong-v5"),
        ("A-v0,B-v0,C-v0", "A-v0+B-v0+C-v0"),
        ("A-v0,B-v0,C-v0,D-v0", "A-v0+3more"),
    ],
)
def test_a_runs_name_says_agent_tasks_and_utd(env, shown):
    config = resolve({"env": env, "utd": 20})
    assert run_name(config) == f"td7+r2r2_{shown}_utd20_{digest(config)}"


def test_a_safe_name_cannot_leave_its_folder():
    assert safe_name("../a:b\\c") == "...a.b.c"


def test_an_experiments_name_says_what_was_changed():
    plain = default_config("td7+r2r2")
    assert experiment_name(plain, plain) == "td7+r2r2_utd1"
    config = resolve(
        {
            "env": "Hopper-v5",
            "seeds": 5,
            "steps": 9,
            "utd": 20,
            "log_every": 3,
            "width": 64,
            "lambda_rr": 0,
            "policy_checkpoints": False,
            "eval_average": 2,
        }
    )
    assert experiment_name(config, plain) == (
        "td7+r2r2_width=64_lambda_rr=0.0_policy_checkpoints=False_eval_average=2_utd20"
    )


@pytest.mark.parametrize("agent", AGENTS)
def test_no_two_fields_share_the_end_that_names_them_in_an_experiment(agent):
    ends = [path.rpartition(".")[2] for name, path in FIELDS if name == agent]
    assert len(set(ends)) == len(ends)
