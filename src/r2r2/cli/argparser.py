"""Command-line parsing: argparse, with the fields of a config, as in TOML files, as options."""

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from r2r2.config.errors import UserError, did_you_mean, invalid_value
from r2r2.config.fields import FieldSpec, JsonObject, Range, parse_value, suggest

FILE = Range("the name of a file", bool)
FOLDER = Range("the name of a folder", bool)

HELP_OPTIONS = ("-h", "--help")
INTEGERS, STRINGS = tuple[int, ...], tuple[str, ...]
ALIASES = {"agent": ("--agent.name",)}  # as in a TOML file
METAVARS: dict[Any, str] = {  # by path, range or type
    **{"budget": "TIME", "checkpoint_every": "TIME", "env": "TASK", "member": "TASK:SEED"},
    **{FILE: "FILE", FOLDER: "DIR"},
    **{int: "N", float: "X", INTEGERS: "N,...", STRINGS: "NAME,...", JsonObject: "JSON"},
}


class ArgumentParser(argparse.ArgumentParser):
    """A parser of fields with `UserError`; `positional` allows any arguments or the listed ones."""

    def __init__(
        self,
        command: str,
        usage: str,
        description: str = "",
        examples: str = "",
        fields: Mapping[str, FieldSpec] | None = None,
        positional: bool | tuple[str, ...] = False,
    ):
        super().__init__(
            prog=f"r2r2 {command}",
            usage=f"r2r2 {command} {usage}",
            description=description,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=lambda prog: _HelpFormatter(prog, max_help_position=28),
            allow_abbrev=False,
            add_help=False,
        )
        self.fields: dict[str, FieldSpec] = {}  # by the option shown in the help
        self.choices = positional if isinstance(positional, tuple) else ()
        self._paths: list[str] = []
        self._positional = bool(positional)
        if positional:
            self.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
        self.add_fields({"options": fields or {}})

    def add_fields(self, groups: Mapping[str, Mapping[str, FieldSpec]]) -> None:
        """Add fields as options, by the title of their group in the help."""
        paths = [path for fields in groups.values() for path in fields]
        for title, fields in groups.items():
            group = self.add_argument_group(title)
            for path, spec in fields.items():
                names = [*_option_names(path, paths), *ALIASES.get(path, ())]
                negated = [f"--no-{name[2:]}" for name in names if spec.kind is bool]
                self.fields[names[0]] = spec
                self._paths.append(names[-1])
                keys = (spec.path, spec.allowed, spec.kind)
                # Options before positional arguments must not take an optional value.
                takes_list = spec.kind in (INTEGERS, STRINGS) and not self._positional
                is_flag = spec.kind is bool and self._positional
                group.add_argument(
                    *names,
                    *negated,
                    action=_FieldAction,
                    spec=spec,
                    dest=path,
                    nargs="*" if takes_list else 0 if is_flag else "?",
                    metavar=next((METAVARS[x] for x in keys if x in METAVARS), "NAME"),
                    default=argparse.SUPPRESS,
                    help=_help_text(spec),
                )

    def parse(self, argv: Sequence[str], partial: bool = False) -> dict[str, Any]:
        """Return options by path, positional ones as `arguments`; `partial` ignores unknown."""
        tokens = _normalize(token for token in argv if token not in HELP_OPTIONS)
        if partial:
            return vars(self.parse_known_args(tokens)[0])
        namespace, unknown = self.parse_known_intermixed_args(tokens)
        if unknown:
            self._reject(unknown)
        return vars(namespace)

    def pop_argument(self, given: dict[str, Any], expected: str) -> str:
        """Remove the one positional argument from parsed ones, and return it."""
        arguments = given.pop("arguments")
        if not arguments:
            raise UserError(f"expected {expected}")
        if len(arguments) > 1:
            raise UserError(f"unexpected argument {arguments[1]!r}")
        value = str(arguments[0])
        if self.choices and value not in self.choices:
            near = did_you_mean(value, self.choices)
            raise UserError(f"expected {expected}, got {value!r}{near}")
        return value

    def pop_arguments(self, given: dict[str, Any], expected: str) -> tuple[str, str]:
        """Remove the two positional arguments from parsed ones, and return them."""
        arguments = given.pop("arguments")
        if len(arguments) < 2:
            raise UserError(f"expected {expected}")
        if len(arguments) > 2:
            raise UserError(f"unexpected argument {arguments[2]!r}")
        return str(arguments[0]), str(arguments[1])

    def error(self, message: str) -> NoReturn:
        """Raise an error that argparse found, named by the option alone."""
        message = message.replace("ignored explicit argument", "expected no value, got")
        raise UserError(re.sub(r"^argument ([^/:]*)[^:]*: ", r"\1: ", message))

    def _reject(self, unknown: Sequence[str]) -> NoReturn:
        name = next((x for x in unknown if x.startswith("--")), "").partition("=")[0]
        if not name:
            raise UserError(f"unexpected argument {unknown[0]!r}")
        if candidates := [x for x in self._paths if x.endswith(f".{name[2:]}")]:
            raise UserError(f"{name}: ambiguous option; expected one of {', '.join(candidates)}")
        near = suggest(name, self._paths if "." in name else self.fields)
        raise UserError(f"{name}: unknown option{near or f'; see {self.prog} --help'}")


