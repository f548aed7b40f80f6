"""Options from config fields: spellings, values, errors, help."""

import pytest

from r2r2.cli.argparser import FOLDER, ArgumentParser, field_table
from r2r2.config.errors import UserError
from r2r2.config.fields import ANY, at_least

FIELDS = field_table(
    ("steps", int, 5, "decision steps", at_least(1)),
    ("seeds", tuple[int, ...], (0, 1), "100% of the seeds", ANY),
    ("a.b.fast_mode", bool, True, "whether", ANY),
    ("a.size", int, 3, "size of a", ANY),
    ("b.size", int, 3, "size of b", ANY),
    ("out", str, "", "folder", FOLDER),
)


def parse(*argv, positional=False, partial=False):
    parser = ArgumentParser("test", "", fields=FIELDS, positional=positional)
    return parser.parse(argv, partial)


@pytest.mark.parametrize(
    ("argv", "given"),
    [
        ("", {}),
        ("--steps 5", {"steps": 5}),
        ("--steps=5", {"steps": 5}),
        ("--steps 1 --steps 2", {"steps": 2}),
        ("--seeds 1 2", {"seeds": (1, 2)}),
        ("--seeds 1,2 --steps 3", {"seeds": (1, 2), "steps": 3}),
        ("--seeds -1,2", {"seeds": (-1, 2)}),
        ("--a.size -3", {"a.size": -3}),
        ("--fast-mode", {"a.b.fast_mode": True}),
        ("--no_fast_mode", {"a.b.fast_mode": False}),
        ("--no-a.b.fast-mode", {"a.b.fast_mode": False}),
        ("--b.fast_mode off", {"a.b.fast_mode": False}),
        ("--a.b.fast-mode=false", {"a.b.fast_mode": False}),
        ("--out a_b", {"out": "a_b"}),
    ],
)
def test_options_are_parsed_by_their_fields(argv, given):
    assert parse(*argv.split()) == given


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("--steps 0", "--steps: expected an integer >= 1, got '0'"),
        ("--steps", "--steps: value missing; expected an integer >= 1"),
        ("--steps --fast-mode", "--steps: value missing; expected an integer >= 1"),
        ("--seeds", "--seeds: value missing; expected a count or a list of integers"),
        ("--steps 2 3", "unexpected argument '3'"),
        ("-x", "unexpected argument '-x'"),
        ("--stpes 2", "--stpes: unknown option; did you mean '--steps'?"),
        ("--a.b.fast", "--a.b.fast: unknown option; did you mean '--a.b.fast-mode'?"),
        ("--zzzzz 3", "--zzzzz: unknown option; see r2r2 test --help"),
        ("--ste 3", "--ste: unknown option; did you mean '--steps'?"),
        ("--no-steps", "--no-steps: unknown option; did you mean '--steps'?"),
        ("--no-fast-mode 3", "--no-fast-mode: expected no value, got '3'"),
        ("--size 3", "--size: ambiguous option; expected one of --a.size, --b.size"),
        ("--out=", "--out: expected the name of a folder, got ''"),
    ],
)
def test_errors_name_the_option(argv, sentence):
    with pytest.raises(UserError) as error:
        parse(*argv.split())
    assert str(error.value) == sentence


def test_positional_arguments_may_stand_anywhere():
    given = parse(*"x --fast-mode y --out o z".split(), positional=True)
    assert given == {"arguments": ["x", "y", "z"], "a.b.fast_mode": True, "out": "o"}
    with pytest.raises(UserError, match="--fast-mode: expected no value, got '3'"):
        parse("--fast-mode=3", positional=True)


def test_a_partial_parse_ignores_the_rest():
    assert parse("--steps", "3", "--unknown", "x", partial=True) == {"steps": 3}


def test_help_shows_the_shortest_name_and_the_default(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    parser = ArgumentParser("test", "[OPTIONS]", "About.", "  r2r2 test")
    fields = dict(FIELDS)
    parser.add_fields({"output": {"out": fields.pop("out")}, "other": fields})
    lines = parser.format_help().splitlines()
    assert lines[0] == "usage: r2r2 test [OPTIONS]"
    assert [line.split() for line in lines if line.startswith("  --")] == [
        ["--out", "DIR", "folder"],
        ["--steps", "N", "decision", "steps", "[5]"],
        ["--seeds", "N,...", "100%", "of", "the", "seeds", "[0,1]"],
        ["--[no-]fast-mode", "whether", "[on]"],
        ["--a.size", "N", "size", "of", "a", "[3]"],
        ["--b.size", "N", "size", "of", "b", "[3]"],
    ]
    assert [x for x in lines if x.endswith(":")] == [*("output:", "other:", "examples:")]
