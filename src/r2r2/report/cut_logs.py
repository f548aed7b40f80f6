"""Logs of finished runs that end too early, as after a copy that was not whole."""

from collections.abc import Mapping, Sequence

from r2r2.config.run import RunConfig
from r2r2.record.evaluations import Row
from r2r2.report.study import MemberData

Which = tuple[str, int]  # a task and a seed


def cut_logs(
    config: RunConfig, rows: Sequence[Row], members: Sequence[MemberData]
) -> Mapping[Which, str]:
    """What the logs of a finished run's members lack, by task and seed.

    Every evaluation is in the log, so a member that was not stopped has an event at the
    last step that one was due at, and none was evaluated after its last event.

    Example:
        >>> config = RunConfig(steps=1500, eval_every=500, action_repeat=1)
        >>> member = MemberData("a_s0", "a", 0, 900, 0, {}, (), (), "")
        >>> cut_logs(config, [], [member])
        {('a', 0): 'a log that ends at environment step 900 of 1,500'}
        >>> cut_logs(config, [], [member._replace(stopped="a loss was not finite")])
        {}
    """
    gap = max(1, config.eval_every // config.eval_average)
    due = config.steps // gap * gap * config.action_repeat
    evaluated: dict[Which, int] = {}
    for row in rows:
        which = row.env_name, row.seed
        evaluated[which] = max(row.env_step, evaluated.get(which, 0))
    found: dict[Which, str] = {}
    for member in members:
        which = member.task, member.seed
        least = max(0 if member.stopped else due, evaluated.get(which, 0))
        if member.env_steps < least:
            whole = config.steps * config.action_repeat
            ends = f"environment step {member.env_steps:,} of {whole:,}"
            found[which] = f"a log that ends at {ends}"
    return found
