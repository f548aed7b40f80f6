import pytest

from r2r2.config.agents import AGENTS
from r2r2.config.errors import UserError, did_you_mean
from r2r2.config.fields import (
    ANY,
    MAX_COUNT,
    SYNONYMS,
    FieldSpec,
    between,
    find_field,
    flatten_config,
    fraction_below,
    parse_value,
    replace_fields,
)
from r2r2.config.resolve import default_config

TABLES = [flatten_config(default_config(agent)) for agent in AGENTS]
TABLE = flatten_config(default_config("td7+r2r2"))


def error_of(path, value):
    with pytest.raises(UserError) as error:
        parse_value(TABLE[path], value)
    return str(error.value)


@pytest.mark.parametrize("agent", AGENTS)
def test_every_field_has_help_and_a_valid_default(agent):
    for path, field in flatten_config(default_config(agent)).items():
        if path not in ("agent.name", "env"):
            assert field.help, path
            assert parse_value(field, field.value) == field.value


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("width", "agent.width"),
        ("agent.width", "agent.width"),
        ("lambda-rr", "agent.representation.lambda_rr"),
        ("lambda_rr", "agent.representation.lambda_rr"),
        ("representation.lambda-rr", "agent.representation.lambda_rr"),
        ("agent.representation.lambda-rr", "agent.representation.lambda_rr"),
        ("eval-every", "eval_every"),
        ("fast", "compute.fast"),
    ],
)
def test_field_is_found_by_its_name_or_a_unique_suffix(name, path):
    assert find_field(TABLE, name).path == path


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("idth", "idth: unknown field; did you mean 'width'?"),
        ("agent.widht", "agent.widht: unknown field; did you mean 'agent.width'?"),
        ("zzzzzz", "zzzzzz: unknown field; see r2r2 train --help"),
        ("gamma", "gamma: unknown field; did you mean 'discount'?"),
        ("agent.gamma", "agent.gamma: unknown field; did you mean 'agent.discount'?"),
        ("algo", "algo: unknown field; did you mean 'agent'?"),
        (
            "learning-rate",
            "learning-rate: unknown field; did you mean 'encoder_rate' or 'critic_rate' or "
            "'actor_rate'?",
        ),
    ],
)
def test_unknown_field_suggests_a_near_name(name, error):
    with pytest.raises(UserError) as raised:
        find_field(TABLE, name)
    assert str(raised.value) == error


def test_synonyms_name_fields_and_are_none_themselves():
    options = {"agent", "out", "workers"}  # of the command line alone
    names = options.union(*({x.rpartition(".")[2] for x in table} for table in TABLES))
    assert SYNONYMS.keys() <= names
    assert names.isdisjoint(word for words in SYNONYMS.values() for word in words.split())


def test_suffix_of_two_fields_is_ambiguous():
    table = {p: FieldSpec(p, int, 0, "", ANY) for p in ("a.size", "b.size", "size_of")}
    with pytest.raises(UserError) as error:
        find_field(table, "size")
    assert str(error.value) == "size: ambiguous field; expected a.size or b.size"
    assert find_field(table, "b.size").path == "b.size"


def test_full_name_takes_precedence_over_a_suffix():
    table = {p: FieldSpec(p, int, 0, "", ANY) for p in ("inner.size", "size")}
    assert find_field(table, "size").path == "size"


@pytest.mark.parametrize(
    ("path", "given", "value"),
    [
        ("steps", "500_000", 500_000),
        ("steps", 7, 7),
        ("steps", "1e4", 10_000),
        ("steps", " 10k ", 10_000),
        ("steps", "10K", 10_000),
        ("steps", "2.5M", 2_500_000),
        ("steps", "1_0e+3", 10_000),
        ("steps", 1e4, 10_000),
        ("agent.batch_size", "1k", 1_000),
        ("agent.discount", "0.5", 0.5),
        ("agent.discount", 1, 1.0),
        ("agent.discount", "1", 1.0),
        ("agent.actor_rate", "1e-3", 1e-3),
        ("agent.representation.lambda_rr", "0", 0.0),
        ("agent.adam.beta1", "0", 0.0),
        ("compute.fast", "false", False),
        ("compute.fast", "True", True),
        ("compute.fast", "off", False),
        ("compute.fast", "on", True),
        ("compute.fast", "no", False),
        ("compute.fast", "Yes", True),
        ("compute.fast", False, False),
        ("precision", "tf32", "tf32"),
        ("agent.assessment.count", "decisions", "decisions"),
        ("seeds", "5", (0, 1, 2, 3, 4)),
        ("seeds", 2, (0, 1)),
        ("seeds", "3,7,11", (3, 7, 11)),
        ("seeds", " 3, 7 ", (3, 7)),
        ("seeds", "3,", (3,)),
        ("seeds", "1e1,2k", (10, 2_000)),
        ("seeds", 2.0, (0, 1)),
        ("seeds", [7, 3], (7, 3)),
        ("seeds", (7, 3), (7, 3)),
        ("seeds", str(MAX_COUNT), tuple(range(MAX_COUNT))),
        ("seeds", [2147483647], (2147483647,)),
        ("env", "Hopper-v5", ("Hopper-v5",)),
        ("env", "Hopper-v5, dog-run", ("Hopper-v5", "dog-run")),
        ("env", ["Hopper-v5", "dog-run"], ("Hopper-v5", "dog-run")),
    ],
)
def test_values_are_converted_to_the_type_of_the_field(path, given, value):
    parsed = parse_value(TABLE[path], given)
    assert parsed == value
    assert type(parsed) is type(value)


