"""The paper's experiments as presets."""

from functools import cache

import pytest

from r2r2.config.toml_io import changed_fields
from r2r2.experiments.experiment import finalize_cells, find_experiment, preset_names, run_keys
from r2r2.stats import paper
from r2r2.stats.scores import POINTS
from r2r2.training.run_config import task_default_config

PAPER = {
    "main-table": (198, 5),
    "utd-10": (99, 5),
    "learning-curves": (297, 5),
    "score-against-utd": (297, 5),
    "ablation-zero-centring": (3, 5),
    "ablation-terms": (4, 5),
    "spectrum": (4, 5),
    "effective-rank": (5, 5),
    "training-time": (5, 1),
    "evidence": (10, 5),
}
# Fields in which a preset may differ from the agent's defaults, which are the paper's.
ABLATED = "agent.representation."
VARIED = ("env", "seeds", "utd", "agent.name")


@cache
def cells(name):
    return finalize_cells(find_experiment(name))


def keys(*names):
    return {key for name in names for cell in cells(name) for key in run_keys(cell)}


def cell_keys(*names):
    return [paper.CellKey(c.env[0], c.agent.name, c.utd) for name in names for c in cells(name)]


def ablations(name):
    return [
        {
            p: x
            for p, x in changed_fields(c, task_default_config(c)).items()
            if p.startswith(ABLATED)
        }
        for c in cells(name)
    ]


def test_there_are_the_presets_of_the_paper_and_a_test():
    assert set(preset_names()) == {*PAPER, "smoke", "evidence-utd-20"}


def test_the_shorter_evidence_has_the_papers_evaluations():
    planned = cells("evidence-utd-20")
    assert [(c.agent.name, c.env[0]) for c in planned] == [
        (agent, task) for agent in ("td7", "td7+r2r2") for task in ("dog-trot", "humanoid-run")
    ]
    assert {(c.utd, c.steps, len(c.seeds)) for c in planned} == {(20, 60_000, 5)}
    for cell in planned:
        assert {*changed_fields(cell, task_default_config(cell))} <= {*VARIED, "steps"}


@pytest.mark.parametrize("name", PAPER)
def test_paper_presets_have_the_papers_protocol_by_default(name):
    experiment = find_experiment(name)
    assert experiment.title
    assert experiment.reproduces
    assert (len(cells(name)), {len(c.seeds) for c in cells(name)}) == (
        PAPER[name][0],
        {PAPER[name][1]},
    )
    for cell in cells(name):
        assert (cell.steps, cell.steps // cell.eval_every, cell.eval_episodes) == (
            500_000,
            POINTS,
            10,
        )
        changed = changed_fields(cell, task_default_config(cell))
        assert all(path in VARIED or path.startswith(ABLATED) for path in changed)


def test_main_table_and_utd_10_cover_every_cell_of_the_paper_once():
    covered = cell_keys("main-table", "utd-10")
    assert len(covered) == 297
    assert set(covered) == set(paper.raw_scores())
    assert {key.utd for key in cell_keys("main-table")} == {1, 20}


def test_presets_share_the_runs_of_the_tables():
    tables = keys("main-table", "utd-10")
    for name in ("learning-curves", "score-against-utd"):
        assert keys(name) == tables
    for name in ("spectrum", "training-time"):
        assert keys(name) < tables
    unshared = {"ablation-zero-centring": 1, "ablation-terms": 2, "effective-rank": 1}
    for name, count in unshared.items():
        assert len(keys(name) - tables) == 5 * count


def test_ablations_are_those_of_the_paper():
    centred = {f"{ABLATED}zero_centred": True}
    assert ablations("ablation-zero-centring") == [{}, {}, centred]
    removed = [{f"{ABLATED}{term}": 0.0} for term in ("lambda_rr", "lambda_var")]
    assert ablations("ablation-terms") == [{}, {}, *removed]
    assert ablations("effective-rank") == [{}, {}, {}, {}, centred]
    tasks = {name: {(k.task, k.utd) for k in cell_keys(name)} for name in PAPER}
    assert tasks["ablation-zero-centring"] == tasks["ablation-terms"] == {("dog-trot", 20)}
    assert tasks["effective-rank"] == {("humanoid-run", 20)}


def test_analyses_contain_what_the_paper_published():
    assert set(paper.effective_ranks()) < set(cell_keys("spectrum"))
    assert set(cell_keys("spectrum")) == {
        paper.CellKey("humanoid-stand", agent, utd)
        for agent in ("td7", "td7+r2r2")
        for utd in (1, 20)
    }
    times = {paper.CellKey(t.task, t.agent, t.utd) for t in paper.training_times()}
    assert set(cell_keys("training-time")) == times


def test_smoke_is_small_and_trains():
    members = [key for cell in cells("smoke") for key in run_keys(cell)]
    assert len(set(members)) == 24
    assert {cell.utd for cell in cells("smoke")} == {1, 2}
    assert len({cell.agent.name for cell in cells("smoke")}) == 3
    assert len({cell.env for cell in cells("smoke")}) == 2
    for cell in cells("smoke"):
        sizes = {p: getattr(cell.agent, p, 0) for p in ("width", "actor_width", "critic_width")}
        assert max(*sizes.values(), cell.agent.latent, cell.agent.batch_size) <= 32
        assert cell.warmup < cell.steps <= 1000
        assert cell.steps // cell.eval_every >= 2
