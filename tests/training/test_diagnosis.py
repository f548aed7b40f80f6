"""What a run writes down of its encoders, and when it warns."""

import dataclasses
import types

import numpy as np
import pytest
from interrupted import NEVER, leave

from r2r2 import resolve, train
from r2r2.agents.registry import make_agent
from r2r2.api import RunOptions
from r2r2.config.agents import AGENTS, agent_config
from r2r2.diagnostics.latent_probe import LatentProbe
from r2r2.diagnostics.representation import diagnose
from r2r2.diagnostics.value_bias import ValueBiasTracker
from r2r2.envs.spec import Member, Spec
from r2r2.replay.normalizer import Scales
from r2r2.storage.events import read_events
from r2r2.training.diagnosis import Diagnoser, make_diagnoser

TINY = {
    "agent.width": 8,
    "agent.latent": 8,
    "agent.batch_size": 4,
    "env": "toys:Story-v0",
    "seeds": 2,
    "steps": 40,
    "warmup": 10,
    "eval_every": 20,
    "eval_episodes": 2,
}


KINDS = "diagnostics", "spectrum"


def run(path, **changes):
    heard: list[str] = []
    config = resolve(TINY, changes)
    result = train(config, path, options=RunOptions(workers=0), on_message=heard.append)
    return read_events(result.folder.events), heard


def named(events, kind):
    return [event for event in events if event["event"] == kind]


def when(events):
    """By whom and where events were, in any order."""
    keys = "member", "env_step", "decision_step", "update_step"
    return sorted([event[key] for key in keys] for event in events)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "plain")


def test_every_evaluation_comes_with_a_diagnosis(plain):
    events, _ = plain
    evaluations = named(events, "evaluation")
    assert len(evaluations) == 4
    for kind in ("diagnostics", "spectrum", "value"):
        assert when(named(events, kind)) == when(evaluations)


def test_a_diagnosis_goes_with_its_spectrum(plain):
    events, _ = plain
    for one, other in zip(*(named(events, k) for k in KINDS), strict=True):
        values = np.array(other["singular_values"])
        assert len(values) == 8
        assert (np.diff(values) <= 0).all()
        shares = values[values > 0] / values.sum()
        rank = np.exp(-(shares * np.log(shares)).sum())
        assert one["effective_rank"] == pytest.approx(rank, rel=1e-4)
        assert one["variance_hinge"] > 0


def test_value_bias_is_against_the_discounted_returns_of_the_same_episodes(plain):
    events, _ = plain
    gamma = 0.99
    # Each slot plays its first episode, of 5 steps, then its second, of 3.
    first, second = (
        sum((t + 1) * gamma**t for t in range(length)) for length in (5, 3)
    )
    assert [e["mean"] for e in named(events, "evaluation")] == [15, 15, 6, 6]
    for event, given in zip(
        named(events, "value"), (first, first, second, second), strict=True
    ):
        assert event["discounted_return"] == pytest.approx(given)
        assert event["bias"] == pytest.approx(event["expected"] - given)
        assert event["episodes"] == 2


def test_nobody_is_warned_of_a_healthy_representation(plain):
    events, heard = plain
    assert not named(events, "collapse")
    assert not heard


def test_a_collapse_is_in_the_log_each_time_and_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr("r2r2.diagnostics.representation.LEAST_RANK", 8)
    events, heard = run(tmp_path / "run")
    assert when(named(events, "collapse")) == when(named(events, "evaluation"))
    assert len(heard) == 2
    for name in {event["member"] for event in events} - {None}:
        (own,) = [line for line in heard if f"of {name} has" in line]
        assert own.startswith("warning: at step 20 the representation of")
    assert all(event["collapsed"] for event in named(events, "diagnostics"))


@pytest.mark.parametrize("name", AGENTS)
def test_only_an_agent_with_an_encoder_is_diagnosed(name):
    config = agent_config(name)
    if name.startswith("simbav2"):
        config = dataclasses.replace(config, critics=1, discount=0.97)
    agent = make_agent(config, Spec(2, 1), 1)
    config = types.SimpleNamespace(agent=config)
    made = make_diagnoser(of_two(config=config, agent=agent))
    assert (made is None) is (name == "simbav2")


