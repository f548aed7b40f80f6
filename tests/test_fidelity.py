"""docs/fidelity.md names only existing fields, with valid values, and functions."""

import importlib
import re
from pathlib import Path

import pytest

from r2r2.config.agents import AGENTS
from r2r2.config.errors import UserError
from r2r2.config.fields import find_field, flatten_config, parse_value
from r2r2.config.resolve import default_config
from r2r2.stats.paper import effective_ranks

TEXT = (Path(__file__).parents[1] / "docs" / "fidelity.md").read_text()
FUNCTIONS = re.findall(r"`(\w+)/(\w+)\.py`, `(\w+)`(?: and `(\w+)`)?", TEXT)
FIELDS = sorted(set(re.findall(r"`--([^\s`]+)(?: ([^`]+))?`", TEXT)))


def accepts(agent: str, name: str, value: str) -> bool:
    """Return whether an agent has a field and the field allows the value, if any."""
    try:
        table = flatten_config(default_config(agent))
        field = find_field(table, name.removeprefix("no-"))
        if value:
            parse_value(field, value)
    except UserError:
        return False
    return field.kind is bool or not name.startswith("no-")


@pytest.mark.parametrize(("name", "value"), FIELDS)
def test_named_field_is_accepted_by_some_agent(name, value):
    assert any(accepts(agent, name, value) for agent in AGENTS)


@pytest.mark.parametrize(("package", "module", "first", "second"), FUNCTIONS)
def test_named_function_exists(package, module, first, second):
    imported = importlib.import_module(f"r2r2.{package}.{module}")
    assert all(hasattr(imported, name) for name in (first, second) if name)


def test_numbers_in_the_document_are_the_defaults():
    probe = default_config("td7").diagnostics
    assert f"latents of {probe.probe_batch:,} of the member's own observations" in TEXT
    assert f"among the first {probe.probe_rows:,} rows" in TEXT
    assert default_config("td7").precision == "tf32"
    assert TEXT.count("TF32 by default") == 3  # TD7, Minimalist phi and SimbaV2
    for rank in effective_ranks().values():
        assert str(rank) in TEXT


def test_patterns_match_the_document():
    assert ("assessment.count", "decisions") in FIELDS
    functions = ("diagnostics", "representation", "count_at", "numerical_rank")
    assert functions in FUNCTIONS
