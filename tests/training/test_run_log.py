"""The files that training writes: events, TensorBoard, and notes for checkpoints."""

import copy

import numpy as np
import pytest

from r2r2.config.resolve import resolve
from r2r2.config.toml_io import to_toml
from r2r2.storage.events import read_events
from r2r2.storage.run_folder import create_run
from r2r2.training.rollout import Episode
from r2r2.training.run_config import finalize_config
from r2r2.training.run_log import RunLog
from r2r2.training.saved_config import fleet_members
from tensorboard_reader import scalars

NAMES = ["cartpole-swingup_s0", "cartpole-swingup_s1"]
CONFIG = finalize_config(resolve({"env": "cartpole-swingup", "seeds": 2}))


@pytest.fixture
def folder(tmp_path):
    return create_run(tmp_path / "run", to_toml(CONFIG), NAMES, overwrite=False)


@pytest.mark.parametrize("tensorboard", [True, False])
def test_every_logged_number_is_in_tensorboard(folder, tensorboard):
    members = fleet_members(CONFIG)
    with RunLog(CONFIG, folder, members, "name", tensorboard) as log:
        log.episode(Episode(0, 4, 500, 12.5), (600, 0), random=True)
        log.evaluation(1, (10_000, 900), np.array([1.0, 3.0]))
        log.losses({"critic": np.array([np.nan, 0.5])}, [(700, 0), (700, 9)])
        log.event("policy_checkpoint", 1, (800, 9))
        log.event("end", 1, (900, 9), {"updates_not_made": 7})
    events = read_events(folder.events)
    kinds = ["episode", "evaluation", "losses", "policy_checkpoint", "end"]
    assert [event["event"] for event in events] == kinds
    if not tensorboard:
        assert sorted(p.name for p in folder.path.iterdir()) == [
            *NAMES,
            *("config.toml", "evaluations.csv", "events.jsonl", "manifest.json"),
        ]
        return
    first, second = (scalars(folder.tensorboard / name) for name in NAMES)
    assert first == [
        (1200, "episode/episode", 4),
        (1200, "episode/length", 500),
        (1200, "episode/return", 12.5),
    ]
    assert second == [
        (20_000, "evaluation/mean", 2.0),
        (20_000, "evaluation/std", pytest.approx(2**0.5)),
        (20_000, "evaluation/episodes", 2),
        (1400, "losses/critic", 0.5),
        (1800, "end/updates_not_made", 7),
    ]


def test_losses_are_due_by_the_steps_of_members_that_are_not_stopped(folder):
    with RunLog(CONFIG, folder, fleet_members(CONFIG), "name") as log:
        log.stop(1, (100, 0), "why")
        assert log.losses_due(np.array([1_000, 100]))
        log.losses({"critic": np.array([0.5, np.nan])}, [(1_000, 9), (100, 0)])
        assert not log.losses_due(np.array([1_999, 100]))
        assert log.losses_due(np.array([2_000, 100]))
        notes = log.notes()
        log.restore(notes, set())  # the stopped member is trained again
        assert not log.losses_due(np.array([1_000, 990]))
        assert log.losses_due(np.array([1_000, 1_000 + 2 * CONFIG.log_every]))


def test_notes_are_copies(folder):
    """A thread writes them while the run continues."""
    with RunLog(CONFIG, folder, fleet_members(CONFIG), "name") as log:
        log.evaluation(0, (10_000, 0), np.array([1.0]))
        log.episode(Episode(0, 0, 500, 12.5), (500, 0), random=True)
        notes = log.notes()
        before = copy.deepcopy(notes)
        log.evaluation(0, (20_000, 0), np.array([2.0]))
        log.episode(Episode(0, 1, 500, 13.5), (1_000, 0), random=True)
        log.stop(1, (1_000, 0), "why")
    assert notes == before


def test_best_evaluation_has_the_highest_return_so_far(folder):
    best = []
    with RunLog(CONFIG, folder, fleet_members(CONFIG), "name") as log:
        for mean in (np.nan, -3.0, -5.0, -3.0, -2.0, np.nan, 7.0):
            best.append(mean > log.best_mean(0))
            log.evaluation(0, (10_000, 0), np.array([mean]))
    assert best == [False, True, False, False, True, False, True]
