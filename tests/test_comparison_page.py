"""docs/comparison.md: every statement's source is a link that the page defines."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "comparison.md").read_text()


def test_every_source_is_defined_and_used():
    used = re.findall(r"\]\[([a-z0-9-]+)\]", PAGE)
    defined = re.findall(r"^\[([a-z0-9-]+)\]: https://\S+$", PAGE, re.MULTILINE)
    assert len(defined) == len(set(defined)) > 30
    assert set(used) == set(defined)


def test_a_source_has_one_number():
    numbers = re.findall(r"\[\((\d+)\)\]\[([a-z0-9-]+)\]", PAGE)
    assert len(dict(numbers)) == len({name for _, name in numbers}) == len(set(numbers))


def test_tables_have_as_many_cells_in_every_row():
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        assert len({row.count("|") for row in table.splitlines()}) == 1


def test_speeds_on_a_cpu_are_those_of_the_measurement():
    file = ROOT / "benchmarks" / "results" / "peers_2cores.json"
    for peer in json.loads(file.read_text())["peers"].values():
        speeds = ", ".join(f"{x['updates_per_s']:.0f}" for x in peer["repeats"])
        parameters = peer["repeats"][0]["networks"]["parameters"]
        assert re.search(rf"\| {parameters:,} \| {peer['utd']} \| {speeds}\b", PAGE), speeds
