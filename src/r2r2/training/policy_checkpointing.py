"""When a member trains, and when its acting policy becomes the one evaluated.

TD7 keeps its acting policy fixed while it is assessed for whole episodes, and trains
only in between. This is host arithmetic on a few numbers per member.
"""

from typing import NamedTuple

from r2r2.config.common import AssessmentConfig


class AssessmentState(NamedTuple):
    """One member's assessment so far."""

    max_episodes: int
    episodes: int = 0
    steps: int = 0  # decision steps since the last training
    min_return: float = 1e8
    best_min: float = -1e8


class NextAction(NamedTuple):
    """What is to be done for a member: keep its policy, then make updates."""

    keep: bool
    updates: int


def after_episode(
    tracker: AssessmentState, length: int, episode_return: float, utd: int
) -> tuple[AssessmentState, NextAction]:
    """The tracker after an episode, and what follows from it.

    A policy that falls below the best worst-case is dropped at once; one that stands
    for all its episodes becomes the policy checkpoint. Either way training follows.
    """
    tracker = tracker._replace(
        episodes=tracker.episodes + 1,
        steps=tracker.steps + length,
        min_return=min(tracker.min_return, episode_return),
    )
    worse = tracker.min_return < tracker.best_min
    if not worse and tracker.episodes < tracker.max_episodes:
        return tracker, NextAction(keep=False, updates=0)
    best = tracker.best_min if worse else tracker.min_return
    fresh = AssessmentState(max_episodes=tracker.max_episodes, best_min=best)
    return fresh, NextAction(keep=not worse, updates=tracker.steps * utd)


def after_updates(
    config: AssessmentConfig, tracker: AssessmentState, made: int, count: int, utd: int
) -> AssessmentState:
    """The tracker after `count` updates beyond `made`: they may contain the switch.

    From there on assessments are longer, and the best score counts for less (for more,
    if it is negative: the release does so too).
    """
    switch = config.switch * (utd if config.count == "decisions" else 1)
    if not made <= switch < made + count:
        return tracker
    return tracker._replace(
        max_episodes=config.late_episodes,
        best_min=tracker.best_min * config.reset_weight,
    )
