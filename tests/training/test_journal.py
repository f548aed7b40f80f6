import copy

import numpy as np
import pytest

from r2r2.api import finalize_config
from r2r2.config.resolve import resolve
from r2r2.config.toml_io import to_toml
from r2r2.storage.events import read_events
from r2r2.storage.run_folder import create_run
from r2r2.training.loop import fleet_members
from r2r2.training.rollout import Episode
from r2r2.training.run_log import RunLog
from tensorboard_reader import scalars

NAMES = ["cartpole-swingup_s0", "cartpole-swingup_s1"]


@pytest.fixture(params=[True, False])
def folder(request, tmp_path):
    """The folder of a run of two members, with TensorBoard's files or without."""
    config = finalize_config(resolve({"env": "cartpole-swingup", "seeds": 2}))
    folder = create_run(tmp_path / "run", to_toml(config), NAMES, overwrite=False)
    members = fleet_members(config)
    with RunLog(config, folder, members, "name", request.param) as journal:
        journal.episode(Episode(0, 4, 500, 12.5), (600, 0), random=True)
        journal.evaluation(1, (10_000, 900), np.array([1.0, 3.0]))
        journal.losses({"critic": np.array([np.nan, 0.5])}, [(700, 0), (700, 9)])
        journal.event("policy_checkpoint", 1, (800, 9))
        journal.event("end", 1, (900, 9), {"updates_not_made": 7})
    return folder


def test_every_number_of_the_log_is_on_the_board_against_env_steps(folder):
    events = read_events(folder.events)
    kinds = ["episode", "evaluation", "losses", "policy_checkpoint", "end"]
    assert [event["event"] for event in events] == kinds
    if not folder.tensorboard.exists():
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


def test_the_board_is_there_if_it_was_asked_for(folder, request):
    wanted = request.node.callspec.params["folder"]
    assert folder.tensorboard.exists() == wanted


def test_what_it_noted_stays_as_it_was_while_the_run_goes_on(folder):
    """A thread writes it down later."""
    config = finalize_config(resolve({"env": "cartpole-swingup", "seeds": 2}))
    with RunLog(config, folder, fleet_members(config), "name") as journal:
        journal.evaluation(0, (10_000, 0), np.array([1.0]))
        journal.episode(Episode(0, 0, 500, 12.5), (500, 0), random=True)
        notes = journal.notes()
        before = copy.deepcopy(notes)
        journal.evaluation(0, (20_000, 0), np.array([2.0]))
        journal.episode(Episode(0, 1, 500, 13.5), (1_000, 0), random=True)
        journal.stop(1, (1_000, 0), "why")
    assert notes == before
