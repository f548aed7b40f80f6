"""`r2r2 paper`: the presets and what they cost."""

import math
import re
from typing import NamedTuple

import pytest

from r2r2.cli import paper as module
from r2r2.experiments import experiment as experiments

SMALL = """\
title = "Two agents"
reproduces = "nothing [yet]"
[base]
env = "Pendulum-v1"
steps = 2_000
warmup = 1_000
[[grids]]
agent = ["td7", "td7+r2r2"]
utd = [1, 2]
seeds = 3
[[grids]]
agent = "td7+r2r2"
lambda_rr = 0
"""


class Estimate(NamedTuple):
    seconds: float
    measured: bool


class Costs:
    """An hour for every run; agents with R2R2 were not measured."""

    def __init__(self, seconds=3600.0):
        self.seconds, self.prepared = seconds, []

    def prepare(self, configs):
        self.prepared += configs

    def estimate(self, config):
        seconds = self.seconds * len(config.seeds)
        return Estimate(seconds, config.agent.name == "td7")


@pytest.fixture
def costs(monkeypatch):
    """Costs that were measured; the folder that was asked for."""
    costs = Costs()

    def load(folder):
        costs.folder = folder
        return costs

    monkeypatch.setattr(module, "load_costs", load)
    return costs


@pytest.fixture
def presets(costs, tmp_path, monkeypatch):
    """Three presets, of which two share runs."""
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "table.toml").write_text(SMALL)
    shared = SMALL.replace("utd = [1, 2]", "utd = 2").replace("seeds = 3", "seeds = 4")
    (folder / "curves.toml").write_text(shared)
    (folder / "smoke.toml").write_text(SMALL.replace("reproduces", "# reproduces"))
    monkeypatch.setattr(experiments, "PRESETS", folder)


def rows(out):
    return {cells[0]: cells[1:] for line in out.splitlines() if (cells := re.split(" {2,}", line))}


def test_presets_are_listed_with_their_sizes_and_costs(cli, presets, costs):
    code, out, err = cli("paper")
    assert (code, err) == (0, "")
    table = rows(out)
    assert table["experiment"] == ["reproduces", "cells", "runs", "updates", "device time"]
    assert table["table"] == ["nothing [yet]", "5", "13", "19 k", "13.0 h *"]
    assert table["curves"] == ["nothing [yet]", "3", "9", "17 k", "9.0 h *"]
    assert table["smoke"] == ["Two agents", "5", "13", "19 k", "13.0 h *"]
    # Both agents at UTD 1 with 3 seeds and at UTD 2 with 4, and the ablation, each once.
    assert table["all of the paper"] == ["equal runs are shared", "5", "15", "23 k", "15.0 h *"]
    assert list(table).index("smoke") > list(table).index("table")
    assert "* partly from the speeds of other agents or tasks." in out
    assert "r2r2 sweep NAME" in out
    assert max(map(len, out.splitlines())) <= 80
    assert str(costs.folder) == "sweeps"
    assert len(costs.prepared) == 13


def test_without_measurements_the_table_says_what_to_run(cli, presets, costs):
    costs.seconds = math.nan
    out = cli("paper").out
    assert rows(out)["table"][-1] == "unknown"
    text = " ".join(out.split())
    assert "Nothing was measured on this machine yet." in text
    assert "sweep smoke' takes minutes and measures its speed" in text
    assert " * " not in text
    assert costs.prepared == []


def test_one_experiment_is_shown_in_detail(cli, presets):
    code, out, err = cli("paper", "table")
    assert (code, err) == (0, "")
    assert out.startswith("table: Two agents\nreproduces: nothing [yet]\n")
    assert '  agent = ["td7", "td7+r2r2"]\n' in out
    lines = [re.split(" {2,}", line) for line in out.splitlines()]
    assert ["td7", "1", "1", "3", "3 k", "3.0 h"] in lines
    assert ["td7+r2r2", "2", "1", "3", "6 k", "3.0 h *"] in lines
    assert ["td7+r2r2", "representation.lambda_rr=0.0", "1", "1", "1", "1 k", "1.0 h *"] in lines
    assert ["all", "5", "13", "19 k", "13.0 h *"] in lines
    assert "All runs: steps=2000, warmup=1000." in out
    assert out.rstrip().endswith("sweep table")
    assert max(map(len, out.splitlines())) <= 80


def test_scaled_experiments_are_said_to_be_no_reproduction(cli, presets):
    out = cli("paper", "table", "--scale", "0.1").out
    assert "Scaled by 0.1: not a reproduction of the paper." in out
    assert ["all", "5", "13", "1.9 k", "13.0 h *"] in [
        re.split(" {2,}", line) for line in out.splitlines()
    ]
    assert out.rstrip().endswith("sweep table --scale 0.1")


def test_a_file_of_ones_own_is_shown_too(cli, presets, workdir):
    (workdir / "mine.toml").write_text(SMALL)
    out = cli("paper", "mine.toml").out
    assert out.startswith("mine: Two agents\n")
    assert out.rstrip().endswith("sweep mine.toml")


def test_bad_arguments_are_rejected(rejected, costs, workdir):
    assert rejected("paper", "main_tabel").endswith("; did you mean 'main-table'?")
    assert rejected("paper", "smoke", "spectrum") == "unexpected argument 'spectrum'"
    assert rejected("paper", "none.toml") == "none.toml: cannot read: No such file or directory"
    assert rejected("paper", "smoke", "--scale", "2").startswith(
        "--scale: expected a number > 0 and <= 1, got"
    )
    assert rejected("paper", "smoke", "--scale", "0.001").startswith(
        "--scale: expected a number from 0.25 to 1, so that runs of 400 steps"
    )
    assert rejected("paper", "smoke", "--out", "none").startswith("--out: expected a folder")
