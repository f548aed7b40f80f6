"""Bad input is one sentence and exit code 2, and nothing is written."""

import os
import sys

import gymnasium
import pytest

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
SHOWN = "('r2r2 list envs' shows them)"
NEITHER = "which is neither a Gymnasium id nor a DMC domain-task"

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


@pytest.fixture
def refusal(r2r2, here):
    """The sentence in which a command line is refused."""

    def said(*argv):
        before = sorted(os.listdir(here))
        code, out, err = r2r2(*argv)
        assert code == 2
        assert out == ""
        assert err.startswith("r2r2: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert sorted(os.listdir(here)) == before
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
        (
            "--env Pendulum-v1,cartpole-swingup",
            "action_repeat is 0, the suite's own, which differs between Pendulum-v1, "
            "cartpole-swingup; give one for all",
        ),
        (
            "--env Pendulum-v1,MountainCarContinuous-v0",
            "env is 'Pendulum-v1' (observation 3, action 1) and "
            "'MountainCarContinuous-v0' (observation 2, action 1); tasks trained "
            "together must have the same sizes",
        ),
        ("--env Pendulum-v1,Pendulum-v1", f"env is 'Pendulum-v1,Pendulum-v1'; {TASKS}"),
        ("--env Pendulum-v1,", f"env is 'Pendulum-v1,'; {TASKS}"),
        ("--env", f"env is ''; {TASKS}"),
        (
            "--env Hoper-v5",
            f"env is 'Hoper-v5', {NEITHER}; did you mean 'Hopper-v5'? {SHOWN}",
        ),
        (
            "--env cartpole-swngup",
            f"env is 'cartpole-swngup', {NEITHER}; "
            f"did you mean 'cartpole-swingup'? {SHOWN}",
        ),
        ("--env qqqq", f"env is 'qqqq', {NEITHER} {SHOWN}"),
        (
            "--env CartPole-v1",
            "env is 'CartPole-v1', whose actions are a Discrete space; supported is a "
            "bounded 1-D Box of floats",
        ),
        (
            "--env nowhere:Arm-v0",
            "env is 'nowhere:Arm-v0', but importing 'nowhere' failed "
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
        ("OddDict-v0", "observations are a Dict space; supported is a flat vector"),
        ("OddDiscrete-v0", "observations are a Discrete space; supported is a flat"),
        (
            "OddImage-v0",
            "observations are a Box of shape (8, 8, 3) and type uint8; sup",
        ),
        ("OddUnbounded-v0", "action 0 goes from -inf to 1; supported are bounds of at"),
    ],
)
def test_tasks_that_no_agent_can_use_are_refused(refusal, odd_tasks, task, why):
    sentence = refusal("train", "--env", f"odd_tasks:{task}")
    assert sentence.startswith(f"env is 'odd_tasks:{task}', whose {why}")


def test_a_task_that_its_module_lacks_is_refused_with_a_near_one(refusal, odd_tasks):
    assert refusal("train", "--env", "odd_tasks:OddDct-v0") == (
        "env is 'odd_tasks:OddDct-v0', but 'odd_tasks' has no task, class or function "
        "'OddDct-v0'; did you mean 'OddDict-v0'?"
    )


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
        ("steps = = 1", f"{CONFIG} Invalid value (at line 1, column 9)"),
    ],
)
def test_a_file_with_a_mistake_is_refused(refusal, here, content, sentence):
    (here / "run.toml").write_text(content)
    flags = ["--config", "run.toml", "--env", "Pendulum-v1"]
    assert refusal("train", *flags) == sentence


def test_a_file_that_cannot_be_read_is_refused(refusal, here):
    sentence = f"{CONFIG} No such file or directory"
    assert refusal("train", "--config", "run.toml") == sentence
    (here / "run.toml").mkdir()
    sentence = f"{CONFIG} Is a directory"
    assert refusal("train", "--config", "run.toml") == sentence


def test_a_folder_that_cannot_be_used_is_refused(refusal, here):
    flags = ["train", "--env", "Pendulum-v1", "--out"]
    (here / "file").write_text("")
    (here / "folder").mkdir()
    (here / "folder" / "thesis").write_text("")
    assert refusal(*flags, "file") == "out is 'file', which is a file; give a folder"
    assert (
        refusal(*flags, "file/in")
        == "out is 'file/in', which cannot be written: Not a directory"
    )
    assert refusal(*flags, "folder", "--overwrite") == (
        "out is 'folder', which is not empty and not the folder of a run, so not even "
        "--overwrite deletes it; give another folder"
    )


