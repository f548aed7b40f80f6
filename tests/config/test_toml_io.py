import dataclasses
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from r2r2.cli.train import parse_train
from r2r2.config.agents import AGENTS
from r2r2.config.errors import UserError
from r2r2.config.fields import JsonObject, flatten_config, parse_json_object, replace_fields
from r2r2.config.resolve import default_config, offline_rows, resolve
from r2r2.config.toml_io import (
    ADDED_FIELDS,
    NON_RESULT_FIELDS,
    digest,
    experiment_name,
    parse_toml,
    read_toml,
    run_name,
    safe_name,
    to_toml,
)

FAMILIES = ("td7+r2r2", "minphi+r2r2", "simbav2-spl+r2r2")
NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters=","))
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KINDS = {
    int: st.integers(0, 10**7),
    float: st.floats(0, 1) | st.floats(0, 1e300),
    bool: st.booleans(),
    tuple[int, ...]: st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple),
    tuple[str, ...]: st.lists(NAMES.map(str.strip), max_size=3).map(tuple),
    JsonObject: st.dictionaries(st.text(), JSON_VALUES, max_size=3).map(parse_json_object),
}


# Fields of data to start from, which need the data, too.
NEED_PREFILL = {"prefill_sha256", "prefill_only_updates", "mix"}
NEED_INIT_FROM = {"init_from_sha256"}
STARTS = {"prefill": "data.npz", "init_from": "runs/x"}


def texts(field):
    """Allowed values of a field that is a string."""
    if field.allowed.choices:
        return st.sampled_from(field.allowed.choices)
    if field.path.endswith(".extra"):
        return st.sampled_from(["", "losses:term", "a.b:c"])
    return st.sampled_from(["a" * 64, ""]) if "sha256" in field.path else NAMES.filter(str.strip)


def fields_of(agent):
    table = flatten_config(default_config(agent))
    del table["agent.name"]
    return table


@st.composite
def configs(draw):
    """A valid config: an agent, some tasks, and some changed fields."""
    agent = draw(st.sampled_from(sorted(AGENTS)))
    table = fields_of(agent)
    paths = draw(st.sets(st.sampled_from(sorted(table))))
    paths |= {"prefill"} if paths & NEED_PREFILL else set()
    paths |= {"init_from"} if paths & NEED_INIT_FROM else set()
    values = {}
    for path in sorted({"env"} | paths - {"eval_average"}):
        kind, allowed = table[path].kind, table[path].allowed
        values[path] = draw(
            texts(table[path]) if kind is str else KINDS[kind].filter(allowed.is_valid)
        )
    config = replace_fields(default_config(agent), values)
    assume(config.steps * config.utd < 2**31)
    assume(config.diagnostics.probe_batch <= config.diagnostics.probe_rows)
    assume(config.steps > config.warmup or config.random_only)
    assume(not (config.prefill_only_updates and config.random_only))
    assume(not (config.overlap_acting and config.agent.policy_checkpoints))
    batch = config.agent.batch_size
    assume(not config.mix or 0 < offline_rows(config.mix, batch) < batch)
    try:
        config.agent.check()
        if config.agent.representation is not None:
            config.agent.representation.check()
    except UserError:
        assume(False)
    return config


def as_text(value):
    if isinstance(value, tuple):
        return "".join(f"{item}," for item in value)
    return str(value)


def changed(field):
    """Another value of a field that is allowed."""
    if field.kind is bool:
        return not field.value
    if field.kind is JsonObject:
        return JsonObject('{"gravity": 9.8}')
    if field.kind is str:
        other = "a" * 64 if "sha256" in field.path else "losses:term"
        return field.allowed.choices[-1] if field.allowed.choices else other
    if field.path.endswith(".lambda_extra"):
        return 0.0  # others need the field `extra`
    if isinstance(field.value, tuple):
        return ("dog-run",) if field.path == "env" else (7,)
    if field.path == "replay_size":
        return 9
    if field.path == "stop_at_return":
        return -0.5
    return field.value + 1 if field.kind is int else field.value / 2 or 0.5


@settings(max_examples=50)
@given(configs())
def test_toml_and_command_line_restore_any_config(config):
    assert resolve(parse_toml(to_toml(config))) == config
    options = [
        f"--{path.replace('_', '-')}={as_text(field.value)}"
        for path, field in flatten_config(config).items()
        if path not in ("agent.name", "env")
    ]
    env = ",".join(config.env)
    command = parse_train([f"--agent={config.agent.name}", f"--env={env}", *options])
    assert command.config == config


