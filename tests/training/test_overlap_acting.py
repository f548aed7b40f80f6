"""Members that act with the policy of the previous step, while its updates are made."""

import dataclasses
import threading

import numpy as np
import pytest
from interrupted import NEVER, OFTEN, assert_same, checkpoint, killed_after, tiny, train_saving
from recorded import save_walks
from runs import assert_same_results, assert_same_weights, select
from test_killed_runs import Command
from toys import Story

from r2r2 import UserError, resolve, train
from r2r2.cli.train import parse_train
from r2r2.config.toml_io import digest, to_toml
from r2r2.storage.arrays import read_arrays
from r2r2.storage.events import read_events
from r2r2.storage.run_folder import open_run
from r2r2.training import fleet
from r2r2.training.fleet import Fleet

pytestmark = pytest.mark.optimized

WARMUP = 10
FIELDS = {
    "agent": "small_agent:SLOPE",
    "env": "walks:Walk",
    "steps": 40,
    "warmup": WARMUP,
    "utd": 2,
    "eval_every": 15,
    "eval_episodes": 2,
    "log_every": 20,
    "overlap_acting": True,
}


def config_of(**changes):
    return resolve(FIELDS, changes)


@pytest.fixture
def history(monkeypatch):
    """Actors of the first member: by updates done, and by the steps at which they acted."""
    trained, acted = {}, {}
    train, act = Fleet.train, Fleet.act

    def seen_train(self, call, made, *rest):
        trained[int(made[0])] = np.array(self.states.actor[0])
        train(self, call, made, *rest)

    def seen_act(self, obs, steps):
        acted[int(steps[0])] = np.array(self.policies[0])
        return act(self, obs, steps)

    monkeypatch.setattr(Fleet, "train", seen_train)
    monkeypatch.setattr(Fleet, "act", seen_act)
    return trained, acted


@pytest.mark.parametrize(("overlap", "age", "utd"), [(False, 0, 2), (True, 1, 2), (True, 1, 3)])
def test_policies_that_act_are_those_of_the_previous_step(tmp_path, history, overlap, age, utd):
    """Also after evaluations, during which nobody steps, and if a step needs several calls."""
    config = config_of(utd=utd, overlap_acting=overlap)
    train(config, tmp_path / "run", options=NEVER)
    trained, acted = history
    assert list(acted) == list(range(WARMUP, config.steps))
    for step, actor in acted.items():
        updates = utd * max(0, step - WARMUP - age)
        np.testing.assert_array_equal(actor, trained[updates], err_msg=f"step {step}")
    assert len({actor.tobytes() for actor in acted.values()}) == len(acted) - age


def test_first_step_after_updates_on_data_uses_their_policy(tmp_path, history):
    data = save_walks(tmp_path / "data.npz")
    train(
        config_of(prefill=data, prefill_only_updates=300, warmup=0), tmp_path / "run", options=NEVER
    )
    trained, acted = history
    for step in (0, 1, 2, 3):
        np.testing.assert_array_equal(acted[step], trained[300 + 2 * max(0, step - 1)])


class Signals(Story):
    """Says when it steps."""

    stepped = threading.Event()

    def step(self, action):
        self.stepped.set()
        return super().step(action)


@pytest.mark.parametrize("overlap", [False, True])
def test_environments_step_while_updates_run(tmp_path, monkeypatch, overlap):
    """Each call of updates waits until an environment steps, or ends without it."""
    run_calls, overlapped = fleet.run_calls, []

    def waiting(*arguments):
        patience = 20 if overlap and len(overlapped) < 14 else 0.02
        overlapped.append(Signals.stepped.wait(patience))
        return run_calls(*arguments)

    original = Fleet.train

    def start(self, *arguments):
        Signals.stepped.clear()
        original(self, *arguments)

    monkeypatch.setattr(fleet, "run_calls", waiting)
    monkeypatch.setattr(Fleet, "train", start)
    config = config_of(env="any", steps=25, eval_every=25, overlap_acting=overlap)
    train(config, tmp_path / "run", env=Signals, options=NEVER)
    assert len(overlapped) == 15
    # Nothing is left to step during the updates of the last step.
    assert overlapped[:-1] == [overlap] * 14


