"""Bad input is one sentence and exit code 2, and nothing is written."""

import shutil
import sys

import gymnasium
import pytest
from forgery import seal
from tiny import train_tiny

from r2r2.cli.train_flags import parse_train
from r2r2.config.agents import AGENTS as ALL_AGENTS

WHOLE = "allowed is a whole number from"
SEEDS = (
    "allowed is a count up to 1000 (5 is seeds 0 to 4) or a list of different seeds "
    "from 0 to 2147483647 (3,7,11)"
)
TASKS = "allowed is one task or several different ones, separated by commas"
AGENTS = "allowed are " + ", ".join(ALL_AGENTS)
TRUTH = "allowed is true or false"
EVERY = "allowed is minutes (10min, 0.5min), decision steps (5000) or never"
RUN = "the folder of a run, as in 'r2r2 eval RUN'"
WHAT = "agents or envs, as in 'r2r2 list agents'"
DIVISOR = "allowed is a divisor of eval_every, which is 10000"
CONFIG = "config is 'run.toml', which cannot be read:"
ABOVE_0 = "allowed is a number above 0, up to 1e+18"
FROM_0 = "allowed is a number from 0 to 1e+18"
LOSS = "agent.representation"
UNKNOWN_TASK = (
    "unknown task; expected a Gymnasium id or a DMC domain-task (see 'r2r2 list envs')"
)

ODD_TASKS = """
import gymnasium
from gymnasium.spaces import Box, Dict, Discrete

class Odd(gymnasium.Env):
    def __init__(self, observation, low=-1.0):
        self.observation_space = observation
        self.action_space = Box(low, 1.0, (2,))

flat = Box(-1.0, 1.0, (3,))
tasks = {
    "OddDict-v0": {"observation": Dict(state=flat)},
    "OddImage-v0": {"observation": Box(0, 255, (8, 8, 3), "uint8")},
    "OddDiscrete-v0": {"observation": Discrete(3)},
    "OddUnbounded-v0": {"observation": flat, "low": float("-inf")},
}
for name, kwargs in tasks.items():
    gymnasium.register(name, Odd, kwargs=kwargs)
"""


