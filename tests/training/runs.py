"""Small runs of the small agent, and what their tests look at."""

import contextlib

import numpy as np

from r2r2 import resolve, train
from r2r2.api import RunOptions, make_pool
from r2r2.storage.events import read_events
from r2r2.storage.run_folder import create_run
from r2r2.training.loop import Training
from r2r2.training.run_config import finalize_config
from r2r2.training.run_log import RunLog
from r2r2.training.saved_config import fleet_members

SMALL = {
    "agent": "small_agent:SLOPE",
    "env": "toys:Story-v0",
    "agent.policy_checkpoints": True,
    "steps": 60,
    "warmup": 10,
    "eval_every": 20,
    "eval_episodes": 2,
    "log_every": 20,
}


def run(path, own=None, workers=0, **changes):
    """Train a small run; return its result and its events."""
    options = RunOptions(workers=workers, checkpoint_every="never")
    result = train(resolve(SMALL, changes), path, env=own, options=options)
    return result, read_events(result.folder.events)


@contextlib.contextmanager
def prepared(path, workers=0, **changes):
    """Return a training that has begun, and its run folder."""
    config = finalize_config(resolve(SMALL, changes))
    members = fleet_members(config)
    folder = create_run(path, "", [member.name for member in members], False)
    with (
        make_pool(config, options=RunOptions(workers=workers)) as pool,
        RunLog(config, folder, members, "name") as log,
    ):
        training = Training(config, pool, log)
        training.begin()
        yield training, folder


def select(events, kind, member=None):
    """Return the events of a kind, of one member or of all."""
    selected = [event for event in events if event["event"] == kind]
    return [e for e in selected if member is None or e["member"] == member]


def assert_same_weights(first, second, names=None):
    """Check that the weights of two results are equal to the bit."""
    for name in names or first.folder.members:
        ours, theirs = (np.load(x.folder.weights(name)) for x in (first, second))
        assert ours.files == theirs.files
        for key in ours.files:
            np.testing.assert_array_equal(ours[key], theirs[key])


def assert_same_results(first, second):
    """Check that weights and evaluations of two results are equal to the bit."""
    assert_same_weights(first, second)
    tables = [x.folder.evaluations.read_text() for x in (first, second)]
    assert tables[0] == tables[1]