@pytest.mark.parametrize("agent", FAMILIES)
def test_every_field_has_the_same_names_in_files_and_on_the_command_line(agent):
    default = dataclasses.replace(default_config(agent), env=("Hopper-v5",), **STARTS)
    for path, field in fields_of(agent).items():
        if path == "overlap_acting" and default.agent.policy_checkpoints:
            continue  # refused
        config = replace_fields(default, {path: changed(field)})
        assert config != default
        value = parse_toml(to_toml(config))[path]
        layer = {"agent": agent, "env": "Hopper-v5"} | STARTS
        assert resolve(layer, {path: value}) == config
        text = as_text(changed(field)).removesuffix("," if path == "env" else "")
        options = ["--agent", agent, "--env", "Hopper-v5"]
        for name, start in STARTS.items():
            options += [f"--{name.replace('_', '-')}", start] if name != path else []
        for name in (path, path.rpartition(".")[2].replace("_", "-")):
            assert parse_train([*options, f"--{name}", text]).config == config


def test_files_may_use_tables_dots_dashes_and_short_names():
    text = """
    env = "Hopper-v5"
    seeds = 3
    agent.batch-size = 8
    lambda_rr = 0
    [agent.adam]
    beta1 = 0
    [compute]
    fast = false
    """
    config = resolve(parse_toml(text))
    assert config.seeds == (0, 1, 2)
    assert config.agent.batch_size == 8
    assert config.agent.representation.lambda_rr == 0.0
    assert config.agent.adam.beta1 == 0.0
    assert not config.compute.fast


@pytest.mark.parametrize(
    "options", [["--compute.fast", "off"], ["--no-fast"], ["--fast", "no"], ["--fast=false"]]
)
def test_fast_can_be_switched_off(options):
    command = parse_train(["--env", "Hopper-v5", "--precision", "tf32", *options])
    assert not command.config.compute.fast
    assert command.config.precision == "tf32"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"steps = = 1", r"Invalid value \(at line 1, column 9\)"),
        (b"\xff\xfe", "'utf-8' codec"),
        (b"steps = " + b"9" * 5000, "Exceeds the limit"),
        (b"steps = " + b"[" * 9000, "recursion"),
        (b"#" * 200_000, "longer than 131072 bytes"),
        (b"a" + b".a" * 101 + b" = 1", "more than 100 dots in line 1"),
    ],
)
def test_invalid_toml_is_reported_with_the_file(tmp_path, content, reason):
    path = tmp_path / "c.toml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=reason) as error:
        read_toml(path)
    assert str(error.value).startswith(f"{path}: cannot read: ")


def test_missing_file_is_reported(tmp_path):
    with pytest.raises(UserError, match=r"x.toml: .*: No such file or directory$"):
        read_toml(tmp_path / "x.toml")
    with pytest.raises(UserError, match=r": cannot read: Is a directory$"):
        read_toml(tmp_path)


@pytest.mark.parametrize("agent", FAMILIES)
def test_digest_depends_on_every_field_except_seeds_steps_and_limits(agent):
    config = dataclasses.replace(default_config(agent), env=("Hopper-v5",))
    for path, field in fields_of(agent).items():
        same = digest(replace_fields(config, {path: changed(field)})) == digest(config)
        assert same == (path in ("seeds", "steps", *NON_RESULT_FIELDS)), path


def test_digest_of_default_settings_stays_the_same():
    """Run folders of earlier versions keep their names."""
    settled = {"env": ("Hopper-v5",), "replay_size": 1_000_000}
    digests = {x: digest(dataclasses.replace(default_config(x), **settled)) for x in AGENTS}
    assert len(set(digests.values())) == len(AGENTS)
    assert all(re.fullmatch("[0-9a-f]{8}", value) for value in digests.values())
    assert digests["td7"] == "0eed0b4b"
    assert digests["simbav2-spl+r2r2"] == "82be36ed"
    table = flatten_config(default_config("td7"))
    assert all(table[path].value == value for path, value in ADDED_FIELDS.items())


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
def test_run_name_consists_of_agent_tasks_utd_and_digest(env, shown):
    config = resolve({"env": env, "utd": 20})
    assert run_name(config) == f"td7+r2r2_{shown}_utd20_{digest(config)}"


def test_safe_name_stays_within_its_folder():
    assert safe_name("../a:b\\c") == "...a.b.c"


def test_experiment_name_lists_changed_fields():
    default = default_config("td7+r2r2")
    assert experiment_name(default, default) == "td7+r2r2_utd1"
    config = resolve(
        {
            "env": "Hopper-v5",
            "seeds": 5,
            "steps": 90_000,
            "utd": 20,
            "log_every": 3,
            "probe_batch": 64,
            "probe_rows": 128,
            "width": 64,
            "lambda_rr": 0,
            "policy_checkpoints": False,
            "eval_average": 2,
            "precision": "float32",
        }
    )
    assert experiment_name(config, default) == (
        "td7+r2r2_width=64_lambda_rr=0.0_policy_checkpoints=False_eval_average=2"
        "_precision=float32_utd20"
    )


@pytest.mark.parametrize("agent", AGENTS)
def test_last_parts_of_field_names_are_unique(agent):
    """They name fields on the command line and in names of experiments."""
    names = [path.rpartition(".")[2] for path in fields_of(agent)]
    assert len(set(names)) == len(names)
