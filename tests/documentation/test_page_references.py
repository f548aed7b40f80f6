"""Links, options, commands, names and paths in the documentation exist."""

import functools
import pkgutil
import re
import shlex

import pytest
from doc_pages import ROOT, all_blocks, code_spans, headings, links, pages, read

import r2r2
from r2r2.cli.main import COMMANDS, command_parser
from r2r2.config.agents import AGENTS

PAGES = pages()
# Options of other programs that the documentation mentions.
OTHER_OPTIONS = {
    "docker": {"--gpus", "--rm"},
    "git": {"--depth"},
    "pre-commit": {"--all-files"},
    "pytest": {"--dist", "--durations", "--collect-only", "--hypothesis-profile"},
    "ruff": {"--check", "--fix"},
    "mypy": {"--strict"},
    "ray": {
        *("--address", "--head", "--node-ip-address", "--port", "--include-dashboard"),
        *("--num-cpus", "--num-gpus", "--generate"),
    },
    "sbatch": {
        *("--partition", "--time", "--mem", "--array", "--account", "--qos", "--clusters"),
        *("--reservation", "--mail", "--requeue"),
    },
    "XLA": {"--xla-gpu-enable-triton-gemm"},
}
# An option of `ddpg:DDPG`, an example of an agent, and one that r2r2 answers with a suggestion.
EXAMPLE_OPTIONS = {"--noise", "--gamma"}
FOLDERS = ["src", "docs", "tests", "benchmarks", "examples"]
# A source distribution does not have these.
FOLDERS += [name for name in (".ci", ".github") if (ROOT / name).is_dir()]
# Paths that the documentation names and that are not there, with the reason.
ABSENT: dict[str, str] = {}
# Scripts that commands of the same page write, in a folder.
WRITTEN_SCRIPTS = ("robot/policy.py",)
OPTION = re.compile(r"(?<![\w-])--[a-z][\w.-]*[a-z0-9]")


SCRIPTS = (*sorted((ROOT / "benchmarks").glob("*.py")), *sorted((ROOT / "docs").rglob("*.py")))


def options_of_script(path):
    return set(re.findall(r"add_argument\(\s*\"(--[\w-]+)", path.read_text()))


@functools.cache
def options_of_command(name):
    """Return the options of a command, in all their spellings; of `train`, with all agents."""
    if name == "train":
        parsers = [command_parser("train", ["--agent", agent]) for agent in AGENTS]
    else:
        parsers = [command_parser(name)]
    actions = [action for parser in parsers for action in parser._actions]
    return {"--help"} | {option for action in actions for option in action.option_strings}


@pytest.mark.parametrize("page", PAGES)
def test_links_and_anchors_exist(page):
    folder, wrong = (ROOT / page).parent, []
    for line, target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (folder / name).resolve() if name else ROOT / page
        if not path.exists() or ROOT not in path.parents:
            wrong.append(f"{page}:{line}: {target}: no such file")
        elif anchor and anchor not in headings(path.relative_to(ROOT).as_posix()):
            wrong.append(f"{page}:{line}: {target}: no such heading")
    assert not wrong, "\n".join(wrong)


def test_readme_is_one_screen_and_has_both_commands():
    lines = read("README.md").splitlines()
    assert len(lines) <= 80
    begin, end = lines.index("<!-- test -->"), lines.index("<!-- /test -->")  # .ci/run reads it
    assert [x.endswith(".venv/bin/pytest") for x in lines[begin:end]].count(True) == 1
    assert any(line.endswith("&& .venv/bin/r2r2 train") for line in lines)


def test_readme_has_its_figure_once_it_exists():
    figure = "docs/figures/learning_curves.svg"
    shown = {target for _, target in links("README.md")}
    assert (figure in shown) == (ROOT / figure).is_file()
    assert figure in read("README.md")  # else a comment says where it goes


