"""The numbers of docs/agents are the program's defaults, and the paper's and measured figures."""

import re
from pathlib import Path

import pytest

from r2r2.config.agents import AGENTS
from r2r2.config.fields import flatten_config, parse_value
from r2r2.stats.paper import ALL, CellKey, aggregate, raw_scores, tasks

DOCS = Path(__file__).parents[2] / "docs"
BASES = [name for name, spec in AGENTS.items() if spec.base is None]
WITH_R2R2 = {spec.base: name for name, spec in AGENTS.items() if spec.base}


def page(name: str) -> str:
    return (DOCS / "agents" / f"{name}.md").read_text()


def table(text: str, header: str) -> list[list[str]]:
    """Return the cells of the table with this header line, without code marks."""
    assert text.count(header) == 1, header
    lines = text.partition(header)[2].splitlines()[2:]
    rows = lines[: next((i for i, line in enumerate(lines) if not line.startswith("|")), None)]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]


def fields(agent: str) -> dict[str, object]:
    """Return the typed defaults of an agent, by dotted name, and those of its runs."""
    spec = AGENTS[agent]
    values = {path: field.value for path, field in flatten_config(spec.config).items()}
    del values["name"]
    replay = spec.config.default_replay_size("Hopper-v5")
    return values | {"warmup": spec.warmup, "replay_size": replay}


def documented(agent: str, rows: list[list[str]]) -> dict[str, object]:
    """Return the values of a table, each read as its field reads it."""
    specs, values = flatten_config(AGENTS[agent].config), dict[str, object]()
    for name, value, source in rows:
        assert source, f"{name} has no source"
        text = "" if value == "empty" else value.replace(",", "")
        values[name] = parse_value(specs[name], text) if name in specs else int(text)
    return values


def test_every_base_agent_has_a_page():
    pages = {path.stem for path in (DOCS / "agents").glob("*.md")}
    assert pages == {*BASES, "index"}


@pytest.mark.parametrize("agent", BASES)
def test_fields_are_the_defaults(agent):
    rows = table(page(agent), "| field | value | source |")
    assert documented(agent, rows) == fields(agent)
    assert len(rows) == len(fields(agent))  # none twice


@pytest.mark.parametrize(("base", "agent"), WITH_R2R2.items())
def test_fields_with_r2r2_are_those_that_differ(base, agent):
    rows = table(page(base), "| field | value with R2R2 | source |")
    before, after = fields(base), fields(agent)
    assert documented(agent, rows) == {k: v for k, v in after.items() if v != before[k]}


@pytest.mark.parametrize("agent", BASES)
def test_scores_are_the_papers(agent):
    header = next(line for line in page(agent).splitlines() if line.startswith("| task | `"))
    columns = re.findall(r"`(\S+)` UTD (\d+)", header)
    assert {name for name, _ in columns} == {agent, WITH_R2R2.get(agent, agent)}
    rows = table(page(agent), header)
    assert [row[0] for row in rows] == list(tasks())
    for task, *cells in rows:
        for (name, utd), cell in zip(columns, cells, strict=True):
            score = raw_scores()[CellKey(task, name, int(utd))]
            assert cell == f"{score.mean:,.1f} ± {score.std:,.1f}", (task, name, utd)


def test_means_are_the_papers():
    rows = table(page("index"), "| agent | UTD 1 | UTD 10 | UTD 20 |")
    assert [row[0] for row in rows] == list(AGENTS)
    for name, *cells in rows:
        for utd, cell in zip((1, 10, 20), cells, strict=True):
            mean = aggregate(ALL, "mean", name, utd)
            assert cell == f"{mean.value:.2f} [{mean.low:.2f}, {mean.high:.2f}]", (name, utd)


def test_times_are_those_of_the_page_of_updates():
    measured = (DOCS / "update_speed.md").read_text()
    header = (
        "| agent | original | one member | per member, fleet of twenty | compile s, one / twenty |"
    )
    times = {row[0]: row[2:4] for row in table(measured, header)}
    rows = table(page("index"), "| agent | one member | per member, fleet of twenty |")
    assert {name: cells for name, *cells in rows} == times


def own_scores(agent: str) -> list[str]:
    """Return our scores of a base agent and of it with R2R2, as the page of results has them."""
    header = "| cell | ours: score | paper: score | 95 % intervals | last evaluation |"
    rows = table((DOCS / "results.md").read_text(), header)
    return [row[1] for row in rows if row[0].split(",")[0] in (agent, WITH_R2R2.get(agent))]


@pytest.mark.parametrize("agent", BASES)
def test_own_results_are_those_of_the_page_of_results(agent):
    results = " ".join(page(agent).partition("\n## Results\n")[2].split())
    scores = own_scores(agent)
    assert "esults](../results.md)" in results
    assert all(score in results for score in scores)
    assert ("no run of full length" in results) == (not scores)
