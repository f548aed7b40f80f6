import pytest
from fake_engine import FakeEngine

from r2r2.experiments import sweep as sweeps
from r2r2.report.figures import ChartSet


@pytest.fixture
def fake_engines(monkeypatch):
    """Replace local processes; return the engines made so far, and the script of their ends.

    Figures are not drawn, since they take seconds.
    """
    made, script = [], {}

    def make(*arguments):
        made.append(FakeEngine(*arguments, script=script))
        return made[-1]

    monkeypatch.setattr(sweeps, "LocalEngine", make)
    monkeypatch.setattr("r2r2.experiments.run_report.write_figures", lambda *_: ChartSet((), ()))
    return made, script