def test_replay_that_does_not_fit_is_refused(refusal):
    sentence = refusal(
        *("train", "--env", "Pendulum-v1", "--seeds", "2"),
        *("--replay-size", "2_000_000_000", "--steps", "2_000_000_000"),
    )
    assert sentence.startswith("replay_size is 2000000000; the fleet takes ")
    assert "what would fit: replay_size " in sentence


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("tarin", "'tarin' is not a command; did you mean 'train'?"),
        ("watch", "'watch' is not a command; see r2r2 --help"),
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
        ("eval a --video a.gif", "video is 'a.gif', which does not end in .mp4"),
        (
            "eval a --video b/a.mp4",
            "video is 'b/a.mp4', which is in a folder that does not exist, 'b'",
        ),
        (
            "eval a --video-episodes 2",
            "video_episodes is 2, but there is no --video",
        ),
        (
            "eval a --video a.mp4 --video-episodes 0",
            f"video_episodes is '0'; {WHOLE} 1 to 100000",
        ),
        ("eval nowhere", "run is 'nowhere', which does not exist"),
        ("eval nowhere --video a.mp4", "run is 'nowhere', which does not exist"),
    ],
)
def test_other_commands_refuse(refusal, argv, sentence):
    assert refusal(*argv.split()) == sentence


def test_a_folder_that_is_no_run_is_refused(refusal, here):
    (here / "file").write_text("")
    (here / "empty").mkdir()
    for name in ("file", "empty"):
        assert refusal("eval", name) == (
            f"run is '{name}', which is not the folder of a run: it has no "
            "manifest.json"
        )


@pytest.mark.parametrize("manifest", ["", "{", "[]", '{"kind": "r2r2 run"}'])
def test_a_run_with_a_damaged_manifest_is_refused(refusal, run, manifest):
    (run / "manifest.json").write_text(manifest)
    sentence = f"run is '{run}', which has a manifest.json that is damaged or no run's"
    assert refusal("eval", run) == sentence


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("steps = 450", "steps = = 450", "cannot be used: Invalid value (at line 3, "),
        (
            "steps = 450",
            "steps = 0",
            f"cannot be used: steps is 0; {WHOLE} 1 to 2147483647",
        ),
        ("steps = 450", "stepz = 450", "cannot be used: 'stepz' is not a field; did"),
        ('"td7+r2r2"', '"td9"', "cannot be used: agent is 'td9'; allowed are td7, "),
        ('env = ["Pendulum-v1"]', "", "cannot be used: env is missing; name a task"),
        ("seeds = [0, 3]", "seeds = 5", "is of other members than its manifest.json"),
    ],
)
def test_a_run_with_a_damaged_config_is_refused(refusal, run, old, new, why):
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new))
    start = f"run is '{run}', whose config.toml {why}"
    assert refusal("eval", run).startswith(start)


def test_a_run_without_a_config_is_refused(refusal, run):
    (run / "config.toml").unlink()
    sentence = f"run is '{run}', which has no readable config.toml"
    assert refusal("eval", run) == sentence


def test_a_run_of_other_sizes_than_its_weights_is_refused(refusal, run):
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("width = 8", "width = 9"))
    assert refusal("eval", run).startswith(f"weights are '{run}/Pendulum-v1_s0/")


def test_a_run_without_weights_is_refused(refusal, run):
    (run / "Pendulum-v1_s3" / "weights.npz").unlink()
    assert refusal("eval", run) == (
        f"run is '{run}', which has no final weights of Pendulum-v1_s3: it did not "
        "finish"
    )


def test_a_run_with_torn_weights_is_refused(refusal, run):
    path = run / "Pendulum-v1_s3" / "weights.npz"
    path.write_bytes(path.read_bytes()[:-100])
    sentence = f"weights are '{path}', which is damaged or not an npz file"
    assert refusal("eval", run) == sentence


@pytest.mark.parametrize("member", ["Pendulum-v1:1", "dog-run:0", "", "3"])
def test_an_unknown_member_is_refused_with_those_there_are(refusal, run, member):
    sentence = refusal("eval", run, f"--member={member}")
    start = f"member is '{member}'; allowed are Pendulum-v1:0, Pendulum-v1:3"
    assert sentence.startswith(start)
    near = sentence.removeprefix(start)
    assert near == ("; did you mean 'Pendulum-v1:3'?" if "P" in member else "")
