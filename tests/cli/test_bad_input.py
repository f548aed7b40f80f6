"""Bad input is one sentence and exit code 2, and nothing is written.

The sentences of config fields are tested in tests/config; these are samples of every
kind of bad input, through the whole program.
"""

import shutil
import sys

import gymnasium
import pytest
from forgery import update_checksums
from tiny import train_tiny

from r2r2.storage.run_folder import open_run, write_manifest

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
def run(short_run, tmp_path):
    """A copy of a finished run."""
    return shutil.copytree(short_run, tmp_path / "run")


@pytest.fixture
def odd_tasks(workdir, monkeypatch):
    """A module in the working folder with tasks that no agent can use."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # in worker processes
    (workdir / "odd_tasks.py").write_text(ODD_TASKS)
    before = set(gymnasium.registry)
    yield
    if sys.modules.pop("odd_tasks", None):
        for name in [x for x in gymnasium.registry if x.startswith("Odd") and x not in before]:
            del gymnasium.registry[name]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("--help --agent td8", "--agent: expected one of td7, "),
        ("--agent :x", "--agent: expected module:NAME, where NAME is an AgentSpec"),
        ("--agent os:", "got 'os:'"),
        ("--agent td8", "got 'td8'; did you mean 'td7'"),
        ("--agent simbav2+r2r2", "SimbaV2 has no encoder"),
        ("--agent nowhere:Agent", "--agent: cannot import 'nowhere'"),
        ("--agent os:sep", "--agent: expected an AgentSpec at 'os:sep'"),
        ("--steps 0", "--steps: expected an integer >= 1, got '0'"),
        ("--steps -5", "--steps: expected an integer >= 1, got '-5'"),
        ("--steps 1.5", "--steps: expected an integer >= 1, got '1.5'"),
        ("--steps --utd 2", "--steps: value missing; expected an integer >= 1"),
        ("--steps 10k", "--steps: expected more than warmup (25000), got 10000; "),
        ("--utd 10000000000", "--utd: expected an integer <= 2147483647, got '1000"),
        ("--seeds -1,2", "--seeds: expected a count up to 1000 "),
        ("--seeds 1,1", "--seeds: expected a count up to 1000 "),
        ("--discount nan", "--discount: expected a number from 0 to 1, got 'nan'"),
        ("--checkpoint-every 1h", "--checkpoint-every: expected minutes"),
        ("--tensorboard 3", "--tensorboard: expected true or false, got '3'"),
        ("--config", "--config: value missing; expected the name of a file"),
        ("--widht 3", "--widht: unknown option; did you mean '--width'?"),
        ("--overwirte", "--overwirte: unknown option; did you mean '--overwrite'?"),
        ("--utd 2 3", "unexpected argument '3'"),
        ("--count days", "--count: expected one of updates, decisions, got 'days'"),
        ("--gamma 0.9", "--gamma: unknown option; did you mean '--discount'?"),
        ("--eval-average 3", "--eval-average: expected a divisor of eval_every (10000)"),
        ("--steps 1000000 --utd 9999", "--utd: expected at most 2147 "),
        ("--agent simbav2 --lowest-value 6", "--agent.lowest-value: expected less than"),
        ("--env Pendulum-v1,MountainCarContinuous-v0", "'MountainCarContinuous-v0'"),
        ("--env Pendulum-v1,Pendulum-v1", "--env: expected "),
        ("--env Hoper-v5", "did you mean 'Hopper-v5'?"),
        ("--env Hopper-v5 stray_word", "--env 'stray_word': unknown task; expected a Gymnasium id"),
        ("--env CartPole-v1", "Discrete"),
        ("--env nowhere:Arm-v0", "No module named 'nowhere'"),
        ("--env os:getcwd", "os:getcwd"),
        ("--env collections:deque", "collections:deque"),
    ],
)
def test_bad_options_of_train_are_rejected(rejected, argv, sentence):
    assert sentence in rejected("train", "--env", "Pendulum-v1", *argv.split())


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("OddDict-v0", "Dict"),
        ("OddDiscrete-v0", "Discrete"),
        ("OddImage-v0", "(8, 8, 3)"),
        ("OddUnbounded-v0", "-inf"),
        ("OddDct-v0", "did you mean 'OddDict-v0'?"),
    ],
)
def test_unusable_tasks_are_rejected(rejected, odd_tasks, task, reason):
    sentence = rejected("train", "--env", f"odd_tasks:{task}")
    assert f"odd_tasks:{task}" in sentence
    assert reason in sentence


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("def (", "SyntaxError: invalid syntax (broken.py, line 1)"),
        ("raise ValueError('a\\n  b')", "ValueError: a b"),
        ("import sys; sys.exit('bye')", "SystemExit: bye"),
    ],
)
@pytest.mark.parametrize("option", ["--env", "--agent"])
def test_a_module_that_cannot_be_imported_is_rejected(
    rejected, workdir, monkeypatch, option, content, reason
):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # in worker processes
    (workdir / "broken.py").write_text(content)
    assert f"({reason})" in rejected("train", option, "broken:Arm-v0")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("widht = 3", "widht: unknown field; did you mean 'width'?"),
        ("overwrite = true", "overwrite: unknown field"),
        ("agent = 3", "agent: expected "),
        ("steps = true", "steps: expected an integer >= 1, got True"),
        ("steps = inf", "steps: expected an integer >= 1, got inf"),
        ('utd = "many"', "utd: expected an integer >= 1, got 'many'"),
        ("seeds = [0, 1.5]", "seeds: expected a count up to 1000 "),
        ('env = "a\\nb"', "a\\nb"),
        ('"a\\u001b[2Jb" = 1', "[2Jb"),
        ("steps = = 1", "run.toml: cannot read: Invalid value (at line 1, column 9)"),
        ("# a\n\nutd = 0", "run.toml: line 3: utd: expected an integer >= 1, got 0"),
        ("[agent]\nname = 'td8'", "run.toml: line 2: agent: expected one of td7, "),
        ("[agent]\nwidth = 'x'", "run.toml: line 2: agent.width: expected an integer from 1"),
        ("agent = {width = 0}", "run.toml: line 1: agent.width: expected an integer from 1"),
        ("[agent]\n[agent.adam]\nbeta1 = 1", "run.toml: line 3: agent.adam.beta1: expected"),
        ('"agent" . lr = 1', "run.toml: line 1: agent.lr: unknown field; did you mean 'agent."),
        ("a = " + "[" * 5000, "recursion"),
        ("#" * 2**18, "longer than 131072 bytes"),
        ("\udcff", "can't decode byte 0xff"),
        (None, "No such file or directory"),
    ],
)
def test_bad_config_files_are_rejected(rejected, workdir, content, sentence):
    if content is not None:
        (workdir / "run.toml").write_text(content, errors="surrogateescape")
    options = [] if content and "env" in content else ["--env", "Pendulum-v1"]
    assert sentence in rejected("train", "--config", "run.toml", *options)


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        ("file", "file"),
        ("file/in", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("file/a\nb", "file/a<0xa>b"),
        ("folder", "--overwrite"),
    ],
)
def test_unusable_run_folders_are_rejected(rejected, workdir, out, reason):
    (workdir / "file").write_text("")
    (workdir / "folder").mkdir()
    (workdir / "folder" / "thesis").write_text("")
    argv = ["train", "--env", "Pendulum-v1", "--workers", "0", "--overwrite"]
    assert reason in rejected(*argv, "--out", out)


def test_a_fleet_that_does_not_fit_into_memory_is_rejected(rejected):
    sentence = rejected(
        *("train", "--env", "Pendulum-v1", "--seeds", "2"),
        *("--replay-size", "2_000_000_000", "--steps", "2_000_000_000"),
    )
    assert sentence.startswith("--replay-size: the fleet needs ")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("--latent 1048576", "--agent: "),
        ("--batch-size 1048576 --width 2k", "--agent.batch-size: an update needs about "),
        ("--agent simbav2 --critic-width 1M --expansion 64", "--agent: networks of 1 x "),
    ],
)
def test_networks_and_batches_that_do_not_fit_into_memory_are_rejected(rejected, argv, sentence):
    assert rejected("train", "--env", "Pendulum-v1", *argv.split()).startswith(sentence)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("eval", "expected a run folder, as in 'r2r2 eval RUN'"),
        ("eval a b", "unexpected argument 'b'"),
        ("eval a --episodes 0", "--episodes: expected an integer from 1 to 100000"),
        ("eval a --episods 3", "--episods: unknown option; did you mean '--episodes'?"),
        ("eval a --workers x", "--workers: expected an integer >= 0, got 'x'"),
        ("eval a --video", "--video: value missing; expected the name of a file"),
        ("eval a --video a.gif", ".mp4"),
        ("eval a --video b/a.mp4", "b/a.mp4"),
        ("eval a --video folder.mp4", "folder.mp4"),
        ("eval a --video-episodes 2", "--video-episodes: only used with --video"),
        ("eval nowhere", "nowhere"),
        ("eval nowhere --video a.mp4", "nowhere"),
        ("eval file", "manifest.json"),
        ("eval folder.mp4", "manifest.json"),
        ("train --resume nowhere", "nowhere"),
        ("train --resume .", "manifest.json"),
    ],
)
def test_bad_arguments_of_eval_and_resume_are_rejected(rejected, workdir, argv, sentence):
    (workdir / "file").write_text("")
    (workdir / "folder.mp4").mkdir()
    assert sentence in rejected(*argv.split())


def forget_copies(run):
    """Make the manifest like one from before it had a copy of the config."""
    write_manifest(run, open_run(run).members, "finished")


WITH_A_RUN = pytest.mark.parametrize("command", ["eval", "train --resume"])


@WITH_A_RUN
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (None, ""),
        (None, "{"),
        (None, "[]"),
        (None, '{"kind": "r2r2 run"}'),
        ('"format": 1', '"format": 2'),
    ],
)
def test_bad_manifests_are_rejected(rejected, run, command, old, new):
    text = (run / "manifest.json").read_text()
    (run / "manifest.json").write_text(text.replace(old, new) if old else new)
    assert "manifest.json" in rejected(*command.split(), run)


def test_a_run_of_another_version_is_not_overwritten_silently(rejected, run):
    text = (run / "manifest.json").read_text()
    (run / "manifest.json").write_text(text.replace('"format": 1', '"format": 2'))
    assert "another version" in rejected(*train_tiny(run, workers=0))


@WITH_A_RUN
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("steps = 20", "steps = = 20", "Invalid value (at line 3, "),
        ("steps = 20", "steps = 0", "steps: expected an integer >= 1, got 0"),
        ("steps = 20", "stepz = 20", "stepz"),
        ('"td7+r2r2"', '"td9"', "'td9'"),
        ('env = ["Pendulum-v1"]', "", "env: expected one or more tasks"),
        ("seeds = [0, 3]", "seeds = 5", "members"),
    ],
)
def test_bad_configs_of_runs_are_rejected(rejected, run, command, old, new, reason):
    text = (run / "config.toml").read_text()
    assert old in text
    forget_copies(run)
    (run / "config.toml").write_text(text.replace(old, new))
    sentence = rejected(*command.split(), run)
    assert str(run) in sentence
    assert reason in sentence


@WITH_A_RUN
def test_a_run_without_a_config_is_rejected(rejected, run, command):
    forget_copies(run)
    (run / "config.toml").unlink()
    assert "config.toml" in rejected(*command.split(), run)


def test_bad_weights_are_rejected(rejected, run):
    path = run / "Pendulum-v1_s3" / "weights.npz"
    path.write_bytes(path.read_bytes()[:-100])
    assert str(path) in rejected("eval", run)
    path.unlink()
    assert "Pendulum-v1_s3" in rejected("eval", run)
    forget_copies(run)
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("width = 8", "width = 9"))
    assert "Pendulum-v1_s0" in rejected("eval", run)


@pytest.mark.parametrize("member", ["Pendulum-v1:1", "dog-run:0", "", "3"])
def test_unknown_members_are_rejected(rejected, run, member):
    sentence = rejected("eval", run, f"--member={member}")
    assert sentence.startswith("--member: expected one of ")
    assert f"got {member!r}" in sentence
    assert "Pendulum-v1:0, Pendulum-v1:3" in sentence
    assert ("did you mean 'Pendulum-v1:3'?" in sentence) == ("P" in member)


def without_checkpoints(folder):
    shutil.rmtree(folder)


def with_damaged_checkpoints(folder):
    for path in folder.glob("*.npz"):
        path.write_bytes(path.read_bytes()[:-1])


def with_a_forged_checkpoint(folder):
    update_checksums(folder, 1, lambda manifest: manifest["notes"].pop("rows"))


def with_a_file_for_a_folder(folder):
    shutil.rmtree(folder)
    folder.write_text("")


@pytest.mark.parametrize(
    "change",
    [
        without_checkpoints,
        with_damaged_checkpoints,
        with_a_forged_checkpoint,
        with_a_file_for_a_folder,
    ],
)
def test_a_run_without_a_valid_checkpoint_does_not_resume(rejected, run, change):
    change(run / "checkpoints")
    assert str(run) in rejected("train", "--resume", run, "--steps", "900")
