"""Keyword arguments of environments: `--env-args`, TOML files and Python."""

import json

import gymnasium
import numpy as np
import pytest
import user_spaces

from r2r2 import train
from r2r2.api import RunOptions, make_pool
from r2r2.cli.train import parse_train
from r2r2.config.errors import UserError
from r2r2.config.fields import JsonObject
from r2r2.config.resolve import resolve
from r2r2.config.toml_io import digest, experiment_name, parse_toml, to_toml
from r2r2.envs.make import env_builder_of, make_env, make_raw_env, time_limit_of
from r2r2.envs.vector.pool import try_task
from r2r2.envs.vector.step_types import EnvFactory
from r2r2.stats.scores import run_results
from r2r2.training.run_config import finalize_config, task_default_config
from r2r2.training.video import _rendered_env

HOPPER = {"env": "Hopper-v5", "env_args": '{"forward_reward_weight": 2}'}


def test_command_line_toml_and_python_give_the_same_config():
    expected = resolve(HOPPER)
    assert expected.env_args == '{"forward_reward_weight": 2}'
    assert resolve(HOPPER | {"env_args": {"forward_reward_weight": 2}}) == expected
    text = 'env = "Hopper-v5"\n'
    for lines in (
        "[env_args]\nforward_reward_weight = 2",
        "env_args = {forward_reward_weight = 2}",
        "env-args.forward_reward_weight = 2",
        """env_args = '{"forward_reward_weight": 2}'""",
    ):
        assert resolve(parse_toml(text + lines)) == expected
    options = ["--env", "Hopper-v5", "--env-args"]
    for value in ('{"forward_reward_weight": 2}', '{ "forward_reward_weight":2 }'):
        assert parse_train([*options, value]).config == expected


def test_config_file_holds_a_table():
    config = resolve({"env": "A-v0", "env_args": {"b": [1, 2.5], "a": {"x y": True}}})
    assert to_toml(config).endswith('\n[env_args]\na = {"x y" = true}\nb = [1, 2.5]\n')
    assert "env_args = {}\n" in to_toml(resolve({"env": "A-v0"}))


@pytest.mark.parametrize(
    "args",
    [
        {"goal": None},  # TOML has no null
        {"path": "." * 200},  # more dots than a line of a config file may have
        {"weights": [0.5] * 200},
        {"text": 'quotes " and \\ and \n and \x7f and \u2028 and é', "": {"": []}},
        {"large": 10**30, "small": 1e-300, "round": 2.0, "deep": [[{"a": [{}]}]]},
    ],
)
def test_config_file_restores_every_object(args):
    config = resolve({"env": "A-v0", "env_args": args})
    restored = resolve(parse_toml(to_toml(config)))
    assert restored == config
    assert restored.env_args.to_dict() == args
    types = [type(x) for x in restored.env_args.to_dict().values()]
    assert types == [type(args[key]) for key in sorted(args)]


def test_later_layer_replaces_the_whole_object(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text('env = "Hopper-v5"\n[env_args]\nframe_skip = 2\n')
    argv = ["--config", str(path), "--env-args", '{"reset_noise_scale": 0}']
    assert parse_train(argv).config.env_args == '{"reset_noise_scale": 0}'


EXPECTED = "expected a JSON object such as '{\"name\": 2}', got"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{forward: 2}", "invalid JSON (Expecting property name enclosed in double quotes at ch"),
        ('{"a": 1', "invalid JSON (Expecting ',' delimiter at character 8); "),
        ("[1]", f"not an object; {EXPECTED} '[1]'"),
        (3, f"not an object; {EXPECTED} 3"),
        ('{"a": NaN}', f"nan is not a JSON number; {EXPECTED}"),
        ('{"a": 1e999}', "inf is not a JSON number; "),
        ({"a": {1: 2}}, "key 1 is not a string; "),
        ({"a": np.ones(2)}, "a ndarray is not a JSON value; "),
        ({"a": "\ud800"}, "text that is not valid Unicode; "),
        ('{"a": ' + "[" * 30 + "]" * 30 + "}", "more than 20 levels; "),
        ("[" * 100_000, "too many levels; "),
        ({"a": "x" * 2**14}, "longer than 16384 bytes; "),
        ('{"a": ' + "9" * 5000 + "}", "Exceeds the limit"),
    ],
)
def test_invalid_object_is_an_error(value, message):
    with pytest.raises(UserError) as error:
        resolve({"env": "Hopper-v5", "env_args": value})
    assert str(error.value).startswith(f"env_args: {message}")
    if isinstance(value, str):
        with pytest.raises(UserError) as error:
            parse_train(["--env", "Hopper-v5", "--env-args", value])
        assert str(error.value).startswith(f"--env-args: {message}")


