import pytest

from r2r2.config.errors import UserError, did_you_mean
from r2r2.config.fields import (
    ANY,
    LONGEST,
    FieldSpec,
    between,
    find_field,
    flatten_config,
    fraction_below,
    parse_value,
    replace_fields,
)
from r2r2.config.resolve import default_config

TABLE = flatten_config(default_config("td7+r2r2"))


def refused(leaf, value):
    with pytest.raises(UserError) as refusal:
        parse_value(leaf, value)
    return str(refusal.value)


@pytest.mark.parametrize("path", TABLE)
def test_every_field_has_help_and_allows_its_own_default(path):
    leaf = TABLE[path]
    if path not in ("agent.name", "env"):
        assert leaf.help
        assert parse_value(leaf, leaf.value) == leaf.value


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
    ],
)
def test_a_field_is_found_by_its_name_or_a_unique_end(name, path):
    assert find_field(TABLE, name).path == path


def test_half_a_word_is_no_end_of_a_name():
    with pytest.raises(UserError, match="'idth' is not a field; did you mean 'width'"):
        find_field(TABLE, "idth")


def test_an_end_that_two_fields_share_is_refused_with_both():
    table = {p: FieldSpec(p, int, 0, "", ANY) for p in ("a.size", "b.size", "size_of")}
    with pytest.raises(UserError) as refusal:
        find_field(table, "size")
    assert str(
        refusal.value
    ) == "'size' could be any of a.size, b.size; write one of " + ("these")
    assert find_field(table, "b.size").path == "b.size"


def test_a_name_of_its_own_goes_before_the_end_of_another():
    table = {p: FieldSpec(p, int, 0, "", ANY) for p in ("inner.size", "size")}
    assert find_field(table, "size").path == "size"


def test_a_name_far_from_all_is_sent_to_the_help():
    with pytest.raises(UserError) as refusal:
        find_field(TABLE, "zzzzzz")
    assert str(refusal.value) == "'zzzzzz' is not a field; see --help"


@pytest.mark.parametrize(
    ("path", "given", "value"),
    [
        ("steps", "500_000", 500_000),
        ("steps", 7, 7),
        ("agent.discount", "0.5", 0.5),
        ("agent.discount", 1, 1.0),
        ("agent.actor_rate", "1e-3", 1e-3),
        ("agent.policy_checkpoints", "false", False),
        ("agent.policy_checkpoints", "True", True),
        ("agent.policy_checkpoints", False, False),
        ("agent.assessment.count", "decisions", "decisions"),
        ("seeds", "5", (0, 1, 2, 3, 4)),
        ("seeds", 2, (0, 1)),
        ("seeds", "3,7,11", (3, 7, 11)),
        ("seeds", " 3, 7 ", (3, 7)),
        ("seeds", "3,", (3,)),
        ("seeds", [7, 3], (7, 3)),
        ("seeds", (7, 3), (7, 3)),
        ("seeds", str(LONGEST), tuple(range(LONGEST))),
        ("seeds", [2147483647], (2147483647,)),
        ("env", "Hopper-v5", ("Hopper-v5",)),
        ("env", "Hopper-v5, dog-run", ("Hopper-v5", "dog-run")),
        ("env", ["Hopper-v5", "dog-run"], ("Hopper-v5", "dog-run")),
    ],
)
def test_values_are_read_as_the_fields_type(path, given, value):
    read = parse_value(TABLE[path], given)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "value",
    ["0", "-5", 0, "1.5", 1.5, 2.0, "1e5", "", "many", True, "true", [1], None, "nan"],
)
def test_a_whole_number_is_nothing_else(value):
    words = f"steps is {value!r}; allowed is a whole number from 1 to 2147483647"
    assert refused(TABLE["steps"], value) == words


@pytest.mark.parametrize(
    "value",
    ["nan", "inf", "-inf", "-0.1", -1, float("nan"), float("inf"), True, 10**400, []],
)
def test_a_weight_is_finite_and_not_negative(value):
    path = "agent.representation.lambda_rr"
    words = f"{path} is {value!r}; allowed is a number from 0 to 1e+18"
    assert refused(TABLE[path], value) == words


def test_the_ends_of_ranges_are_as_their_words_say():
    assert parse_value(TABLE["agent.representation.lambda_rr"], "0") == 0
    assert "a number above 0, up to 1e+18" in refused(TABLE["agent.adam.epsilon"], "0")
    assert "a number above 0, up to 1e+18" in refused(
        TABLE["agent.adam.epsilon"], "inf"
    )
    assert "from 0 to 1" in refused(TABLE["agent.discount"], "1.01")
    assert "from 0 to 1" in refused(TABLE["agent.discount"], "nan")
    assert parse_value(TABLE["agent.discount"], "1") == 1
    assert "from 0 to below 1" in refused(TABLE["agent.adam.beta1"], "1")
    assert parse_value(TABLE["agent.adam.beta1"], "0") == 0
    assert not fraction_below(1).is_valid(float("nan"))
    assert not between(0, 1).is_valid(float("inf"))


@pytest.mark.parametrize("value", ["y", 1, 0, "", None, [True]])
def test_a_truth_value_is_nothing_else(value):
    path = "agent.policy_checkpoints"
    assert refused(TABLE[path], value) == f"{path} is {value!r}; allowed is " + (
        "true or false"
    )


@pytest.mark.parametrize("value", ["steps", "", 3, True])
def test_a_word_is_one_of_those_allowed(value):
    path = "agent.assessment.count"
    assert refused(TABLE[path], value) == f"{path} is {value!r}; allowed is " + (
        "one of updates, decisions"
    )


@pytest.mark.parametrize(
    "value",
    [
        *("0", 0, "-1", -1, "", ",", "1,,2", ",1", "1,1", [1, 1], "-1,2", [-1], "x"),
        *([], [1.5], [True], 1.5, True, "1.5", "2147483648,", [2**31], None),
        *("1001", 1001),
    ],
)
def test_seeds_are_a_count_or_different_numbers(value):
    assert refused(TABLE["seeds"], value) == f"seeds is {value!r}; allowed is " + (
        "a count up to 1000 (5 is seeds 0 to 4) or a list of different seeds from 0 to "
        "2147483647 (3,7,11)"
    )


@pytest.mark.parametrize(
    "value", ["", ",", "Hopper-v5,", "Ant-v5,Ant-v5", [], [""], [3], 3, True, None]
)
def test_tasks_are_different_names(value):
    assert refused(TABLE["env"], value) == f"env is {value!r}; allowed is " + (
        "one task or several different ones, separated by commas"
    )


def test_replacing_changes_the_named_fields_alone():
    before = default_config("td7")
    after = replace_fields(before, {"steps": 7, "agent.adam.beta1": 0.5})
    changed = {
        path: leaf.value
        for path, leaf in flatten_config(after).items()
        if leaf.value != flatten_config(before)[path].value
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
def test_near_names_are_offered(value, clause):
    assert did_you_mean(value, ["Hopper-v5", "Ant-v4", "Ant-v5"]) == clause


def test_no_more_names_are_offered_than_asked():
    names = ["lambda_rr", "lambda_var", "lambda_spl", "lambda_x"]
    assert did_you_mean("lambda", names).count("'") == 6
    assert did_you_mean("lambda", names, most=1).count("'") == 2
