"""The notes on fidelity name only fields that there are, with values they take."""

import importlib
import re
from pathlib import Path

import pytest

from r2r2.config.agents import AGENTS
from r2r2.config.errors import UserError
from r2r2.config.fields import find_field, flatten_config, parse_value
from r2r2.config.resolve import default_config

NOTES = (Path(__file__).parents[1] / "docs" / "fidelity.md").read_text()
FUNCTIONS = re.findall(r"`(\w+)/(\w+)\.py`, `(\w+)`(?: and `(\w+)`)?", NOTES)
NAMED = sorted(set(re.findall(r"`--([^\s`]+)(?: ([^`]+))?`", NOTES)))


def takes(agent: str, name: str, value: str) -> bool:
    try:
        leaf = find_field(
            flatten_config(default_config(agent)), name.removeprefix("no-")
        )
        if value:
            parse_value(leaf, value)
    except UserError:
        return False
    return leaf.kind is bool or not name.startswith("no-")


@pytest.mark.parametrize(("name", "value"), NAMED)
def test_a_field_in_the_notes_is_one_that_some_agent_takes(name, value):
    assert any(takes(agent, name, value) for agent in AGENTS)


def test_fields_are_found_in_the_notes():
    assert ("assessment.count", "decisions") in NAMED


@pytest.mark.parametrize(("stage", "module", "one", "other"), FUNCTIONS)
def test_a_function_in_the_notes_is_where_they_say(stage, module, one, other):
    found = importlib.import_module(f"r2r2.{stage}.{module}")
    assert all(hasattr(found, name) for name in (one, other) if name)


def test_functions_are_found_in_the_notes():
    assert ("measure", "spectrum", "count_at", "numerical_rank") in FUNCTIONS
