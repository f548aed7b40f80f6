"""What a run is made of, for those who step it, save it and put it back."""

from collections.abc import Callable
from typing import NamedTuple

from r2r2.config.run import RunConfig
from r2r2.core import Agent
from r2r2.envs.members import Member
from r2r2.envs.pool import EnvPool
from r2r2.interact.normalise import Normaliser, Raw
from r2r2.interact.rollout import Rollout
from r2r2.interact.schedule import Schedule
from r2r2.learn.fleet import Fleet
from r2r2.run.journal import Journal
from r2r2.run.points import Points

Say = Callable[[str], None]  # told sentences for people


def silent(_: str) -> None:
    """For a run that nobody listens to."""


class Host(NamedTuple):
    """Where every member stands, as far as the host knows it."""

    members: tuple[Member, ...]
    rollout: Rollout
    schedule: Schedule
    normaliser: Normaliser | Raw
    points: Points
    faults: dict[int, int]  # by member, how often its environments failed
    stopped: dict[int, str]  # by member, why
    collapsed: set[int]  # members, by what was last seen of their representations

    def step(self) -> int:
        """The least decision step of those who go on; of all, where nobody does."""
        going = [m for m in range(len(self.members)) if m not in self.stopped]
        return int(self.rollout.steps[going or slice(None)].min())


class Run(NamedTuple):
    """All parts of a run."""

    config: RunConfig
    agent: Agent
    pool: EnvPool  # slots of the members, then those of their evaluation
    journal: Journal
    fleet: Fleet
    host: Host
    say: Say = silent