def test_error_in_a_file_names_its_line(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text('env = "Hopper-v5"\n\n[env_args]\nday = 2026-11-18\n')
    with pytest.raises(UserError) as error:
        parse_train(["--config", str(path)])
    assert str(error.value).startswith(f"{path}: line 3: env_args: a date is not a JSON value; ")


def test_field_name_of_other_programs_is_recognised():
    with pytest.raises(UserError, match="did you mean '--env-args'"):
        parse_train(["--env", "Hopper-v5", "--env-kwargs", "{}"])


def test_arguments_reach_gymnasium_modules_classes_and_dm_control():
    args = {"forward_reward_weight": 2, "reset_noise_scale": 0.0}
    weight = make_env("Hopper-v5", 1, args=args).unwrapped._forward_reward_weight
    assert weight == 2
    for task in ("user_spaces:Robot-v0", "user_spaces:Robot"):
        assert make_env(task, 1, args={"goal": 0.125}).unwrapped.goal == 0.125
    assert make_raw_env("mine", args={"goal": 3}, builder=user_spaces.Robot).goal == 3
    assert time_limit_of(make_env("Pendulum-v1", 1, args={"max_episode_steps": 7})) == 7
    args = {"task_kwargs": {"time_limit": 1}, "environment_kwargs": {"flat_observation": True}}
    env = make_env("cartpole-swingup", 2, args=args)
    assert time_limit_of(env) == 100
    assert env.reset(seed=0)[0].shape == (5,)


UNKNOWN = "env_args: unknown keyword argument"


@pytest.mark.parametrize(
    ("task", "args", "message"),
    [
        (
            "Hopper-v5",
            {"forward_reward_wieght": 2},
            f"{UNKNOWN} 'forward_reward_wieght'; did you mean 'forward_reward_weight'?",
        ),
        # A parameter of the base class.
        ("Hopper-v5", {"fram_skip": 2}, f"{UNKNOWN} 'fram_skip'; did you mean 'frame_skip'?"),
        ("Pendulum-v1", {"mass": 2}, f"{UNKNOWN} 'mass'"),
        ("user_spaces:Robot", {"gaol": 2}, f"{UNKNOWN} 'gaol'; did you mean 'goal'?"),
        ("user_spaces:Robot-v0", {"gaol": 2}, f"{UNKNOWN} 'gaol'; did you mean 'goal'?"),
        ("user_spaces:flat_robot", {"goal": 2}, f"{UNKNOWN} 'goal'"),
        ("Pendulum-v1", {"render_mode": "human"}, "env_args: 'render_mode' is set by r2r2, for"),
        ("Pendulum-v1", {"g": "x", "id": 1}, "cannot be built: TypeError: "),
        (
            "cartpole-swingup",
            {"task_kwarg": {}},
            "env_args: expected task_kwargs or environment_kwargs, as in dm_control's suite.load, "
            "got 'task_kwarg'; did you mean 'task_kwargs'?",
        ),
        ("cartpole-swingup", {"task_kwargs": 1}, "env_args: task_kwargs: expected an object, got"),
        (
            "cartpole-swingup",
            {"task_kwargs": {"time_limt": 1}},
            f"{UNKNOWN} 'time_limt'; did you mean 'time_limit'?",
        ),
        (
            "cartpole-swingup",
            {"environment_kwargs": {"n_sub_step": 1}},
            f"{UNKNOWN} 'n_sub_step'; did you mean 'n_sub_steps'?",
        ),
    ],
)
def test_wrong_argument_is_named_with_a_near_match(task, args, message):
    with pytest.raises(UserError) as error:
        make_env(task, 1, args=args)
    assert str(error.value).startswith(f"env {task!r}: {message}")
    if message.startswith(UNKNOWN):
        assert str(error.value) == f"env {task!r}: {message}"


def test_trial_reports_a_wrong_argument_in_one_sentence():
    args = JsonObject('{"gaol": 2}')
    tasks = {"user_spaces:Robot": None, "mine": user_spaces.Robot, "Pendulum-v1": None}
    for task, builder in tasks.items():
        near = "" if task == "Pendulum-v1" else "; did you mean 'goal'?"
        with pytest.raises(UserError) as error:
            try_task(task, builder, 60.0, False, args)
        assert str(error.value) == f"env {task!r}: {UNKNOWN} 'gaol'{near}"


def test_type_error_of_the_environment_itself_is_not_about_its_arguments():
    def build(goal):
        return user_spaces.Robot(gaol=goal)

    with pytest.raises(TypeError, match="gaol"):
        make_raw_env("mine", args={"goal": 2}, builder=build)


def test_task_with_arguments_is_tried_first():
    assert EnvFactory("Pendulum-v1", 1).is_builtin
    assert not EnvFactory("Pendulum-v1", 1, args=JsonObject('{"g": 1}')).is_builtin


def test_instance_takes_no_arguments(tmp_path):
    robot = user_spaces.Robot()
    assert env_builder_of(robot, ("robot",), 1)(goal=3).unwrapped.goal == 1 / 3
    config = resolve({"env": "robot", "steps": 10, "random_only": True, "env_args": {"goal": 3}})
    with pytest.raises(UserError, match=r"^env_args: not allowed with an environment instance"):
        train(config, tmp_path / "run", env=robot)
    assert not (tmp_path / "run").exists()


def test_pool_and_video_build_the_same_environment():
    config = finalize_config(resolve({"env": "user_spaces:Robot", "env_args": {"goal": 0.5}}))
    with make_pool(config, options=RunOptions(workers=0)) as pool:
        assert pool.reset([0], [0])[0, 4] == 0.5
    filmed = _rendered_env("user_spaces:Robot", config, None)
    assert filmed.reset(seed=0)[0][4] == 0.5
    assert filmed.render_mode == "rgb_array"
    assert _rendered_env("mine", config, user_spaces.Robot).reset(seed=0)[0][4] == 0.5


def test_arguments_change_the_name_of_a_run_and_its_comparison_with_the_paper():
    changed, plain = (finalize_config(resolve({"env": "Hopper-v5"}, x)) for x in (HOPPER, {}))
    assert digest(changed) != digest(plain)
    default = task_default_config(changed)
    name = experiment_name(changed, default)
    assert name == 'td7+r2r2_env_args={"forward_reward_weight": 2}_utd1'
    (override,) = run_results(changed, default, []).method.overrides
    assert str(override) == 'env_args={"forward_reward_weight": 2} (default {})'
    assert not run_results(plain, task_default_config(plain), []).method.overrides


def test_environment_that_needs_its_arguments_has_task_defaults():
    """The automatic discount is that of the episodes with these arguments."""
    values = {"agent": "simbav2", "env": "user_spaces:limited", "env_args": {"limit": 100}}
    config = finalize_config(resolve(values))
    default = task_default_config(config)
    assert default.agent.discount == config.agent.discount > 0
    assert default.env_args == "{}"
    longer = finalize_config(resolve(values | {"env_args": {"limit": 1000}}))
    assert longer.agent.discount > config.agent.discount


def test_arguments_are_json_for_gymnasium(monkeypatch):
    """Every construction gets a new object, which it may change."""
    factory = EnvFactory("user_spaces:Robot", 1, args=JsonObject('{"goal": [1, {"a": null}]}'))
    one, other = factory.make(), factory.make()
    assert one.goal == other.goal == json.loads('[1, {"a": null}]')
    assert one.goal is not other.goal
    assert isinstance(one, gymnasium.Env)
