"""The members of all runs, each seed once."""

from collections.abc import Mapping

from r2r2.report.study import MemberData, Study
from r2r2.stats.scores import Method

Member = tuple[Method, str, int]  # method, task and seed


def members_by_seed(study: Study) -> Mapping[Member, MemberData]:
    """Every seed of every method and task, of two copies of a run the longer.

    Scores come together by seed too: what is counted twice would seem surer than it is.
    """
    found: dict[Member, MemberData] = {}
    for run in study.runs:
        for member in run.members:
            which = run.results.method, member.task, member.seed
            there = found.setdefault(which, member)
            if member.env_steps > there.env_steps:
                found[which] = member
    return found
