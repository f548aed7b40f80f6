r"""Compare the training speed of TD7+R2R2, the original TD7 in PyTorch, and SBX.

    pip install torch sbx-rl
    python benchmarks/peers.py --out peers.json
    python benchmarks/peers.py --only sbx r2r2 --steps 5000

Every peer trains on Hopper-v5 in a process of its own, as its users run it: environment,
exploration, replay and updates. Start-up, random steps, compilation and the first updates are
not timed. The peers take turns, so that other load on the machine slows all of them alike. A
peer that is not installed, fails or takes longer than `--process-limit` is listed and skipped.
Results are written after each measurement.

On a GPU machine whose commands end after 600 seconds (one repeat takes about 7 minutes; `COMMIT`
is required where the Git folder is not that of the sources):

    PYTHONPATH=PACKAGES python benchmarks/peers.py --steps 20000 --repeats 1 --limit 40 \
        --process-limit 120 --commit COMMIT --out $OUT/peers.json

Steps per second count environment steps that have had all their updates. The networks differ:
TD7 has an encoder and larger critics, SBX runs with its defaults. PyTorch TD7 and SBX are timed
without evaluation; TD7+R2R2 is timed by `r2r2 bench`, which includes evaluation and logging.
The replay buffers are nearly empty, which favors PyTorch TD7: it sums all priorities in every
update.
"""

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import math
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TASK = "Hopper-v5"
RANDOM_STEPS = 500  # before training, as in `r2r2 bench`
WARMUP_UPDATES = 100  # at least, not timed
HIGH_UTD, FEWER_STEPS = 20, 4  # the high UTD has a quarter of the timed steps
PACKAGES = """r2r2 jax jaxlib torch sbx-rl stable_baselines3 tfp-nightly flax optax equinox numpy
gymnasium mujoco""".split()
ROOT = Path(__file__).resolve().parents[1]


class Setup(NamedTuple):
    """What to time."""

    utd: int
    steps: int  # timed environment steps
    limit: float  # seconds after which timing ends early
    process_limit: float  # seconds after which its process is ended, with nothing timed


class Measurement(NamedTuple):
    """The speed of one peer in one repeat."""

    steps: float  # timed environment steps with all their updates
    updates: float
    seconds: float
    device: str
    batch_size: int
    networks: dict[str, Any]  # layer widths, number of critics, trained parameters
    details: dict[str, Any]


class Peer(NamedTuple):
    """A training program to compare with."""

    name: str
    utd: int
    modules: tuple[str, ...]  # that must be installed
    measure: Callable[[Setup], Measurement]
    in_worker: bool = True  # False: `measure` starts its own process


def mlp_parameters(*sizes: int) -> int:
    """Return the number of weights and biases between layers of these sizes."""
    return sum((rows + 1) * columns for rows, columns in itertools.pairwise(sizes))


def td7_networks(obs: int, action: int, width: int, latent: int) -> dict[str, Any]:
    """Return the layers of TD7's networks and the number of their parameters."""
    encoder = mlp_parameters(obs, width, width, latent)
    encoder += mlp_parameters(latent + action, width, width, latent)
    critic = mlp_parameters(obs + action, width)
    critic += mlp_parameters(width + 2 * latent, width, width, 1)
    actor = mlp_parameters(obs, width) + mlp_parameters(width + latent, width, width, action)
    return {
        "state encoder": [width, width, latent],
        "state-action encoder": [width, width, latent],
        "critic": [width, width, width, 1],
        "critics": 2,
        "actor": [width, width, width, action],
        "parameters": encoder + 2 * critic + actor,
    }


def measure_torch_td7(setup: Setup) -> Measurement:
    """Time the original TD7 in PyTorch, from the end of one burst of updates to that of another."""
    import gymnasium
    import torch
    import torch_td7

    env = gymnasium.make(TASK)
    env.action_space.seed(0)
    env.reset(seed=0)
    torch.manual_seed(0)
    sizes = env.observation_space.shape[0], env.action_space.shape[0]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    learner = torch_td7.Learner(*sizes, torch_td7.Replay(*sizes, 1_000_000, device))
    training = torch_td7.Training(env, learner, setup.utd)
    collected = 0
    while collected < RANDOM_STEPS:
        collected += training.random_episode()
    for _ in range(WARMUP_UPDATES):
        learner.update()
    for _ in range(WARMUP_UPDATES):
        learner.act(env.observation_space.sample())
    seconds = _time_episodes(training, setup)
    parameters = sum(x.numel() for net in learner.nets for x in net.parameters())
    return Measurement(
        training.steps,
        training.updates,
        seconds,
        torch.cuda.get_device_name() if device == "cuda" else "cpu",
        torch_td7.BATCH,
        td7_networks(*sizes, torch_td7.WIDTH, torch_td7.WIDTH) | {"parameters": parameters},
        {"threads": torch.get_num_threads(), "replay_rows": learner.replay.size},
    )


