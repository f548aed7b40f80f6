"""A command line as names and texts, and the help that shows a table of fields.

Written here rather than with argparse because the config's own fields are the options:
the agent's name decides which there are, TOML files take the same names, and every
mistake, in either, is answered by the same kind of sentence.
"""

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from r2r2.config.errors import UserError
from r2r2.config.fields import FieldSpec, find_field

NAME_WIDTH = 27
HELP_TOKENS = ("-h", "--help")

Option = tuple[str, str | None]  # a name, and its value where it has one


class Words(NamedTuple):
    """A command line taken apart: the options, and what stands alone."""

    options: tuple[Option, ...]
    alone: tuple[str, ...]


def split(argv: Sequence[str]) -> Words:
    """Takes a command line apart; a value is what follows a name without two dashes.

    Example:
        >>> split(["RUN", "--episodes", "3", "--quick", "--seeds=-1,2"]).options
        (('episodes', '3'), ('quick', None), ('seeds', '-1,2'))
    """
    options: list[Option] = []
    alone: list[str] = []
    named = False  # the last token is a name that still has no value
    for token in argv:
        if token.startswith("--"):
            name, equals, value = token[2:].partition("=")
            options.append((name.replace("-", "_"), value if equals else None))
            named = not equals
        elif named:
            options[-1] = (options[-1][0], token)
            named = False
        else:
            alone.append(token)
    return Words(tuple(options), tuple(alone))


def only(alone: Sequence[str], name: str, allowed: str) -> str:
    """The one word that stands alone; it has a name and what is allowed for it."""
    if not alone:
        raise UserError(f"{name} is missing; allowed is {allowed}")
    if len(alone) > 1:
        raise UserError(f"{name} is {' '.join(alone)!r}; allowed is one: {allowed}")
    return alone[0]


def wants_help(argv: Sequence[str]) -> bool:
    """Whether a command line asks for help, at any place."""
    return any(token in HELP_TOKENS for token in argv)


def one_line(sentence: str) -> str:
    """A sentence whose parts may come out of a file, safe to show at a terminal.

    Example:
        >>> print(one_line("env is 'a" + chr(10) + chr(27) + "[2J'"))
        env is 'a<0xa><0x1b>[2J'
    """
    return "".join(c if c.isprintable() else f"<{ord(c):#x}>" for c in sentence)


def texts(options: Iterable[Option], table: Mapping[str, FieldSpec]) -> dict[str, str]:
    """What was given for a table's fields, by path; of two the later one counts.

    Example:
        >>> from r2r2.config.resolve import default_config
        >>> from r2r2.config.fields import flatten_config
        >>> table = flatten_config(default_config("td7"))
        >>> texts([("no_policy_checkpoints", None)], table)
        {'agent.policy_checkpoints': 'false'}
    """
    return dict(_text(name, value, table) for name, value in options)


def _text(
    name: str, value: str | None, table: Mapping[str, FieldSpec]
) -> tuple[str, str]:
    if name.startswith("no_"):
        leaf = find_field(table, name.removeprefix("no_"))
        if value is not None:
            raise UserError(f"{name} is {value!r}; allowed is no value at all")
        return leaf.path, "false"
    leaf = find_field(table, name)
    if value is None:
        value = "true" if leaf.kind is bool else ""
    return leaf.path, value


def fields_help(table: Mapping[str, FieldSpec], top: str = "the run") -> str:
    """Every field with its help and its default, in groups."""
    groups: dict[str, list[str]] = {}
    for path, leaf in table.items():
        head = path.rpartition(".")[0]
        title = head.replace(".", ": ") or top
        groups.setdefault(title, []).append(_line(leaf, _short(path, table)))
    return "\n\n".join("\n".join([f"{t}:", *lines]) for t, lines in groups.items())


def _short(path: str, table: Mapping[str, FieldSpec]) -> str:
    """The end of a field's name where that is unique, or else the whole name."""
    end = path.rpartition(".")[2]
    return end if sum(p.rpartition(".")[2] == end for p in table) == 1 else path


def _line(leaf: FieldSpec, name: str) -> str:
    option = name.replace("_", "-")
    option = f"--[no-]{option}" if leaf.kind is bool else f"--{option} X"
    shown = ",".join(map(str, leaf.value)) if isinstance(leaf.value, tuple) else leaf[2]
    default = f" [{str(shown).lower() if leaf.kind is bool else shown}]"
    return textwrap.fill(
        leaf.help + (default if shown != "" else ""),
        width=shutil.get_terminal_size().columns,
        initial_indent=f"  {option:<{NAME_WIDTH}} ",
        subsequent_indent=" " * (NAME_WIDTH + 3),
        break_long_words=False,
        break_on_hyphens=False,
    )
