"""Time one TD7 agent on a CPU: our compiled update and the same update in PyTorch.

    pip install torch
    python benchmarks/torch_td7.py --out benchmarks/results/torch_td7_2cores.json

The PyTorch loop is our own and follows the release: a batch drawn by LAP from arrays on
the host, Adam steps of encoder and critics, priorities written back, an actor step
every other update. It does what `td7` does and nothing else. Both are timed in turns in
one process, each on all cores, so that their ratio holds on a noisy machine.
"""

import argparse
import copy
import itertools
import json
import time
from pathlib import Path

import jax
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from r2r2.agents.registry import make_agent
from r2r2.bench.updates import BenchFleet, random_rows
from r2r2.config.agents import agent_config
from r2r2.envs.spec import Spec
from r2r2.storage.versions import versions

WIDTH, BATCH, DISCOUNT, PERIOD = 256, 256, 0.99, 250


def normed(x: Tensor) -> Tensor:
    """TD7's AvgL1Norm."""
    return x / x.abs().mean(-1, keepdim=True).clamp(min=1e-8)


def layers(*sizes: int) -> nn.ModuleList:
    """Return a linear layer between each pair of sizes."""
    return nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))


def mlp(linears: nn.ModuleList, x: Tensor, activation=F.elu) -> Tensor:
    """Apply layers in turn, with the activation between them."""
    *hidden, last = linears
    for layer in hidden:
        x = activation(layer(x))
    return last(x)


class Encoder(nn.Module):
    """State and state-action embeddings."""

    def __init__(self, obs: int, action: int):
        super().__init__()
        self.state = layers(obs, WIDTH, WIDTH, WIDTH)
        self.joint = layers(WIDTH + action, WIDTH, WIDTH, WIDTH)

    def zs(self, obs: Tensor) -> Tensor:
        """Embed observations."""
        return normed(mlp(self.state, obs))

    def zsa(self, zs: Tensor, action: Tensor) -> Tensor:
        """Predict the next embedding."""
        return mlp(self.joint, torch.cat([zs, action], 1))


class Critic(nn.Module):
    """Both twins, computed in turn, as released."""

    def __init__(self, obs: int, action: int):
        super().__init__()
        self.embeds = nn.ModuleList(nn.Linear(obs + action, WIDTH) for _ in range(2))
        self.rest = nn.ModuleList(layers(3 * WIDTH, WIDTH, WIDTH, 1) for _ in range(2))

    def forward(self, obs: Tensor, action: Tensor, zsa: Tensor, zs: Tensor) -> Tensor:
        """Return values [B, 2]."""
        rows, embeddings = torch.cat([obs, action], 1), torch.cat([zsa, zs], 1)
        pairs = zip(self.embeds, self.rest, strict=True)
        return torch.cat(
            [mlp(rest, torch.cat([normed(embed(rows)), embeddings], 1)) for embed, rest in pairs], 1
        )


class Actor(nn.Module):
    """The deterministic policy."""

    def __init__(self, obs: int, action: int):
        super().__init__()
        self.embed = nn.Linear(obs, WIDTH)
        self.rest = layers(2 * WIDTH, WIDTH, WIDTH, action)

    def forward(self, obs: Tensor, zs: Tensor) -> Tensor:
        """Return actions in [-1, 1]."""
        x = torch.cat([normed(self.embed(obs)), zs], 1)
        return torch.tanh(mlp(self.rest, x, F.relu))


