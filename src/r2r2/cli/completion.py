"""`r2r2 completion`: scripts that complete commands, options and values in a shell."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from r2r2.cli.argparser import FILE, FOLDER, ArgumentParser
from r2r2.cli.main import COMMANDS, load_command
from r2r2.config.agents import AGENTS
from r2r2.config.fields import FieldSpec
from r2r2.envs.suites import PAPER_TASKS, known_tasks

SHELLS = ("bash", "zsh", "fish")

DESCRIPTION = """\
Print a script that completes the commands, options, agents and tasks of r2r2.
Load it in the start-up file of the shell, or once for the current session:
"""

EXAMPLES = """\
  source <(r2r2 completion bash)
  source <(r2r2 completion zsh)
  r2r2 completion fish > ~/.config/fish/completions/r2r2.fish
"""

BASH = """\
_r2r2() {{
    local command=${{COMP_WORDS[1]}} word=${{COMP_WORDS[COMP_CWORD]}}
    local previous=${{COMP_WORDS[COMP_CWORD-1]}} values= options=
    if [[ $word == "=" ]]; then
        word=
    elif [[ $previous == "=" ]]; then
        previous=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    COMPREPLY=()
    if [[ $COMP_CWORD -eq 1 ]]; then
        COMPREPLY=($(compgen -W {commands} -- "$word"))
        return
    fi
    case $command in
{options}
    esac
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
        return
    fi
    case "$command $previous" in
{values}
    esac
    if [[ -n $values ]]; then
        COMPREPLY=($(compgen -W "$values" -- "$word"))
    fi
}}
complete -o default -F _r2r2 r2r2
"""

ZSH = """\
#compdef r2r2
autoload -U +X compinit && compinit
autoload -U +X bashcompinit && bashcompinit
"""


class Completions(NamedTuple):
    """What can follow a command."""

    options: dict[str, FieldSpec]
    arguments: tuple[str, ...]  # the choices of its positional argument


def make_parser(_: Sequence[str] = ()) -> ArgumentParser:
    """Return the parser of `r2r2 completion`."""
    usage = "|".join(SHELLS)
    return ArgumentParser(
        "completion", usage, DESCRIPTION, EXAMPLES, positional=True, choices=SHELLS
    )


def run(argv: list[str]) -> int:
    """Run `r2r2 completion` and return its exit code."""
    parser = make_parser()
    shell = parser.pop_argument(parser.parse(argv), "a shell: bash, zsh or fish")
    commands = {name: _completions(name) for name in COMMANDS}
    if shell == "fish":
        print(_fish_script(commands), end="")
    else:
        script = _bash_script(commands)
        print(ZSH + script if shell == "zsh" else script, end="")
    return 0


def _completions(command: str) -> Completions:
    """Return the options of a command; of `train`, those of all agents."""
    make = load_command(command).make_parser
    parsers = [make([])]
    if command == "train":
        parsers += [make(["--agent", name]) for name in AGENTS]
    options = {name: spec for parser in parsers for name, spec in parser.fields.items()}
    return Completions(options, parsers[0].choices)


def _values(spec: FieldSpec) -> tuple[str, ...]:
    """Return the values of an option, where there are only a few."""
    if spec.path in ("agent", "agents"):
        return tuple(AGENTS)
    if spec.path in ("env", "task"):
        tasks = [*PAPER_TASKS, *(x for names in known_tasks().values() for x in names)]
        return tuple(dict.fromkeys(tasks))
    return spec.allowed.choices


def _bash_script(commands: dict[str, Completions]) -> str:
    options, values = list[str](), list[str]()
    for command, (fields, arguments) in commands.items():
        flags = [f"--no-{x[2:]}" for x, spec in fields.items() if spec.kind is bool]
        words = shlex.quote(" ".join([*fields, *flags, "--help"]))
        options.append(f"        {command}) options={words} ;;")
        for name, spec in fields.items():
            if choices := _values(spec):
                words = shlex.quote(" ".join(choices))
                values.append(f'        "{command} {name}") values={words} ;;')
        if arguments:
            words = shlex.quote(" ".join(arguments))
            values.append(f'        "{command} {command}") values={words} ;;')
    names = shlex.quote(" ".join([*commands, "--help", "--version"]))
    return BASH.format(
        commands=names, options="\n".join(options), values="\n".join(values)
    )


def _fish_script(commands: dict[str, Completions]) -> str:
    lines = ["complete -c r2r2 -n __fish_use_subcommand -f"]
    for command, (fields, arguments) in commands.items():
        lines.append(
            f"complete -c r2r2 -n __fish_use_subcommand -f -a {command} "
            f"-d {shlex.quote(COMMANDS[command])}"
        )
        start = f"complete -c r2r2 -n '__fish_seen_subcommand_from {command}'"
        if arguments:
            lines.append(f"{start} -f -a {shlex.quote(' '.join(arguments))}")
        for name, spec in fields.items():
            about = f"-d {_fish_quote(spec.help)}"
            lines.append(f"{start} -l {name[2:]} {_fish_value(spec)}{about}")
            if spec.kind is bool:
                lines.append(f"{start} -l no-{name[2:]}")
    return "\n".join(lines) + "\n"


def _fish_value(spec: FieldSpec) -> str:
    if spec.kind is bool:
        return ""
    if spec.allowed in (FILE, FOLDER):
        return "-r "
    return f"-x -a {_fish_quote(' '.join(_values(spec)))} "


def _fish_quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