SEEDS = "a count up to 1000 (5 means seeds 0 to 4) or different seeds from 0 to 2147483647 (3,7,11)"
WEIGHT = "agent.representation.lambda_rr"


@pytest.mark.parametrize(
    ("path", "expected", "values"),
    [
        (
            "steps",
            "an integer >= 1",
            [
                *("0", "-5", 0, "1.5", 1.5, "", "x", True, "true", [1], None, "1e-1", "1.0001k"),
                *("k", "10kk", "10 k", "1e999", "1e", "_1", "9" * 5000, float("inf"), b"1"),
            ],
        ),
        ("steps", "an integer <= 2147483647", [2**31, "3000000000", 10**40, "1e99", 1e300, "3e3M"]),
        (
            WEIGHT,
            "a number from 0 to 1e+18",
            ["nan", "inf", "-inf", "-0.1", -1, float("nan"), True, 10**400, [], "9e18"],
        ),
        ("agent.adam.epsilon", "a number > 0 and <= 1e+18", ["0", "inf"]),
        ("agent.adam.beta1", "a number >= 0 and < 1", ["1"]),
        ("agent.discount", "a number from 0 to 1", ["1.01", "nan"]),
        ("agent.policy_checkpoints", "true or false", ["y", 1, 0, "", None, [True]]),
        ("agent.assessment.count", "one of updates, decisions", ["steps", "", 3, True]),
        ("precision", "one of tf32, mixed, float32", ["float16", ""]),
        (
            "seeds",
            SEEDS,
            [
                *("0", 0, "-1", -1, "", ",", "1,,2", ",1", "1,1", [1, 1], "-1,2", [-1]),
                *("x", [], [1.5], [True], 1.5, True, "1.5", "2147483648,", [2**31]),
                *(None, "1001", 1001),
            ],
        ),
        (
            "env",
            "one or more different tasks, separated by commas",
            ["", ",", "Hopper-v5,", "Ant-v5,Ant-v5", [], [""], [3], 3, True, None],
        ),
    ],
)
def test_invalid_values_are_reported_with_the_allowed_ones(path, expected, values):
    for value in values:
        assert error_of(path, value) == f"{path}: expected {expected}, got {value!r}"


def test_ranges_exclude_nan_and_infinity():
    assert not fraction_below(1).is_valid(float("nan"))
    assert not between(0, 1).is_valid(float("inf"))


def test_replace_fields_changes_only_the_named_fields():
    before = default_config("td7")
    after = replace_fields(before, {"steps": 7, "agent.adam.beta1": 0.5})
    changed = {
        path: field.value
        for path, field in flatten_config(after).items()
        if field.value != flatten_config(before)[path].value
    }
    assert changed == {"steps": 7, "agent.adam.beta1": 0.5}


@pytest.mark.parametrize(
    ("value", "clause"),
    [
        ("Hoper-v5", "; did you mean 'Hopper-v5'?"),
        ("HOPPER-V5", "; did you mean 'Hopper-v5'?"),
        ("ant", "; did you mean 'Ant-v5' or 'Ant-v4'?"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_did_you_mean_offers_near_names(value, clause):
    assert did_you_mean(value, ["Hopper-v5", "Ant-v4", "Ant-v5"]) == clause


def test_did_you_mean_limits_the_number_of_names():
    names = ["lambda_rr", "lambda_var", "lambda_spl", "lambda_x"]
    assert did_you_mean("lambda", names).count("'") == 6
    assert did_you_mean("lambda", names, most=1).count("'") == 2
