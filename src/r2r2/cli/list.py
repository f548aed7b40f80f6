"""`r2r2 list`: what can be trained, and on what."""

from r2r2.cli.argparser import only, split, texts, wants_help
from r2r2.config.agents import AGENTS
from r2r2.config.errors import UserError, did_you_mean
from r2r2.envs.suites import PAPER_TASKS, known_tasks

SUBJECTS = ("agents", "envs")


def list_command(argv: list[str]) -> int:
    """`r2r2 list agents|envs`."""
    if wants_help(argv):
        print("usage: r2r2 list agents|envs\n\nWhat can be trained, and on what.")
        return 0
    words = split(argv)
    texts(words.options, {})
    what = only(words.alone, "what", "agents or envs, as in 'r2r2 list agents'")
    if what not in SUBJECTS:
        near = did_you_mean(what, SUBJECTS)
        raise UserError(f"what is {what!r}; allowed are {', '.join(SUBJECTS)}{near}")
    if what == "agents":
        for name, spec in AGENTS.items():
            print(f"{name:18} {spec.description}")
    else:
        _list_tasks()
    return 0


def _list_tasks() -> None:
    print("the paper's tasks (observation, action):")
    for name, task in PAPER_TASKS.items():
        print(f"  {name:18} {task.suite:10} ({task.obs_dim}, {task.action_dim})")
    for suite, names in known_tasks().items():
        print(f"{suite}, also:")
        others = [name for name in names if name not in PAPER_TASKS]
        print("  " + "  ".join(others))
    print("and any Gymnasium id of your own with flat observations and bounded")
    print("continuous actions, as module:Id-v0")