class Learner:
    """TD7's training step on a filled replay."""

    def __init__(self, obs: int, action: int, rows: int):
        rng = np.random.default_rng(0)
        self.rows = {
            "obs": rng.normal(size=(rows, obs)).astype(np.float32),
            "action": rng.uniform(-1, 1, (rows, action)).astype(np.float32),
            "next_obs": rng.normal(size=(rows, obs)).astype(np.float32),
            "reward": rng.normal(size=(rows, 1)).astype(np.float32),
            "alive": np.ones((rows, 1), np.float32),
        }
        self.priority = torch.ones(rows)
        self.encoder, self.critic = Encoder(obs, action), Critic(obs, action)
        self.actor = Actor(obs, action)
        nets = (self.encoder, self.critic, self.actor)
        self.adams = [torch.optim.Adam(net.parameters(), lr=3e-4) for net in nets]
        self.sync()
        self.low, self.high, self.seen = 0.0, 0.0, (1e8, -1e8)
        self.steps = 0

    def sync(self) -> None:
        """Copy networks to their targets."""
        self.fixed_target = copy.deepcopy(getattr(self, "fixed", self.encoder))
        self.fixed = copy.deepcopy(self.encoder)
        self.critic_target = copy.deepcopy(self.critic)
        self.actor_target = copy.deepcopy(self.actor)

    def sample(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Sample rows in proportion to their priorities."""
        sums = torch.cumsum(self.priority, 0)
        draws = torch.rand(BATCH) * sums[-1]
        index = torch.searchsorted(sums, draws).clamp(max=len(sums) - 1)
        batch = {k: torch.from_numpy(x[index.numpy()]) for k, x in self.rows.items()}
        return index, batch

    def update(self) -> None:
        """Make one update."""
        self.steps += 1
        index, batch = self.sample()
        obs, action = batch["obs"], batch["action"]
        with torch.no_grad():
            target = self.encoder.zs(batch["next_obs"])
        zs = self.encoder.zs(obs)
        self.step(0, F.mse_loss(self.encoder.zsa(zs, action), target))
        with torch.no_grad():
            value = self.target(batch)
            zs = self.fixed.zs(obs)
            zsa = self.fixed.zsa(zs, action)
        error = (self.critic(obs, action, zsa, zs) - value).abs()
        loss = torch.where(error < 1, 0.5 * error**2, error).sum(1).mean()
        self.step(1, loss)
        self.priority[index] = error.detach().max(1).values.clamp(min=1) ** 0.4
        if self.steps % 2 == 0:
            chosen = self.actor(obs, zs)
            values = self.critic(obs, chosen, self.fixed.zsa(zs, chosen), zs)
            self.step(2, -values.mean())
        if self.steps % PERIOD == 0:
            self.sync()
            self.low, self.high = self.seen

    def target(self, batch: dict[str, Tensor]) -> Tensor:
        """Return clipped double targets [B, 1]."""
        after = batch["next_obs"]
        zs = self.fixed_target.zs(after)
        noise = (torch.randn_like(batch["action"]) * 0.2).clamp(-0.5, 0.5)
        action = (self.actor_target(after, zs) + noise).clamp(-1, 1)
        zsa = self.fixed_target.zsa(zs, action)
        value = self.critic_target(after, action, zsa, zs).min(1, keepdim=True).values
        bounded = value.clamp(self.low, self.high)
        value = batch["reward"] + batch["alive"] * DISCOUNT * bounded
        low, high = self.seen
        self.seen = min(low, float(value.min())), max(high, float(value.max()))
        return value

    def step(self, which: int, loss: Tensor) -> None:
        """Take one step of one optimizer."""
        self.adams[which].zero_grad()
        loss.backward()
        self.adams[which].step()


def timed_torch(learner: Learner, count: int) -> float:
    """Return the seconds of `count` updates."""
    start = time.perf_counter()
    for _ in range(count):
        learner.update()
    return time.perf_counter() - start


def our_fleet(given: argparse.Namespace) -> BenchFleet:
    """Return one of our agents, with the program of training."""
    spec = Spec(given.obs, given.action)
    agent = make_agent(agent_config("td7"), spec, utd=1)
    fleet = BenchFleet(agent, spec, 1, given.rows)
    fleet.set_replay(random_rows(spec, 1, given.rows))
    return fleet


def main() -> None:
    """Time both in turns and, with --out, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--obs", type=int, default=348, help="Humanoid-v5's")
    parser.add_argument("--action", type=int, default=17)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--updates", type=int, default=20, help="per turn; even")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    learner = Learner(given.obs, given.action, given.rows)
    fleet = our_fleet(given)
    fleet.seconds(2)
    timed_torch(learner, 4)
    times = []
    for _ in range(given.turns):
        ours = fleet.seconds(given.updates)
        theirs = timed_torch(learner, given.updates)
        times.append([1e3 * ours / given.updates, 1e3 * theirs / given.updates])
        print(f"ours {times[-1][0]:.1f} ms, PyTorch {times[-1][1]:.1f} ms", flush=True)
    ratios = [ours / theirs for ours, theirs in times]
    table = {
        "ms_per_update": np.round(np.median(times, axis=0), 2).tolist(),
        "ratio": round(float(np.median(ratios)), 3),
        "ratios": np.round(ratios, 3).tolist(),
        "threads": torch.get_num_threads(),
        "device": jax.devices()[0].platform,
    }
    print(json.dumps(table))
    if given.out:
        made_with = versions() | {"torch": torch.__version__}
        arguments = {k: v for k, v in vars(given).items() if k != "out"}
        result = {"arguments": arguments, "versions": made_with, "table": table}
        given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