class _FieldAction(argparse.Action):
    """Store a value as its field parses it."""

    def __init__(self, spec: FieldSpec, **options: Any):
        super().__init__(**options)
        self.spec = spec

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        name = str(option_string)
        text = ",".join(values) if isinstance(values, list) else values
        if self.spec.kind is bool:
            negated = name.startswith("--no-")
            if negated and text:
                raise invalid_value(name, "no value", text)
            text = text or str(not negated)
        elif values is None or values == []:
            raise UserError(f"{name}: value missing; expected {self.spec.expected}")
        setattr(namespace, self.dest, parse_value(self.spec._replace(path=name), text))


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """One line per option: its shortest name, its value, help and default."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not isinstance(action, _FieldAction):
            return super()._format_action_invocation(action)
        name = action.option_strings[0]
        if action.spec.kind is bool:
            return f"--[no-]{name[2:]}"
        return f"{name} {action.metavar}"


def field_table(*rows: tuple[str, Any, Any, str, Range]) -> dict[str, FieldSpec]:
    """Return fields by path, from rows of path, type, default, help and range."""
    return {row[0]: FieldSpec(*row) for row in rows}


def wants_help(argv: Sequence[str]) -> bool:
    """Return whether a command line asks for help, at any place."""
    return any(token in HELP_OPTIONS for token in argv)


def _normalize(argv: Iterable[str]) -> list[str]:
    """Write names with dashes; join values such as -1,2, which look like options, to theirs."""
    tokens: list[str] = []
    for token in argv:
        if token.startswith("--"):
            name, equals, value = token.partition("=")
            tokens.append(name.replace("_", "-") + equals + value)
        elif re.match(r"-[\d.]", token) and tokens and re.match("--[^=]+$", tokens[-1]):
            tokens[-1] += f"={token}"
        else:
            tokens.append(token)
    return tokens


def _option_names(path: str, paths: Iterable[str]) -> list[str]:
    """Return the ways to write an option, the shortest unique one first."""
    parts = path.split(".")
    suffixes = [".".join(parts[i:]) for i in reversed(range(len(parts)))]
    return [
        "--" + suffix.replace("_", "-")
        for suffix in suffixes
        if suffix == path
        or sum(other == suffix or other.endswith(f".{suffix}") for other in paths) == 1
    ]


def _help_text(spec: FieldSpec) -> str:
    """Return the help of a field with its default in brackets, for argparse."""
    shown = spec.value
    if isinstance(shown, tuple):
        shown = ",".join(map(str, shown))
    elif spec.kind is bool:
        shown = "on" if shown else "off"
    default = "" if shown == "" else f" [{shown}]"
    return (spec.help + default).replace("%", "%%")