FLEET = config_of(seeds=3, utd=3, steps=30, replay_size=25)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with checkpoints after some iterations of its loop."""
    path = tmp_path_factory.mktemp("whole") / "run"
    return train_saving(FLEET, path, lambda number: number % 7 == 0)


def test_results_do_not_depend_on_workers(whole, tmp_path):
    options = NEVER._replace(workers=2)
    assert_same_results(train(FLEET, tmp_path / "run", options=options), whole)


def test_checkpoints_resume_bit_exact(whole, tmp_path):
    numbers = range(1, len(list((whole.folder.path / "checkpoints").glob("*.json"))))
    behind = 0  # checkpoints in which the acting policies are older than the trained ones
    for number in numbers:
        arrays, _ = checkpoint(whole.folder.path, number)
        if not arrays["schedule/made"].any():
            continue
        trained, acting = (arrays[f"fleet/{x}"] for x in ("learners/state/actor", "policies"))
        behind += bool((trained != acting).any() and arrays["schedule/owed"].any())
        path = killed_after(whole, tmp_path / str(number), number)
        assert_same(train(FLEET, path, options=NEVER), whole)
    assert behind


def test_run_that_gets_more_steps_continues_as_if_it_had_had_them(tmp_path):
    longer = config_of(steps=30, eval_every=20)
    train(dataclasses.replace(longer, steps=20), tmp_path / "run", options=OFTEN)
    result = train(longer, tmp_path / "run", options=OFTEN)
    assert_same_weights(result, train(longer, tmp_path / "whole", options=NEVER))


@pytest.mark.parametrize("utd", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_member_of_a_fleet_has_its_own_schedule(tmp_path, utd):
    """Its neighbour loses a step, and is then at other steps and in other calls."""
    fields = {"utd": utd, "steps": 45}
    alone = train(config_of(env="fragile:Calm-v0", **fields), tmp_path / "alone", options=NEVER)
    tasks = "fragile:Raises-v0,fragile:Calm-v0"
    both = train(config_of(env=tasks, **fields), tmp_path / "both", options=NEVER)
    name = alone.folder.members[0]
    events = read_events(both.folder.events)
    (dropped,) = select(events, "episode_dropped")
    assert WARMUP < dropped["decision_step"] < 45
    ours, theirs = (read_arrays(x.folder.weights(name)) for x in (both, alone))
    for key, array in theirs.items():
        np.testing.assert_allclose(ours[key], array, rtol=1e-4, atol=1e-7, err_msg=key)
    counts = [
        [(e["decision_step"], e["update_step"]) for e in select(x, "evaluation", name)]
        for x in (events, read_events(alone.folder.events))
    ]
    assert counts[0] == counts[1] == [(s, utd * max(0, s - WARMUP)) for s in (15, 30, 45)]


def test_option_is_off_by_default_and_changes_the_result(tmp_path):
    base = dataclasses.replace(config_of(), overlap_acting=False)
    assert resolve({"env": "any", "agent": "minphi"}).overlap_acting is False
    assert digest(base) != digest(config_of())
    assert "overlap_acting = true" in to_toml(config_of())
    results = [
        train(x, tmp_path / str(n), options=NEVER) for n, x in enumerate((base, config_of()))
    ]
    weights = [read_arrays(x.folder.weights(x.folder.members[0])) for x in results]
    assert any((array != weights[1][key]).any() for key, array in weights[0].items())


def test_option_is_refused_with_policy_checkpoints():
    with pytest.raises(UserError) as error:
        resolve({"agent": "td7+r2r2", "env": "Hopper-v5", "overlap_acting": True})
    assert str(error.value) == (
        "overlap_acting: expected false, as 'td7+r2r2' has policy checkpoints and updates between "
        "episodes, got True"
    )
    words = "--agent td7 --env Hopper-v5 --no-policy-checkpoints --overlap-acting"
    assert parse_train(words.split()).config.overlap_acting


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "changes"),
    [
        ("td7", {"seeds": 2, "agent.policy_checkpoints": False}),
        ("minphi+r2r2", {"seeds": 2}),
        ("simbav2", {"seeds": "5,"}),
    ],
)
def test_every_family_resumes_bit_exact(tmp_path, agent, changes):
    config = tiny(agent, overlap_acting=True, **changes)
    whole = train_saving(config, tmp_path / "whole", lambda number: number % 4 == 0)
    number = len(list((tmp_path / "whole/checkpoints").glob("*.json"))) // 2
    path = killed_after(whole, tmp_path / "killed", number)
    assert_same(train(config, path, options=NEVER._replace(workers=2)), whole)


@pytest.mark.slow
def test_resume_is_bit_exact_after_a_real_kill(tmp_path):
    config = config_of(seeds=2, steps=300)
    command = Command(tmp_path, config)
    command.run_until(lambda before: command.newest() > before + 12)
    assert command.start().wait() == 0
    (resumed,) = select(read_events(command.path / "events.jsonl"), "resumed")
    assert WARMUP < resumed["decision_step"] < 300
    expected = train(config, tmp_path / "whole", options=NEVER)
    assert_same(expected._replace(folder=open_run(command.path)), expected)
