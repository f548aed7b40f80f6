"""TD7's policy checkpoints against recorded traces of the original implementation."""

import pytest
from fixtures import golden

from r2r2.config.common import AssessmentConfig
from r2r2.training.schedule import AssessmentState, after_episode, after_updates

FILE = golden("td7")
TRACES = sorted({key.split("/")[1] for key in FILE if key.startswith("ckpt/")})


@pytest.mark.parametrize("trace", TRACES)
def test_trace(trace):
    recorded = {k.split("/")[2]: v for k, v in FILE.items() if f"ckpt/{trace}/" in k}
    config = AssessmentConfig(
        switch=int(recorded["steps_before_checkpointing"]),
        late_episodes=int(recorded["max_eps_when_checkpointing"]),
    )
    tracker, made = AssessmentState(config.early_episodes), 0
    for i, (length, score) in enumerate(
        zip(recorded["ep_timesteps"], recorded["ep_return"], strict=True)
    ):
        tracker, order = after_episode(tracker, int(length), float(score), utd=1)
        tracker = after_updates(config, tracker, made, order.updates, utd=1)
        made += order.updates
        shown = {
            "eps_since_update": tracker.episodes,
            "timesteps_since_update": tracker.steps,
            "max_eps_before_update": tracker.max_episodes,
            "min_return": tracker.min_return,
            "best_min_return": tracker.best_min,
            "checkpoint_copied": int(order.checkpoint),
            "train_calls": order.updates,
            "training_steps": made,
        }
        expected = {key: recorded[key][i] for key in shown}
        assert shown == pytest.approx(expected, rel=1e-12), f"episode {i}"


def test_traces_were_found():
    assert TRACES
