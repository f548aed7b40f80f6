import pytest

from r2r2.cli.argparser import fields_help, split, texts
from r2r2.config.errors import UserError
from r2r2.config.fields import ANY, FieldSpec, flatten_config
from r2r2.config.resolve import default_config

TABLE = flatten_config(default_config("td7"))


@pytest.mark.parametrize(
    ("argv", "options", "alone"),
    [
        ([], (), ()),
        (["--steps", "5"], (("steps", "5"),), ()),
        (["--steps=5"], (("steps", "5"),), ()),
        (["--steps=a=b"], (("steps", "a=b"),), ()),
        (["--steps="], (("steps", ""),), ()),
        (["--steps=", "5"], (("steps", ""),), ("5",)),
        (["--batch-size", "5"], (("batch_size", "5"),), ()),
        (["--out", "my-run_1"], (("out", "my-run_1"),), ()),
        (["--seeds", "-1,2"], (("seeds", "-1,2"),), ()),
        (["--quick", "--steps", "5"], (("quick", None), ("steps", "5")), ()),
        (["RUN", "--steps", "5", "6"], (("steps", "5"),), ("RUN", "6")),
        (["--"], (("", None),), ()),
    ],
)
def test_a_command_line_is_names_with_values_and_what_stands_alone(
    argv, options, alone
):
    assert split(argv) == (options, alone)


def test_a_truth_value_needs_no_value_and_may_have_one():
    path = "agent.policy_checkpoints"
    for name in ("policy_checkpoints", path):
        assert texts([(name, None)], TABLE) == {path: "true"}
        assert texts([(name, "false")], TABLE) == {path: "false"}
        assert texts([(f"no_{name}", None)], TABLE) == {path: "false"}


def test_no_with_a_value_is_refused():
    with pytest.raises(UserError) as refusal:
        texts([("no_policy_checkpoints", "3")], TABLE)
    said = "no_policy_checkpoints is '3'; allowed is no value at all"
    assert str(refusal.value) == said


def test_of_two_values_the_later_counts():
    assert texts([("width", "1"), ("agent.width", "2")], TABLE) == {"agent.width": "2"}


def test_other_fields_without_a_value_have_an_empty_one():
    assert texts([("steps", None)], TABLE) == {"steps": ""}


def test_help_shows_the_whole_name_where_the_end_is_not_unique(monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    table = {
        "a.size": FieldSpec("a.size", int, 3, "how much", ANY),
        "a.on": FieldSpec("a.on", bool, True, "whether", ANY),
        "b.size": FieldSpec("b.size", tuple, (1, 2), "word " * 11 + "word", ANY),
    }
    assert fields_help(table).split("\n") == [
        "a:",
        "  --a.size X                  how much [3]",
        "  --[no-]on                   whether [true]",
        "",
        "b:",
        "  --b.size X                  word word word word word word word word",
        "                              word word word word [1,2]",
    ]
