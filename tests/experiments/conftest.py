import pytest
from fake_engine import FakeEngine

from r2r2.experiments import sweep as sweeps
from r2r2.experiments.machine import Device, Machine
from r2r2.report.figures import ChartSet


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def fake_engines(monkeypatch, cache_folder):
    """Replace local processes; return the engines made so far, and the script of their ends.

    The machine has one core, so that each cell is one fleet. Speeds that were measured here do
    not matter. Figures are not drawn, since they take seconds.
    """
    made, script = [], {}

    def make(*arguments):
        made.append(FakeEngine(*arguments, script=script))
        return made[-1]

    monkeypatch.setattr(sweeps, "LocalEngine", make)
    monkeypatch.setattr(sweeps, "this_machine", lambda: Machine((Device("cpu", "cpu", 2**36),), 1))
    monkeypatch.setattr(sweeps, "record_speed", lambda _: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_folder))
    monkeypatch.setattr("r2r2.experiments.run_report.write_figures", lambda *_: ChartSet((), ()))
    return made, script
