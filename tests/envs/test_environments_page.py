"""The examples of docs/environments.md run, and its commands and files are accepted."""

import doctest
import re
import shlex
from pathlib import Path

import pytest

from r2r2.cli.train import parse_train
from r2r2.config.resolve import resolve
from r2r2.config.toml_io import parse_toml
from r2r2.training.evaluation import MAX_EVAL_STEPS

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
TEXT = PAGE.read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_python_examples_run():
    text = "\n".join(blocks("python"))
    test = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    result = doctest.DocTestRunner().run(test)
    assert result.attempted > 15
    assert not result.failed


@pytest.mark.parametrize("command", "\n".join(blocks("bash")).splitlines())
def test_commands_are_accepted(command):
    program, name, *argv = shlex.split(command)
    assert (program, name) == ("r2r2", "train")
    assert parse_train(argv).config.env_args.to_dict()


def test_file_is_that_of_the_first_command():
    (file,) = blocks("toml")
    first = shlex.split(blocks("bash")[0].splitlines()[0])
    assert resolve(parse_toml(file)) == parse_train(first[2:]).config


def test_limit_of_evaluations_is_that_of_the_program():
    assert f"{MAX_EVAL_STEPS:,} decision steps" in " ".join(TEXT.split())