HEALTHY = diagnose(np.eye(4), inputs=4)


def of_two(**parts):
    """What diagnosing needs of a run with two members, of whom nothing is known."""
    evals = types.SimpleNamespace(
        value_bias=ValueBiasTracker(0.5),
        first_obs=lambda _: np.array([[13.0], [11.0]]),
    )
    fleet = types.SimpleNamespace(states=None, data=lambda _: None, opened=[5, 5])
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


def looking(diagnose=lambda *_: (HEALTHY, HEALTHY.numbers())):
    """An examiner to whom a state is worth twice its first coordinate."""
    return types.SimpleNamespace(
        diagnose=diagnose, values=lambda member, states, obs: 2 * obs[:, 0]
    )


def test_values_of_an_agent_that_normalises_are_in_the_tasks_own_units():
    """Its critics see observations and rewards by the member's own scales."""
    scales = Scales(np.array([[0.0], [10.0]]), np.ones((2, 1)), np.array([1.0, 7.0]))
    whole = of_two()
    Diagnoser(whole, looking()).diagnose({1: (10, 10)}, scales)
    # (3, 1) as the member sees them, valued at (6, 2), in units of 7.
    assert whole.evals.value_bias.finish(1)["expected"] == 28


def test_a_member_that_was_stopped_is_not_looked_into():
    """As where its environments failed when its evaluation began."""
    whole, asked = of_two(), []
    whole.stopped[0] = "it fell"
    examiner = looking(lambda member, *_: asked.append(member) or looking().diagnose())
    Diagnoser(whole, examiner).diagnose({0: (10, 10), 1: (10, 10)}, None)
    assert asked == [1]
    assert whole.evals.value_bias.finish(0) is None


def test_a_diagnosis_that_fails_is_noted_and_ends_nothing(tmp_path, monkeypatch):
    honest = LatentProbe.diagnose

    def diagnose(self, member, *rest):
        if member == 0:
            raise np.linalg.LinAlgError("no convergence\nin detail")
        return honest(self, member, *rest)

    monkeypatch.setattr(LatentProbe, "diagnose", diagnose)
    events, heard = run(tmp_path / "run")
    first, second = "toys.Story-v0_s0", "toys.Story-v0_s1"
    assert heard == [
        f"the representation of {first} could not be diagnosed (no convergence)"
    ]
    failed = named(events, "diagnosis_failed")
    assert [(e["member"], e["why"]) for e in failed] == [(first, "no convergence")] * 2
    assert len(named(events, "evaluation")) == 4
    for kind in (*KINDS, "value"):
        assert [event["member"] for event in named(events, kind)] == [second] * 2


def test_a_collapse_that_was_told_is_known_to_the_run_that_goes_on(
    tmp_path, monkeypatch
):
    """The bar shows it from the first turn, and nobody is told again."""
    monkeypatch.setattr("r2r2.diagnostics.representation.LEAST_RANK", 8)
    told, heard, shown = [], [], []
    config, path = resolve(TINY), tmp_path / "run"
    leave(config, path, lambda seen: seen.collapsed == (0, 1), on_message=told.append)
    assert len([line for line in told if "has collapsed" in line]) == 2
    train(
        config, path, options=NEVER, on_progress=shown.append, on_message=heard.append
    )
    assert len(heard) == 1
    assert heard[0].endswith("resuming from step 20")
    assert {seen.collapsed for seen in shown[1:]} == {(0, 1)}


def test_who_was_stopped_is_not_shown_as_collapsed(tmp_path, monkeypatch):
    monkeypatch.setattr("r2r2.diagnostics.representation.LEAST_RANK", 8)
    shown = []
    config = resolve(TINY, {"env": "fragile:Unjudged-v0", "env_faults": 1})
    how = RunOptions(workers=0, checkpoint_every="never")
    result = train(config, tmp_path / "run", options=how, on_progress=shown.append)
    assert len(result.stopped) == 1
    assert shown[-1].collapsed == (1,)
    events = read_events(result.folder.events)
    stopped = named(events, "stopped")[0]
    after = events[events.index(stopped) :]
    assert {e["member"] for e in named(after, "diagnostics")} == {
        result.members[1].name
    }
