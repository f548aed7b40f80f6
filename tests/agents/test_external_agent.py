"""An agent outside the package: `external_td3.py`, beside this file."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from r2r2 import AGENTS, evaluate_run, register_agent, resolve, train
from r2r2.api import RunOptions
from r2r2.cli.main import main
from r2r2.storage.arrays import read_arrays
from r2r2.storage.events import read_events

pytestmark = pytest.mark.optimized

AGENT = "external_td3:TD3"
RUN = {
    "agent": AGENT,
    "env": "Pendulum-v1",
    "seeds": 2,
    "steps": 60,
    "warmup": 20,
    "action_repeat": 10,
    "eval_every": 30,
    "eval_episodes": 1,
    "log_every": 20,
    "agent.width": 8,
    "agent.batch_size": 8,
}


@pytest.fixture(scope="module", autouse=True)
def command_settings(tmp_path_factory):
    """Restore the process settings that the command line changes."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(sys, "path", list(sys.path))
        yield
    for name, value in before.items():
        jax.config.update(name, value)


class Interrupt(KeyboardInterrupt):
    """Ends a run, as a signal does."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a fleet that Python started and the command line resumed."""

    def interrupt(progress):
        if progress.decisions.max() >= 40:
            raise Interrupt

    out = tmp_path_factory.mktemp("runs") / "td3"
    options = RunOptions(workers=0, checkpoint_every="20")
    with pytest.raises(Interrupt):
        train(resolve(RUN), out, on_progress=interrupt, options=options)
    assert not weights_of(out)
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in RUN.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parent)
        assert main(["train", *arguments, f"--out={out}", "--workers=0"]) == 0
    return out


def weights_of(path):
    return [read_arrays(file) for file in sorted(path.rglob("weights.npz"))]


@pytest.mark.slow
def test_fleet_is_trained_and_resumed(run):
    first, second = weights_of(run)
    assert any((first[name] != second[name]).any() for name in first)
    assert f'name = "{AGENT}"' in (run / "config.toml").read_text()
    events = list(read_events(run / "events.jsonl"))
    steps = [x["decision_step"] for x in events if x["event"] == "evaluation"]
    assert steps == [30, 30, 60, 60]
    # Without an encoder there is nothing to diagnose.
    kinds = {event["event"] for event in events}
    assert not kinds & {"diagnostics", "spectrum", "collapse", "value"}


@pytest.mark.slow
def test_final_policies_are_evaluated(run):
    returns = evaluate_run(run, episodes=2, workers=0).returns
    assert returns.shape == (2, 2)
    assert np.isfinite(returns).all()


@pytest.mark.slow
def test_report_and_errors_without_the_module(run, tmp_path, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "external_td3")
    entries = [x for x in sys.path if Path(x).resolve() != Path(__file__).parent]
    monkeypatch.setattr(sys, "path", entries)
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(run), "--out", str(tmp_path / "report")]) == 0
    pages = list((tmp_path / "report").glob("*.html"))
    assert any(AGENT in page.read_text() for page in pages)
    capsys.readouterr()
    assert main(["eval", str(run)]) == 2
    assert "agent: cannot import 'external_td3'" in capsys.readouterr().err


def test_registered_agent_is_known_by_its_name():
    from external_td3 import TD3

    try:
        register_agent(TD3)
        config = resolve({"agent": "td3", "env": "Pendulum-v1", "width": 4})
        assert (config.agent.width, config.warmup) == (4, 25_000)
    finally:
        del AGENTS["td3"]


@pytest.mark.slow
def test_external_agent_learns_pendulum(tmp_path):
    config = resolve(
        {"agent": AGENT, "env": "Pendulum-v1", "seeds": 2, "steps": 10_000},
        {"warmup": 1_000, "eval_every": 10_000, "width": 64, "batch_size": 128},
        {"actor_rate": 1e-3, "critic_rate": 1e-3},
    )
    result = train(config, tmp_path / "td3", options=RunOptions(workers=0))
    # A random policy reaches about -1200, a swing-up policy about -150.
    assert result.returns.mean() > -400