def tree(folder):
    """Everything below a folder, with its content."""
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def refusal(r2r2, here, tmp_path):
    """The sentence in which a command line is refused."""

    def said(*argv):
        before = tree(tmp_path)
        code, out, err = r2r2(*argv)
        assert code == 2
        assert out == ""
        assert err.startswith("r2r2: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert tree(tmp_path) == before
        return err.removeprefix("r2r2: ").removesuffix("\n")

    return said


@pytest.fixture
def odd_tasks(here, monkeypatch):
    """A module in the working folder that registers tasks no agent here can use."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (here / "odd_tasks.py").write_text(ODD_TASKS)
    yield
    sys.modules.pop("odd_tasks", None)
    for name in [name for name in gymnasium.registry if name.startswith("Odd")]:
        del gymnasium.registry[name]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("--agent td8", f"agent is 'td8'; {AGENTS}; did you mean 'td7'?"),
        ("--agent ppo", f"agent is 'ppo'; {AGENTS}"),
        (
            "--agent simbav2+r2r2",
            "agent is 'simbav2+r2r2'; SimbaV2 has no encoder that R2R2 could act on, "
            "but simbav2-spl+r2r2 has one",
        ),
        ("--help --agent td8", f"agent is 'td8'; {AGENTS}; did you mean 'td7'?"),
        ("--agent", f"agent is ''; {AGENTS}"),
        ("--steps 0", f"steps is '0'; {WHOLE} 1 to 2147483647"),
        ("--steps -5", f"steps is '-5'; {WHOLE} 1 to 2147483647"),
        ("--steps=-5", f"steps is '-5'; {WHOLE} 1 to 2147483647"),
        ("--steps 1e5", f"steps is '1e5'; {WHOLE} 1 to 2147483647"),
        ("--steps", f"steps is ''; {WHOLE} 1 to 2147483647"),
        ("--steps --utd 2", f"steps is ''; {WHOLE} 1 to 2147483647"),
        ("--utd 0", f"utd is '0'; {WHOLE} 1 to 2147483647"),
        ("--utd 10000000000", f"utd is '10000000000'; {WHOLE} 1 to 2147483647"),
        ("--utd 0.5", f"utd is '0.5'; {WHOLE} 1 to 2147483647"),
        ("--batch-size 1", f"agent.batch_size is '1'; {WHOLE} 2 to 1048576"),
        ("--no-width", f"agent.width is 'false'; {WHOLE} 1 to 1048576"),
        ("--seeds 1,1", f"seeds is '1,1'; {SEEDS}"),
        ("--seeds -1,2", f"seeds is '-1,2'; {SEEDS}"),
        ("--seeds -1", f"seeds is '-1'; {SEEDS}"),
        ("--seeds 0", f"seeds is '0'; {SEEDS}"),
        ("--seeds 1001", f"seeds is '1001'; {SEEDS}"),
        ("--discount nan", "agent.discount is 'nan'; allowed is a number from 0 to 1"),
        ("--workers -1", f"workers is '-1'; {WHOLE} 0 to 2147483647"),
        ("--checkpoints 0", f"checkpoints is '0'; {WHOLE} 1 to 2147483647"),
        ("--checkpoint-every 1h", f"checkpoint_every is '1h'; {EVERY}"),
        ("--checkpoint-every", f"checkpoint_every is ''; {EVERY}"),
        ("--tensorboard 3", f"tensorboard is '3'; {TRUTH}"),
        ("--quick=3", f"quick is '3'; {TRUTH}"),
        ("--policy-checkpoints 3", f"agent.policy_checkpoints is '3'; {TRUTH}"),
        ("--out=", "out is ''; allowed is the name of a folder"),
        ("--config", "config is ''; allowed is the name of a file"),
        ("--widht 3", "'widht' is not a field; did you mean 'width'?"),
        ("--agent.widht=3", "'agent.widht' is not a field; did you mean 'width'?"),
        ("--overwirte", "'overwirte' is not a field; did you mean 'overwrite'?"),
        ("--zzzzz 3", "'zzzzz' is not a field; see --help"),
        ("--", "'' is not a field; see --help"),
        ("--utd 2 3", "'3' stands alone; every value needs its --field before"),
        ("-x", "'-x' stands alone; every value needs its --field before"),
        ("--eval-average 3", f"eval_average is 3; {DIVISOR}"),
        ("--eval-episodes 100001", f"eval_episodes is '100001'; {WHOLE} 1 to 100000"),
        ("--env-faults 501", f"env_faults is '501'; {WHOLE} 0 to 500"),
        ("--env-timeout 0", f"env_timeout is '0'; {ABOVE_0}"),
        ("--epsilon 1e39", f"agent.adam.epsilon is '1e39'; {ABOVE_0}"),
        ("--lambda-rr -1", f"{LOSS}.lambda_rr is '-1'; {FROM_0}"),
        ("--lambda-var inf", f"{LOSS}.lambda_var is 'inf'; {FROM_0}"),
        (
            "--count days",
            "agent.assessment.count is 'days'; allowed is one of updates, decisions",
        ),
        (
            "--steps 1000000 --utd 9999",
            "utd is 9999; allowed with 1000000 steps is at most 2147, 2147483647 "
            "updates in all",
        ),
        (
            "--agent simbav2 --lowest-value 6",
            "agent.lowest_value is 6.0; allowed is less than agent.highest_value, "
            "which is 5.0",
        ),
        (
            "--agent simbav2 --highest-log-std -10",
            "agent.lowest_log_std is -10.0; allowed is less than "
            "agent.highest_log_std, which is -10.0",
        ),
        ("--critics 3", "'critics' is not a field; did you mean 'critic_rate'?"),
        (
            "--env Pendulum-v1,cartpole-swingup",
            "action_repeat is 0, the suite's own, which differs between Pendulum-v1, "
            "cartpole-swingup; give one for all",
        ),
        (
            "--env Pendulum-v1,MountainCarContinuous-v0",
            "env: tasks trained together must have equal sizes, got 'Pendulum-v1' "
            "(observation 3, action 1), 'MountainCarContinuous-v0' (observation 2, "
            "action 1)",
        ),
        ("--env Pendulum-v1,Pendulum-v1", f"env is 'Pendulum-v1,Pendulum-v1'; {TASKS}"),
        ("--env Pendulum-v1,", f"env is 'Pendulum-v1,'; {TASKS}"),
        ("--env", f"env is ''; {TASKS}"),
        (
            "--env Hoper-v5",
            f"env 'Hoper-v5': {UNKNOWN_TASK}; did you mean 'Hopper-v5'?",
        ),
        (
            "--env cartpole-swngup",
            f"env 'cartpole-swngup': {UNKNOWN_TASK}; did you mean 'cartpole-swingup'?",
        ),
        ("--env qqqq", f"env 'qqqq': {UNKNOWN_TASK}"),
        (
            "--env CartPole-v1",
            "env 'CartPole-v1': unsupported action space; expected a bounded 1-D Box "
            "of floats, got a Discrete space",
        ),
        (
            "--env nowhere:Arm-v0",
            "env 'nowhere:Arm-v0': importing 'nowhere' failed "
            "(ModuleNotFoundError: No module named 'nowhere')",
        ),
    ],
)
def test_training_refuses(refusal, argv, sentence):
    assert refusal("train", "--env", "Pendulum-v1", *argv.split()) == sentence


def test_training_needs_a_task(refusal):
    assert refusal("train", "--steps", "10") == (
        "env is missing; name a task, for example --env Hopper-v5 or --env dog-run "
        "('r2r2 list envs' shows them), or start from --quick"
    )


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("OddDict-v0", "observation space; expected a flat vector"),
        ("OddDiscrete-v0", "observation space; expected a flat vector"),
        ("OddImage-v0", "observation space; expected a flat vector"),
        ("OddUnbounded-v0", "bounds of action 0; expected low < high"),
    ],
)
def test_tasks_that_no_agent_can_use_are_refused(refusal, odd_tasks, task, why):
    sentence = refusal("train", "--env", f"odd_tasks:{task}")
    assert sentence.startswith(f"env 'odd_tasks:{task}': unsupported {why}")


def test_a_task_that_its_module_lacks_is_refused_with_a_near_one(refusal, odd_tasks):
    assert refusal("train", "--env", "odd_tasks:OddDct-v0") == (
        "env 'odd_tasks:OddDct-v0': 'odd_tasks' has no task, class or function "
        "'OddDct-v0'; did you mean 'OddDict-v0'?"
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("def (", "SyntaxError: invalid syntax (broken.py, line 1)"),
        ("raise ValueError('a\\n  b')", "ValueError: a b"),
        ("import sys; sys.exit('bye')", "SystemExit: bye"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused(
    refusal, here, monkeypatch, content, why
):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (here / "broken.py").write_text(content)
    sentence = refusal("train", "--env", "broken:Arm-v0")
    assert sentence == f"env 'broken:Arm-v0': importing 'broken' failed ({why})"


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("os:getcwd", "expected a gymnasium.Env, got '"),
        ("os:sep", "'os' has no task, class or function 'sep'"),
        ("os:path.join", "'os' has no task, class or function 'path.join'"),
        (":Arm-v0", "importing '' failed (ValueError: Empty module name)"),
        ("../odd:Arm-v0", "importing '../odd' failed (TypeError: the 'package' a"),
        ("collections:deque", "expected a gymnasium.Env, got deque([])"),
    ],
)
def test_what_is_no_environment_is_refused(refusal, task, why):
    start = f"env {task!r}: {why}"
    assert refusal("train", "--env", task).startswith(start)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("widht = 3", "'widht' is not a field; did you mean 'width'?"),
        ("[agent]\nwidht = 3", "'agent.widht' is not a field; did you mean 'width'?"),
        ("[wrong.table]\nzzzzz = 3", "'wrong.table.zzzzz' is not a field; see --help"),
        ("overwrite = true", "'overwrite' is not a field; see --help"),
        ("agent = 3", f"agent is 3; {AGENTS}"),
        ("[[agent]]\nwidth = 3", "agent is [{'width': 3}]; " + AGENTS),
        ("steps = true", f"steps is True; {WHOLE} 1 to 2147483647"),
        ("steps = 1.5", f"steps is 1.5; {WHOLE} 1 to 2147483647"),
        ("seeds = [3, 3]", f"seeds is [3, 3]; {SEEDS}"),
        ("steps = inf", f"steps is inf; {WHOLE} 1 to 2147483647"),
        ("steps = []", f"steps is []; {WHOLE} 1 to 2147483647"),
        ("steps = 2026-01-01", "steps is datetime.date(2026, 1, 1); allowed is a"),
        ('utd = "many"', f"utd is 'many'; {WHOLE} 1 to 2147483647"),
        ("seeds = [0, 1.5]", f"seeds is [0, 1.5]; {SEEDS}"),
        ("seeds = 1001", f"seeds is 1001; {SEEDS}"),
        ("env = 3", f"env is 3; {TASKS}"),
        ("env = [3]", f"env is [3]; {TASKS}"),
        ('env = "a\\nb"', f"env 'a\\nb': {UNKNOWN_TASK}"),
        ("layer_norm = 1", f"agent.layer_norm is 1; {TRUTH}"),
        ('"a\\u001b[2Jb" = 1', "'a\\x1b[2Jb' is not a field; see --help"),
        ("steps = = 1", f"{CONFIG} Invalid value (at line 1, column 9)"),
        ("a = " + "[" * 5000, f"{CONFIG} maximum recursion depth exceeded"),
        (".".join("a" * 200) + " = 1", f"{CONFIG} more than 100 dots in line 1"),
        ("#" * 2**18, f"{CONFIG} it is longer than 131072 bytes"),
        ("\udcff", f"{CONFIG} 'utf-8' codec can't decode byte 0xff in position 0"),
    ],
)
def test_a_file_with_a_mistake_is_refused(refusal, here, content, sentence):
    (here / "run.toml").write_text(content, errors="surrogateescape")
    flags = [] if "env" in content else ["--env", "Pendulum-v1"]
    said = refusal("train", "--config", "run.toml", *flags)
    assert said.startswith(sentence)


def test_a_file_may_hold_texts_as_the_command_line_does(here):
    (here / "run.toml").write_text('env = "Pendulum-v1"\nutd = "2"\nseeds = "3,7"')
    config = parse_train(["--config", "run.toml"]).config
    assert (config.utd, config.seeds) == (2, (3, 7))


def test_a_file_that_cannot_be_read_is_refused(refusal, here):
    sentence = f"{CONFIG} No such file or directory"
    assert refusal("train", "--config", "run.toml") == sentence
    (here / "run.toml").mkdir()
    sentence = f"{CONFIG} Is a directory"
    assert refusal("train", "--config", "run.toml") == sentence


def test_a_folder_that_cannot_be_used_is_refused(refusal, here):
    flags = ["train", "--env", "Pendulum-v1", "--workers", "0", "--out"]
    (here / "file").write_text("")
    (here / "folder").mkdir()
    (here / "folder" / "thesis").write_text("")
    assert refusal(*flags, "file") == "file: is a file; expected a folder"
    assert refusal(*flags, "file/in") == "file/in: cannot write: Not a directory"
    long = "x" * 300
    assert refusal(*flags, long) == f"{long}: cannot write: File name too long"
    assert refusal(*flags, "file/a\nb") == "file/a<0xa>b: cannot write: Not a directory"
    assert refusal(*flags, "folder", "--overwrite") == (
        "folder: not empty and not a run folder, so --overwrite does not delete it; "
        "choose another --out"
    )


def test_replay_that_does_not_fit_is_refused(refusal):
    sentence = refusal(
        *("train", "--env", "Pendulum-v1", "--seeds", "2"),
        *("--replay-size", "2_000_000_000", "--steps", "2_000_000_000"),
    )
    assert sentence.startswith("replay_size: the fleet needs ")
    assert "; try --replay-size " in sentence


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("tarin", "'tarin' is not a command; did you mean 'train'?"),
        ("fly", "'fly' is not a command; see r2r2 --help"),
        ("--steps 5", "'--steps' is not a command; see r2r2 --help"),
        ("list", f"what is missing; allowed is {WHAT}"),
        (
            "list agent",
            "what is 'agent'; allowed are agents, envs; did you mean 'agents'?",
        ),
        ("list seeds", "what is 'seeds'; allowed are agents, envs"),
        ("list envs agents", f"what is 'envs agents'; allowed is one: {WHAT}"),
        ("list envs --all", "'all' is not a field; see --help"),
        ("eval", f"run is missing; allowed is {RUN}"),
        ("eval a b", f"run is 'a b'; allowed is one: {RUN}"),
        ("eval a --episodes 0", f"episodes is '0'; {WHOLE} 1 to 100000"),
        ("eval a --episodes", f"episodes is ''; {WHOLE} 1 to 100000"),
        ("eval a --episodes many", f"episodes is 'many'; {WHOLE} 1 to 100000"),
        (
            "eval a --episods 3",
            "'episods' is not a field; did you mean 'episodes' or 'video_episodes'?",
        ),
        ("eval a --workers x", f"workers is 'x'; {WHOLE} 0 to 2147483647"),
        ("eval a --video", "video is ''; allowed is the name of a file"),
        ("eval a --video a.gif", "a.gif: expected a file name ending in .mp4"),
        (
            "eval a --video b/a.mp4",
            "b/a.mp4: the folder 'b' does not exist",
        ),
        (
            "eval a --video-episodes 2",
            "video_episodes is 2, but there is no --video",
        ),
        (
            "eval a --video a.mp4 --video-episodes 0",
            f"video_episodes is '0'; {WHOLE} 1 to 100000",
        ),
        ("eval nowhere", "nowhere: does not exist"),
        ("eval nowhere --video a.mp4", "nowhere: does not exist"),
    ],
)
def test_other_commands_refuse(refusal, argv, sentence):
    assert refusal(*argv.split()) == sentence


def test_a_folder_that_is_no_run_is_refused(refusal, here):
    (here / "file").write_text("")
    (here / "empty").mkdir()
    for name in ("file", "empty"):
        assert refusal("eval", name) == (
            f"{name}: not a run folder; it has no manifest.json"
        )


WITH_A_RUN = pytest.mark.parametrize("command", ["eval", "train --resume"])


@WITH_A_RUN
@pytest.mark.parametrize("manifest", ["", "{", "[]", '{"kind": "r2r2 run"}'])
def test_a_run_with_a_damaged_manifest_is_refused(refusal, run, command, manifest):
    (run / "manifest.json").write_text(manifest)
    sentence = f"{run}/manifest.json: damaged or not a run's manifest"
    assert refusal(*command.split(), run) == sentence


@WITH_A_RUN
def test_a_run_of_another_version_is_refused(refusal, run, command):
    text = (run / "manifest.json").read_text()
    (run / "manifest.json").write_text(text.replace('"format": 1', '"format": 2'))
    assert refusal(*command.split(), run) == (
        f"{run}/manifest.json: unsupported format; expected 1, got 2"
    )
    flags = train_tiny(run, workers=0)
    assert refusal(*flags).startswith(
        f"{run}: contains a run of another version of r2r2; choose another --out"
    )


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("steps = 450", "steps = = 450", "Invalid value (at line 3, "),
        (
            "steps = 450",
            "steps = 0",
            f"steps is 0; {WHOLE} 1 to 2147483647",
        ),
        ("steps = 450", "stepz = 450", "'stepz' is not a field; did"),
        ('"td7+r2r2"', '"td9"', "agent is 'td9'; allowed are td7, "),
        ('env = ["Pendulum-v1"]', "", "env is missing; name a task"),
        (
            "seeds = [0, 3]",
            "seeds = 5",
            "its members differ from those in manifest.json",
        ),
    ],
)
@WITH_A_RUN
def test_a_run_with_a_damaged_config_is_refused(refusal, run, command, old, new, why):
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new))
    start = f"{run / 'config.toml'}: {why}"
    assert refusal(*command.split(), run).startswith(start)


@WITH_A_RUN
def test_a_run_without_a_config_is_refused(refusal, run, command):
    (run / "config.toml").unlink()
    sentence = f"{run}/config.toml: cannot read: No such file or directory"
    assert refusal(*command.split(), run) == sentence


def test_a_run_of_other_sizes_than_its_weights_is_refused(refusal, run):
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("width = 8", "width = 9"))
    assert refusal("eval", run).startswith(f"{run}/Pendulum-v1_s0/")


def test_a_run_without_weights_is_refused(refusal, run):
    (run / "Pendulum-v1_s3" / "weights.npz").unlink()
    assert refusal("eval", run) == (
        f"{run}: no final weights of Pendulum-v1_s3; the run did not finish"
    )


def test_a_run_with_torn_weights_is_refused(refusal, run):
    path = run / "Pendulum-v1_s3" / "weights.npz"
    path.write_bytes(path.read_bytes()[:-100])
    sentence = f"{path}: damaged or not an npz file"
    assert refusal("eval", run) == sentence


@pytest.mark.parametrize("member", ["Pendulum-v1:1", "dog-run:0", "", "3"])
def test_an_unknown_member_is_refused_with_those_there_are(refusal, run, member):
    sentence = refusal("eval", run, f"--member={member}")
    start = f"member: expected one of Pendulum-v1:0, Pendulum-v1:3, got '{member}'"
    assert sentence.startswith(start)
    near = sentence.removeprefix(start)
    assert near == ("; did you mean 'Pendulum-v1:3'?" if "P" in member else "")


AGAIN = "the same command with --overwrite starts again from step 0"


def test_a_finished_run_without_checkpoints_does_not_go_on(refusal, run):
    shutil.rmtree(run / "checkpoints")
    assert refusal("train", "--resume", run, "--steps", "900") == (
        f"{run}: finished without a checkpoint; {AGAIN}"
    )


def test_a_run_whose_checkpoints_are_all_damaged_does_not_go_on(refusal, run):
    folder = run / "checkpoints"
    for path in folder.glob("*.npz"):
        path.write_bytes(path.read_bytes()[:-1])
    sentence = refusal("train", "--resume", run, "--steps", "900")
    assert sentence.startswith(f"{run}: checkpoint 1 is damaged (00000001.npz has")
    assert sentence.endswith(f"; {AGAIN}")


def test_a_checkpoint_that_is_no_such_runs_is_refused(refusal, run):
    folder = run / "checkpoints"
    seal(folder, 1, lambda manifest: manifest["notes"].pop("rows"))
    assert refusal("train", "--resume", run, "--steps", "900") == (
        f"{folder / '00000001.json'}: 'rows' in its notes is missing or invalid; "
        f"{AGAIN}"
    )


def test_a_checkpoints_folder_that_is_a_file_is_refused(refusal, run):
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").write_text("")
    sentence = f"{run / 'checkpoints'}: cannot read: Not a directory"
    assert refusal("train", "--resume", run, "--steps", "900") == sentence


def test_a_video_that_cannot_be_written_is_refused(refusal, here, run):
    (here / "a.mp4").mkdir()
    sentence = "a.mp4: is a folder; expected a file name"
    assert refusal("eval", run, "--video", "a.mp4") == sentence