def places(pattern):
    """Return the places of the matches of a pattern, by match."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        for number, text in enumerate(read(page).splitlines(), start=1):
            for match in pattern.findall(text):
                found.setdefault(match, []).append(f"{page}:{number}")
    return found


def test_every_option_exists():
    known = {"--version"} | EXAMPLE_OPTIONS
    known = known.union(*OTHER_OPTIONS.values(), *map(options_of_command, COMMANDS))
    known = known.union(*map(options_of_script, SCRIPTS))
    wrong = {x: where for x, where in places(OPTION).items() if x.replace("_", "-") not in known}
    assert not wrong


@pytest.mark.parametrize("page", PAGES)
def test_options_belong_to_the_command_that_they_follow(page):
    wrong = []
    for line, span in code_spans(page):
        if (command := re.match(r"r2r2 ([\w-]+)(.*)", span)) and command[1] in COMMANDS:
            used = {option.replace("_", "-") for option in OPTION.findall(command[2])}
            for option in used - options_of_command(command[1]) - EXAMPLE_OPTIONS:
                wrong.append(f"{page}:{line}: {option} is no option of r2r2 {command[1]}")
    assert not wrong, "\n".join(wrong)


def script_lines():
    """Return the command lines of Python scripts, with the options of the lines that follow."""
    lines = "\n".join(read(page).replace("\\\n", " ") for page in PAGES).splitlines()
    return sorted({x[0] for line in lines for x in re.finditer(r"python \S+\.py[^`#]*", line)})


@pytest.mark.parametrize("line", script_lines())
def test_scripts_have_the_options_that_they_are_called_with(line):
    _, path, *arguments = shlex.split(line)
    if "/" not in path or path in WRITTEN_SCRIPTS:
        pytest.skip("a file that r2r2 has written")
    used = {x.partition("=")[0] for x in arguments if x.startswith("--")}
    assert used <= options_of_script(ROOT / path)


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_backticks_exist(page):
    wrong = []
    for line, span in code_spans(page):
        for word in span.split():
            name = re.split(r"::|#", word.rstrip(".,;:"))[0]
            if re.match(rf"(?:{'|'.join(map(re.escape, FOLDERS))})/", name):
                missing = not (list(ROOT.glob(name)) if "*" in name else (ROOT / name).exists())
                if missing and name not in ABSENT:
                    wrong.append(f"{page}:{line}: {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page):
    # In code, `r2r2 X` is a command; prose may say "r2r2 chooses".
    named = {span.split()[1] for _, span in code_spans(page) if re.match(r"r2r2 \S", span)}
    code = [block.code for block in all_blocks() if block.page == page]
    shells = re.findall(r"^ *(?:\S*/)?r2r2 +([\w-]+)", "\n".join(code), re.MULTILINE)
    allowed = {*COMMANDS, "COMMAND", "--version", "--help", "..."}
    output = {"0.1.0", "0.2.0"}  # what `r2r2 --version` prints
    assert {*named, *shells} - output <= allowed


def public_names():
    modules = {path.stem for path in (ROOT / "src" / "r2r2").iterdir() if path.stem[0] != "_"}
    return {*r2r2.__all__, *modules, "__version__"}


@pytest.mark.parametrize("page", PAGES)
def test_public_names_exist(page):
    texts = [span for _, span in code_spans(page)]
    text = "\n".join([*texts, *(block.code for block in all_blocks() if block.page == page)])
    names = set(re.findall(r"(?<![\w/.-])r2r2\.([A-Za-z_]\w*)", text))
    assert names <= public_names()


def dotted_names():
    """Return all names such as `r2r2.config.errors.UserError`, each once."""
    spans = [span for page in PAGES for _, span in code_spans(page)]
    found = re.findall(r"(?<![\w/.-])r2r2(?:\.[A-Za-z_]\w*){2,}", "\n".join(spans))
    return sorted(set(found))


@pytest.mark.parametrize("name", dotted_names())
def test_dotted_names_exist(name):
    pkgutil.resolve_name(name)
