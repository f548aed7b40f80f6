"""`r2r2 completion`: scripts that complete commands, options and values in a shell."""

import shlex

from r2r2.cli.argparser import FILE, FOLDER, ArgumentParser
from r2r2.cli.main import COMMANDS, command_parser
from r2r2.config.agents import AGENTS, DEFAULT_AGENT
from r2r2.config.fields import FieldSpec
from r2r2.envs.suites import PAPER_TASKS, known_tasks

PARSER = ArgumentParser(
    "completion",
    "bash|zsh|fish",
    "Print a script that completes the commands, options, agents and tasks of r2r2.",
    """\
  source <(r2r2 completion bash)
  source <(r2r2 completion zsh)
  r2r2 completion fish > ~/.config/fish/completions/r2r2.fish
""",
    positional=("bash", "zsh", "fish"),
)

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
        COMPREPLY=($(compgen -W '{commands}' -- "$word"))
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
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
autoload -Uz bashcompinit && bashcompinit
"""

# The options of a command, and the choices of its positional argument.
Completions = tuple[dict[str, FieldSpec], tuple[str, ...]]


def run(argv: list[str]) -> int:
    """Run `r2r2 completion` and return its exit code."""
    shell = PARSER.pop_argument(PARSER.parse(argv), "a shell: bash, zsh or fish")
    commands: dict[str, Completions] = {}
    for command in COMMANDS:
        agents = AGENTS if command == "train" else [DEFAULT_AGENT]
        parsers = [command_parser(command, ["--agent", name]) for name in agents]
        options = {name: spec for parser in parsers for name, spec in parser.fields.items()}
        commands[command] = options, parsers[0].choices
    script = _fish_script(commands) if shell == "fish" else _bash_script(commands)
    print(ZSH + script if shell == "zsh" else script, end="")
    return 0


def _values(spec: FieldSpec) -> str:
    """Return the values of an option, where there are only a few."""
    if spec.path in ("agent", "agents"):
        return " ".join(AGENTS)
    if spec.path in ("env", "task"):
        tasks = [*PAPER_TASKS, *(x for names in known_tasks().values() for x in names)]
        return " ".join(dict.fromkeys(tasks))
    return " ".join(spec.allowed.choices)


def _bash_script(commands: dict[str, Completions]) -> str:
    options, values = list[str](), list[str]()
    for command, (fields, arguments) in commands.items():
        flags = [f"--no-{x[2:]}" for x, spec in fields.items() if spec.kind is bool]
        words = " ".join([*fields, *flags, "--help"])
        options.append(f"        {command}) options='{words}' ;;")
        choices = {name: _values(spec) for name, spec in fields.items()}
        for previous, words in (choices | {command: " ".join(arguments)}).items():
            if words:
                values.append(f"        '{command} {previous}') values='{words}' ;;")
    names = " ".join([*commands, "--help", "--version"])
    return BASH.format(commands=names, options="\n".join(options), values="\n".join(values))


def _fish_script(commands: dict[str, Completions]) -> str:
    lines = ["complete -c r2r2 -n __fish_use_subcommand -f"]
    for command, (fields, arguments) in commands.items():
        lines.append(f"{lines[0]} -a {command} -d {shlex.quote(COMMANDS[command])}")
        start = f"complete -c r2r2 -n '__fish_seen_subcommand_from {command}'"
        if arguments:
            lines.append(f"{start} -f -a '{' '.join(arguments)}'")
        for name, spec in fields.items():
            value = f" -x -a '{_values(spec)}'"
            if spec.allowed in (FILE, FOLDER):
                value = " -r"
            elif spec.kind is bool:
                value = ""
                lines.append(f"{start} -l no-{name[2:]}")
            lines.append(f"{start} -l {name[2:]}{value} -d {shlex.quote(spec.help)}")
    return "\n".join(lines) + "\n"
