"""What a run is made of, for those who step it, save it and put it back."""

from collections.abc import Callable
from typing import NamedTuple

from r2r2.agents.base import Agent
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Member
from r2r2.envs.vector.pool import EnvPool
from r2r2.replay.normalizer import IdentityNormalizer, Normalizer
from r2r2.training.eval_scheduler import EvalScheduler
from r2r2.training.fleet import Fleet
from r2r2.training.rollout import Rollout
from r2r2.training.run_log import RunLog
from r2r2.training.schedule import Schedule

OnMessage = Callable[[str], None]  # told sentences for people


def ignore_message(_: str) -> None:
    """For a run that nobody listens to."""


class HostState(NamedTuple):
    """Where every member stands, as far as the host knows it."""

    members: tuple[Member, ...]
    rollout: Rollout
    schedule: Schedule
    normaliser: Normalizer | IdentityNormalizer
    points: EvalScheduler
    faults: dict[int, int]  # by member, how often its environments failed
    stopped: dict[int, str]  # by member, why
    collapsed: set[int]  # members, by what was last seen of their representations

    def step(self) -> int:
        """The least decision step of those who go on; of all, where nobody does."""
        going = [m for m in range(len(self.members)) if m not in self.stopped]
        return int(self.rollout.steps[going or slice(None)].min())


class RunState(NamedTuple):
    """All parts of a run."""

    config: RunConfig
    agent: Agent
    pool: EnvPool  # slots of the members, then those of their evaluation
    journal: RunLog
    fleet: Fleet
    host: HostState
    say: OnMessage = ignore_message