def _time_episodes(training: Any, setup: Setup) -> float:
    """Train for whole episodes and return the seconds; the last value read waits for a GPU."""
    start = time.perf_counter()
    while training.steps < setup.steps and time.perf_counter() - start < setup.limit:
        training.episode()
    float(training.learner.actor.embed.weight.sum())
    return time.perf_counter() - start


def measure_sbx(algorithm: str, setup: Setup) -> Measurement:
    """Time an algorithm of SBX with its default networks, between two environment steps."""
    import gymnasium
    import jax
    import numpy as np
    import sbx
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.noise import NormalActionNoise

    first = RANDOM_STEPS + max(WARMUP_UPDATES // setup.utd, 10)

    class Timer(BaseCallback):
        """Records the time of the first and the last timed step."""

        start = end = 0.0

        def _on_step(self) -> bool:
            if self.num_timesteps < first:
                return True
            self.end = time.perf_counter()
            if self.num_timesteps == first:
                self.start, self.first_updates = self.end, self.model._n_updates
            self.steps = self.num_timesteps - first
            self.updates = self.model._n_updates - self.first_updates
            return self.steps < setup.steps and self.end - self.start < setup.limit

    env = gymnasium.make(TASK)
    noise = {}
    if algorithm == "TD3":
        (actions,) = env.action_space.shape
        noise = {"action_noise": NormalActionNoise(np.zeros(actions), np.full(actions, 0.1))}
    model = getattr(sbx, algorithm)(
        "MlpPolicy",
        env,
        learning_starts=RANDOM_STEPS,
        train_freq=1,
        gradient_steps=setup.utd,
        seed=0,
        **noise,
    )
    timer = Timer()
    # SBX reads the losses after each call of updates, which waits for the device.
    model.learn(10**9, callback=timer)
    policy = model.policy
    params = [policy.actor_state.params, policy.qf_state.params]
    return Measurement(
        timer.steps,
        timer.updates,
        timer.end - timer.start,
        str(jax.devices()[0].device_kind),
        model.batch_size,
        {
            "critic": [*policy.net_arch_qf, 1],
            "critics": policy.n_critics,
            "actor": [*policy.net_arch_pi, env.action_space.shape[0]],
            "parameters": sum(x.size for x in jax.tree.leaves(params)),
        },
        {"policy_delay": model.policy_delay},
    )


def measure_sbx_sac(setup: Setup) -> Measurement:
    """Time SBX's SAC."""
    return measure_sbx("SAC", setup)


def measure_sbx_td3(setup: Setup) -> Measurement:
    """Time SBX's TD3."""
    return measure_sbx("TD3", setup)


def measure_r2r2(setup: Setup) -> Measurement:
    """Time one member of TD7+R2R2 by `r2r2 bench`, from the end of a burst to that of another."""
    agent = "td7+r2r2"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        command = f"bench --agents {agent} --bases false --env {TASK} --task {TASK} --members 1"
        command += f" --steps {setup.steps} --utd {setup.utd} --out {out}"
        command += (
            " --rows 1000 --updates 2 --repeats 1 --short-calls 2"  # of the updates alone; not used
        )
        _run([sys.executable, "-m", "r2r2", *command.split()], setup.process_limit)
        result = json.loads(out.read_text())
    end_to_end, config = result["end_to_end"][0], result["agents"][agent]
    spec, seconds = result["sizes"]["spec"], end_to_end["seconds"]
    return Measurement(
        end_to_end["decision_steps"],
        end_to_end["updates_per_s"] * seconds,
        seconds,
        result["versions"]["device"],
        config["batch_size"],
        td7_networks(spec["obs_dim"], spec["action_dim"], config["width"], config["latent"]),
        {"end_to_end": end_to_end, "precision": result["sizes"]["precision"]},
    )


PEERS = [
    Peer("torch-td7-utd1", 1, ("torch",), measure_torch_td7),
    Peer("sbx-td3-utd1", 1, ("sbx", "torch"), measure_sbx_td3),
    Peer("sbx-sac-utd1", 1, ("sbx", "torch"), measure_sbx_sac),
    Peer("r2r2-td7-utd1", 1, ("jax", "equinox"), measure_r2r2, in_worker=False),
    Peer("torch-td7-utd20", HIGH_UTD, ("torch",), measure_torch_td7),
    Peer("sbx-sac-utd20", HIGH_UTD, ("sbx", "torch"), measure_sbx_sac),
    Peer("r2r2-td7-utd20", HIGH_UTD, ("jax", "equinox"), measure_r2r2, in_worker=False),
]
REFERENCE = "r2r2-td7"


class PeerError(Exception):
    """A peer that failed, with the last line that it printed."""


def _run(command: Sequence[str], limit: float) -> None:
    """Run a command without its output; raise a PeerError if it fails or takes too long."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise PeerError(f"took more than {limit:g} s (--process-limit)") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with its environments
                process.wait()
        output.seek(0)
        lines = output.read().strip().splitlines()
    if code:
        raise PeerError(lines[-1] if lines else f"exit code {code}")


def measure(peer: Peer, setup: Setup) -> dict[str, Any]:
    """Time a peer in a process of its own and return the measurement with its speeds."""
    load = os.getloadavg()[0]
    if peer.in_worker:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "measurement.json"
            limits = [str(setup.steps), str(setup.limit), str(out)]
            command = [sys.executable, __file__, "--worker", peer.name, *limits]
            _run(command, setup.process_limit)
            result = json.loads(out.read_text())
    else:
        result = peer.measure(setup)._asdict()
    speeds = {
        "steps_per_s": round(result["steps"] / result["seconds"], 3),
        "updates_per_s": round(result["updates"] / result["seconds"], 3),
        "load_average_before": round(load, 2),
    }
    return speeds | result


def run_worker(name: str, steps: str, limit: str, out: str) -> None:
    """Time one peer in this process and write the measurement to a file."""
    peer = next(x for x in PEERS if x.name == name)
    result = peer.measure(Setup(peer.utd, int(steps), float(limit), math.inf))
    Path(out).write_text(json.dumps(result._asdict()))


def missing_modules(peer: Peer) -> list[str]:
    """Return what a peer needs that is not installed."""
    return [name for name in peer.modules if importlib.util.find_spec(name) is None]


class Results:
    """All repeats of all peers, and those that could not be timed."""

    def __init__(self) -> None:
        self.repeats: dict[str, list[dict[str, Any]]] = {}
        self.problems: dict[str, str] = {}

    def record(self, peer: Peer, setup: Setup) -> None:
        """Time a peer, unless it has a problem already."""
        if peer.name in self.problems:
            return
        try:
            result = measure(peer, setup)
        except PeerError as error:
            missing = str(error).startswith("ModuleNotFoundError")
            self.problems[peer.name] = f"{'not installed' if missing else 'failed'}: {error}"
            print(f"{peer.name}: {self.problems[peer.name]}", flush=True)
            return
        self.repeats.setdefault(peer.name, []).append(result)
        speeds = f"{result['steps_per_s']:.1f} steps/s, {result['updates_per_s']:.1f} updates/s"
        print(f"{peer.name}: {speeds} in {result['seconds']:.1f} s", flush=True)

    def summary(self, peer: Peer) -> dict[str, Any]:
        """Return the medians of a peer and its time per step relative to TD7+R2R2."""
        if not (repeats := self.repeats.get(peer.name)):
            return {"status": self.problems.get(peer.name, "not timed yet")}
        ours = self.repeats.get(f"{REFERENCE}-utd{peer.utd}", [])
        fastest = max(x["steps_per_s"] for x in repeats)
        pairs = zip(ours, repeats, strict=False)
        ratios = [a["steps_per_s"] / b["steps_per_s"] for a, b in pairs]
        medians = {
            key: statistics.median(x[key] for x in repeats)
            for key in ("steps_per_s", "updates_per_s")
        }
        relative = {
            "time_relative_to_r2r2": round(statistics.median(ratios), 3) if ratios else None,
            "ratios": [round(x, 3) for x in ratios],
            "fastest_relative_to_r2r2": round(max(x["steps_per_s"] for x in ours) / fastest, 3)
            if ours
            else None,
        }
        return {"status": "timed", **medians, "fastest_steps_per_s": fastest, **relative}


def print_table(peers: Iterable[Peer], results: Results) -> None:
    """Print one line per peer, and its networks."""
    titles = ("peer", "UTD", "steps/s", "updates/s", "time / r2r2", "fastest", "time / r2r2")
    titles += ("parameters", "batch", "device")
    lines = [titles]
    for peer in peers:
        summary = results.summary(peer)
        if summary["status"] != "timed":
            lines.append((peer.name, str(peer.utd), *["-"] * 7, summary["status"]))
            continue
        last = results.repeats[peer.name][-1]
        ratios = [summary[f"{x}_relative_to_r2r2"] for x in ("time", "fastest")]
        ratio, fastest_ratio = ["-" if x is None else f"{x:.2f}" for x in ratios]
        lines.append(
            (
                peer.name,
                str(peer.utd),
                f"{summary['steps_per_s']:,.1f}",
                f"{summary['updates_per_s']:,.1f}",
                ratio,
                f"{summary['fastest_steps_per_s']:,.1f}",
                fastest_ratio,
                f"{last['networks']['parameters']:,}",
                str(last["batch_size"]),
                last["device"],
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(f"\n{TASK}; medians, then steps/s of the fastest repeat, which other load disturbs least")
    print(f"time / r2r2: time per step relative to {REFERENCE} at the same UTD\n")
    for name, *cells, device in lines:
        middle = [cell.rjust(width) for cell, width in zip(cells, widths[1:-1], strict=True)]
        print("  ".join([name.ljust(widths[0]), *middle, device]))
    print("\nlayers")
    for name, repeats in results.repeats.items():
        layers = {k: v for k, v in repeats[-1]["networks"].items() if k != "parameters"}
        print(f"  {name}: " + ", ".join(f"{k} {v}" for k, v in layers.items()))


def package_version(package: str) -> str:
    """Return the version of an installed package, or "absent"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def source_commit() -> str:
    """Return the commit of this checkout, with "+dirty" if its sources differ, or "unknown"."""
    git = ["git", "--no-optional-locks", "-C", str(ROOT)]
    sources = ["src", "benchmarks/peers.py", "benchmarks/torch_td7.py"]

    def output(*arguments: str) -> str:
        return subprocess.check_output([*git, *arguments], text=True, stderr=subprocess.DEVNULL)

    try:
        commit = output("rev-parse", "HEAD").strip()
        changes = output("status", "--porcelain", "--", *sources)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return f"{commit}+dirty" if changes else commit


def cpu_model() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def as_json(given: argparse.Namespace, peers: Sequence[Peer], results: Results) -> dict[str, Any]:
    """Return everything that was measured, and where."""
    options = sys.argv[1:]
    if given.out:  # a folder of this machine means nothing elsewhere
        options = [given.out.name if x == str(given.out) else x for x in options]
    return {
        "command": shlex.join(["python", "benchmarks/peers.py", *options]),
        "note": given.note,
        "task": TASK,
        "commit": given.commit or source_commit(),
        "versions": {"python": platform.python_version()}
        | {name: package_version(name) for name in PACKAGES},
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "system": platform.system()},
        "random_steps": RANDOM_STEPS,
        "peers": {
            peer.name: {
                "utd": peer.utd,
                **results.summary(peer),
                "repeats": results.repeats.get(peer.name, []),
            }
            for peer in peers
        },
    }


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(peer.name for peer in PEERS)
    parser.add_argument(
        "--steps",
        type=int,
        default=2000,
        help=f"timed environment steps at UTD 1; UTD {HIGH_UTD} has 1/{FEWER_STEPS} of them",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=60,
        help="seconds after which the timing of PyTorch TD7 and SBX ends early",
    )
    parser.add_argument(
        "--process-limit",
        type=float,
        default=600,
        help="seconds after which the process of a peer is ended",
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help=f"peers with this text: {names}"
    )
    parser.add_argument("--out", type=Path, help="JSON file for all results")
    parser.add_argument("--commit", default="", help="commit to record when not in a git checkout")
    parser.add_argument("--note", default="", help="remark to record, such as other load")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if min(given.steps, given.repeats) < 1:
        parser.error("--steps and --repeats: expected integers >= 1")
    given.peers = [x for x in PEERS if any(text in x.name for text in given.only)]
    if not given.peers:
        parser.error(f"--only: expected part of one of {names}, got {' '.join(given.only)}")
    return given


def main() -> int:
    """Time the peers in turns and, with --out, write all results."""
    given = parse()
    if given.worker:
        run_worker(*given.worker)
        return 0
    results = Results()
    for peer in given.peers:
        if missing := missing_modules(peer):
            results.problems[peer.name] = f"not installed: {', '.join(missing)}"
    for repeat in range(given.repeats):
        print(f"repeat {repeat + 1} of {given.repeats}", flush=True)
        for peer in given.peers:
            steps = given.steps if peer.utd == 1 else max(1, given.steps // FEWER_STEPS)
            results.record(peer, Setup(peer.utd, steps, given.limit, given.process_limit))
            if given.out:  # a long run may be interrupted
                table = as_json(given, given.peers, results)
                given.out.write_text(json.dumps(table, indent=2) + "\n")
    print_table(given.peers, results)
    if given.out:
        print(f"\nall repeats are in '{given.out}'")
    return int(any(text.startswith("failed") for text in results.problems.values()))


if __name__ == "__main__":
    sys.exit(main())
