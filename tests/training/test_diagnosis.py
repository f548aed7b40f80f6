"""Diagnoses in the log of a run, and warnings of a collapse."""

import dataclasses
import types

import numpy as np
import pytest
import small_agent
from interrupted import NEVER, interrupt
from runs import SMALL, select

from r2r2 import resolve, train
from r2r2.agents.registry import build_agent
from r2r2.api import RunOptions
from r2r2.config.agents import AGENTS, agent_config
from r2r2.config.run import DiagnosticsConfig
from r2r2.diagnostics.latent_probe import LatentProbe
from r2r2.diagnostics.representation import diagnose
from r2r2.diagnostics.value_bias import ValueBiasTracker
from r2r2.envs.spec import Member, Spec
from r2r2.replay.normalizer import Scales
from r2r2.storage.events import read_events
from r2r2.training.diagnosis import Diagnoser, make_diagnoser

TWO = {"seeds": 2, "steps": 40}
BATCH = 32
KINDS = "diagnostics", "spectrum"
LEAST_RANK = "r2r2.diagnostics.representation.LEAST_RANK"


def run(path, **changes):
    messages: list[str] = []
    config = resolve(SMALL, TWO, changes)
    options = RunOptions(workers=0, checkpoint_every="never")
    result = train(config, path, options=options, on_message=messages.append)
    return read_events(result.folder.events), messages


def positions(events):
    """Return members and counts of events, in a fixed order."""
    keys = "member", "env_step", "decision_step", "update_step"
    return sorted([event[key] for key in keys] for event in events)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "plain", probe_batch=BATCH, probe_rows=BATCH)


def test_every_evaluation_has_a_diagnosis(plain):
    events, messages = plain
    evaluations = select(events, "evaluation")
    assert len(evaluations) == 4
    for kind in ("diagnostics", "spectrum", "value"):
        assert positions(select(events, kind)) == positions(evaluations)
    assert not select(events, "collapse")
    assert not messages


def test_diagnosis_agrees_with_its_spectrum(plain):
    events, _ = plain
    for numbers, spectrum in zip(*(select(events, k) for k in KINDS), strict=True):
        values = np.array(spectrum["singular_values"])
        assert len(values) == small_agent.LATENT
        assert (np.diff(values) <= 0).all()
        shares = values[values > 0] / values.sum()
        rank = np.exp(-(shares * np.log(shares)).sum())
        assert numbers["effective_rank"] == pytest.approx(rank, rel=1e-4)
        assert numbers["variance_hinge"] > 0
        # The sum of squares is that of the norms of as many latents as the probe has.
        low, high = (BATCH * numbers[name] ** 2 for name in ("least_norm", "most_norm"))
        assert low * 0.999 <= (values**2).sum() <= high * 1.001


def test_value_bias_uses_the_discounted_returns_of_the_same_episodes(plain):
    events, _ = plain
    # Each slot plays its first episode, of 5 steps, then its second, of 3.
    first, second = (sum((t + 1) * 0.9**t for t in range(n)) for n in (5, 3))
    assert [e["mean"] for e in select(events, "evaluation")] == [15, 15, 6, 6]
    for event, discounted in zip(
        select(events, "value"), (first, first, second, second), strict=True
    ):
        assert event["discounted_return"] == pytest.approx(discounted)
        assert event["bias"] == pytest.approx(event["expected"] - discounted)
        assert event["episodes"] == 2


def test_collapse_is_logged_each_time_and_announced_once(tmp_path, monkeypatch):
    """Also by a run that is resumed, which shows it from its first iteration on."""
    monkeypatch.setattr(LEAST_RANK, 8)
    before, after, shown = [], [], []
    config, path = resolve(SMALL, TWO), tmp_path / "run"
    interrupt(config, path, lambda x: x.collapsed == (0, 1), on_message=before.append)
    for name in ("toys.Story-v0_s0", "toys.Story-v0_s1"):
        (message,) = [line for line in before if f"of {name} has" in line]
        assert message.startswith("warning: at step 20 the representation of")
    assert len(before) == 2
    train(config, path, options=NEVER, on_progress=shown.append, on_message=after.append)
    assert after == [f"{path}: resuming from step 20"]
    assert {progress.collapsed for progress in shown[1:]} == {(0, 1)}
    events = read_events(path / "events.jsonl")
    collapses = positions(select(events, "collapse"))
    assert collapses == positions(select(events, "evaluation"))
    assert all(event["collapsed"] for event in select(events, "diagnostics"))


