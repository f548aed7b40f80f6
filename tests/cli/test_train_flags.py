from pathlib import Path

import pytest

from r2r2.api import RunOptions
from r2r2.cli.train_flags import OWN, parse_train, train_help
from r2r2.config.agents import AGENTS
from r2r2.config.common import R2R2, Representation
from r2r2.config.errors import UserError
from r2r2.config.fields import flatten_config
from r2r2.config.resolve import default_config, quick_config, resolve


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('agent = "td7"\nenv = "dog-run"\nsteps = 7\nutd = 7\n')
    return path


def test_nothing_is_the_quick_preset():
    assert parse_train([]) == parse_train(["--quick"])
    command = parse_train([])
    assert command == (resolve(quick_config()), None, RunOptions(), True)


def test_anything_else_is_not():
    command = parse_train(["--env", "Hopper-v5"])
    assert command == (resolve({"env": "Hopper-v5"}), None, RunOptions(), False)
    with pytest.raises(UserError, match="env is missing"):
        parse_train(["--no-quick"])


def test_the_example_of_the_readme():
    argv = "--agent td7+r2r2 --env Hopper-v5 --utd 20 --seeds 5 --steps 500_000"
    config = parse_train(argv.split()).config
    assert config.agent.representation == R2R2
    assert (config.env, config.utd) == (("Hopper-v5",), 20)
    assert (config.seeds, config.steps) == ((0, 1, 2, 3, 4), 500_000)


def test_flags_win_over_the_file_and_the_file_over_the_preset(file):
    config = parse_train(["--steps", "8", "--quick", "--config", str(file)]).config
    assert (config.steps, config.utd, config.warmup) == (8, 7, quick_config()["warmup"])
    assert (config.env, config.agent.name) == (("dog-run",), "td7")
    assert config.agent.width == quick_config()["agent.width"]


@pytest.mark.parametrize("name", ["--agent", "--agent.name"])
def test_the_agent_of_the_flags_wins_with_its_own_defaults(file, name):
    config = parse_train(["--config", str(file), name, "td7+r2r2"]).config
    assert config.agent.representation == R2R2
    assert parse_train(["--config", str(file)]).config.agent.representation == (
        Representation()
    )


@pytest.mark.parametrize(
    ("flag", "on"),
    [
        (["--no-policy-checkpoints"], False),
        (["--no_policy_checkpoints"], False),
        (["--no-agent.policy-checkpoints"], False),
        (["--policy-checkpoints", "false"], False),
        (["--policy-checkpoints=False"], False),
        (["--policy-checkpoints"], True),
        (["--no-policy-checkpoints", "--policy-checkpoints"], True),
        ([], True),
    ],
)
def test_truth_values(flag, on):
    config = parse_train(["--env", "Hopper-v5", *flag]).config
    assert config.agent.policy_checkpoints is on


def test_where_a_run_goes_and_whether_it_may_overwrite():
    command = parse_train(["--env=A-v0", "--out", "my_run-1", "--overwrite"])
    assert (command.out, command.how) == (Path("my_run-1"), RunOptions(overwrite=True))
    assert not parse_train(["--env=A-v0", "--no-overwrite"]).how.overwrite


@pytest.mark.parametrize(
    ("flags", "how"),
    [
        (["--tensorboard"], RunOptions(tensorboard=True)),
        (["--no-tensorboard"], RunOptions()),
        (["--workers", "0"], RunOptions(workers=0)),
        (["--workers=3", "--tensorboard"], RunOptions(tensorboard=True, workers=3)),
        (["--checkpoint-every", "0.5min"], RunOptions(checkpoint_every="0.5min")),
        (["--checkpoint-every=5000 steps"], RunOptions(checkpoint_every="5000 steps")),
        (["--checkpoints", "5"], RunOptions(checkpoints=5)),
    ],
)
def test_how_a_run_is_carried_out_is_no_field_of_its_config(flags, how):
    command = parse_train(["--env=A-v0", *flags])
    assert command.how == how
    assert command.config == parse_train(["--env=A-v0"]).config
    assert parse_train(flags).quick


@pytest.mark.parametrize("agent", AGENTS)
def test_help_shows_every_field_with_its_text_and_the_agents_default(agent):
    text = train_help(["--agent", agent, "--help"])
    lines = " ".join(text.split())
    for path, leaf in (flatten_config(default_config(agent)) | OWN).items():
        if path == "agent.name":
            continue
        name = path.rpartition(".")[2].replace("_", "-")
        option = f"--[no-]{name}" if leaf.kind is bool else f"--{name} X"
        assert leaf.help
        value = leaf.value
        if leaf.kind is bool:
            value = str(value).lower()
        elif isinstance(value, tuple):
            value = ",".join(map(str, value))
        default = f" [{value}]" if value != "" else ""
        assert f"{option} {leaf.help}{default}" in lines


def test_help_is_as_wide_as_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    fields = train_help([]).partition("the run:")[2]
    assert 50 < max(map(len, fields.split("\n"))) <= 60


def test_where_to_put_it_does_not_say_what_to_train():
    assert parse_train(["--overwrite", "--out", "a"]).quick
    assert parse_train(["--overwrite"]).config == parse_train([]).config