@pytest.mark.parametrize("name", ["td7", "minphi", "simbav2", "simbav2-spl"])
def test_only_agents_with_an_encoder_are_diagnosed(name):
    assert name in AGENTS
    config = agent_config(name)
    if name.startswith("simbav2"):
        config = dataclasses.replace(config, critics=1, discount=0.97)
    agent = build_agent(config, Spec(2, 1), 1)
    config = types.SimpleNamespace(agent=config, diagnostics=DiagnosticsConfig())
    diagnoser = make_diagnoser(state_of_two(config=config, agent=agent))
    assert (diagnoser is None) is (name == "simbav2")


HEALTHY = diagnose(np.eye(4), inputs=4)


def state_of_two(**parts):
    """Return what a `Diagnoser` needs of a run with two members."""
    evals = types.SimpleNamespace(
        value_bias=ValueBiasTracker(0.5), first_obs=lambda _: np.array([[13.0], [11.0]])
    )
    fleet = types.SimpleNamespace(
        states=None, data=lambda _: None, opened=[5, 5], accelerated=False
    )
    defaults = {
        "fleet": fleet,
        "log": types.SimpleNamespace(event=lambda *_: None),
        "members": [Member("a", 0), Member("a", 1)],
        "evals": evals,
        "stopped": {},
        "collapsed": set(),
        "on_message": print,
    }
    return types.SimpleNamespace(**(defaults | parts))


def healthy_latents(*_):
    return types.SimpleNamespace(diagnose=lambda: (HEALTHY, HEALTHY.numbers()))


def fake_probe(latents=healthy_latents):
    """Return a probe that values a state at twice its first coordinate."""
    return types.SimpleNamespace(latents=latents, values=lambda member, states, obs: 2 * obs[:, 0])


def test_values_of_a_normalizing_agent_are_in_units_of_the_task():
    scales = Scales(np.array([[0.0], [10.0]]), np.ones((2, 1)), np.array([1.0, 7.0]))
    state = state_of_two()
    Diagnoser(state, fake_probe()).diagnose({1: (10, 10)}, scales)
    # Normalized to (3, 1), valued at (6, 2), in units of 7.
    assert state.evals.value_bias.finish(1)["expected"] == 28


def test_stopped_member_is_not_diagnosed():
    state, asked = state_of_two(stopped={0: "it fell"}), []
    probe = fake_probe(lambda m, *_: asked.append(m) or healthy_latents())
    Diagnoser(state, probe).diagnose({0: (10, 10), 1: (10, 10)}, None)
    assert asked == [1]
    assert state.evals.value_bias.finish(0) is None


def test_failed_diagnosis_is_logged_and_does_not_end_the_run(tmp_path, monkeypatch):
    original = LatentProbe.latents

    def latents(self, member, *rest):
        if member == 0:
            raise np.linalg.LinAlgError("no convergence\nin detail")
        return original(self, member, *rest)

    monkeypatch.setattr(LatentProbe, "latents", latents)
    events, messages = run(tmp_path / "run")
    first, second = "toys.Story-v0_s0", "toys.Story-v0_s1"
    assert messages == [f"the representation of {first} could not be diagnosed (no convergence)"]
    failed = select(events, "diagnosis_failed")
    assert [(e["member"], e["why"]) for e in failed] == [(first, "no convergence")] * 2
    assert len(select(events, "evaluation")) == 4
    for kind in (*KINDS, "value"):
        assert [event["member"] for event in select(events, kind)] == [second] * 2


@pytest.mark.filterwarnings("ignore::r2r2.StoppedMembersWarning")
def test_stopped_member_is_not_shown_as_collapsed(tmp_path, monkeypatch):
    monkeypatch.setattr(LEAST_RANK, 8)
    shown = []
    changes = {"env": "fragile:Unjudged-v0", "env_faults": 1}
    config = resolve(SMALL, TWO, changes)
    result = train(config, tmp_path / "run", options=NEVER, on_progress=shown.append)
    assert len(result.stopped) == 1
    assert shown[-1].collapsed == (1,)
    events = read_events(result.folder.events)
    after = events[events.index(select(events, "stopped")[0]) :]
    other = result.members[1].name
    assert {e["member"] for e in select(after, "diagnostics")} == {other}
