"""Time one TD7 agent on a CPU: our compiled update and the same update in PyTorch.

    pip install torch
    python benchmarks/torch_td7.py --out benchmarks/results/torch_td7_2cores.json

The PyTorch code is our own and follows the release: a batch drawn by LAP from arrays on
the host, Adam steps of encoder and critics, priorities written back, an actor step
every other update. It does what `td7` does and nothing else. Both are timed in turns in
one process, each on all cores, so that their ratio holds on a noisy machine.
`benchmarks/peers.py` times the whole training loop (`Training`) on a task.
"""

import argparse
import copy
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from r2r2.agents.registry import build_agent
from r2r2.bench.updates import BenchFleet, random_rows
from r2r2.config.agents import agent_config
from r2r2.envs.spec import Spec
from r2r2.storage.versions import versions

WIDTH, BATCH, DISCOUNT, PERIOD, EXPLORATION = 256, 256, 0.99, 250, 0.1
LONG_ASSESSMENTS_AFTER = 750_000  # updates


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


class Replay:
    """LAP: rows on the host in double precision, priorities on the device, as released."""

    def __init__(self, obs: int, action: int, capacity: int, device: str = "cpu"):
        sizes = {"obs": obs, "action": action, "next_obs": obs, "reward": 1, "alive": 1}
        self.rows = {name: np.zeros((capacity, size)) for name, size in sizes.items()}
        self.priority = torch.zeros(capacity, device=device)
        self.device, self.capacity = device, capacity
        self.size, self.position, self.max_priority = 0, 0, 1.0
        self._sampled = np.zeros(BATCH, int)

    def fill(self, rng: np.random.Generator) -> None:
        """Fill all rows with random numbers."""
        for rows in self.rows.values():
            rows[:] = rng.normal(size=rows.shape)
        self.rows["action"][:] = rng.uniform(-1, 1, self.rows["action"].shape)
        self.rows["alive"][:] = 1
        self.priority[:] = 1
        self.size = self.capacity

    def add(self, row: dict[str, Any]) -> None:
        """Append a transition, in place of the oldest one if the buffer is full."""
        for name, value in row.items():
            self.rows[name][self.position] = value
        self.priority[self.position] = self.max_priority
        self.position = (self.position + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self) -> dict[str, Tensor]:
        """Sample a batch in proportion to the priorities."""
        sums = torch.cumsum(self.priority[: self.size], 0)
        draws = torch.rand(BATCH, device=self.device) * sums[-1]
        index = self._sampled = torch.searchsorted(sums, draws).cpu().numpy()
        return {
            name: torch.tensor(rows[index], dtype=torch.float, device=self.device)
            for name, rows in self.rows.items()
        }

    def set_priority(self, priority: Tensor) -> None:
        """Set the priorities of the last batch."""
        self.priority[self._sampled] = priority
        self.max_priority = max(float(priority.max()), self.max_priority)

    def reset_max_priority(self) -> None:
        """Recompute the priority of new rows."""
        self.max_priority = float(self.priority[: self.size].max())


class Learner:
    """TD7's networks, training step and policies."""

    def __init__(self, obs: int, action: int, replay: Replay):
        self.replay, self.device = replay, replay.device
        self.encoder = Encoder(obs, action).to(self.device)
        self.critic = Critic(obs, action).to(self.device)
        self.actor = Actor(obs, action).to(self.device)
        self.nets = (self.encoder, self.critic, self.actor)
        self.adams = [torch.optim.Adam(net.parameters(), lr=3e-4) for net in self.nets]
        self.fixed = copy.deepcopy(self.encoder)
        self.fixed_target = copy.deepcopy(self.encoder)
        self.critic_target = copy.deepcopy(self.critic)
        self.actor_target = copy.deepcopy(self.actor)
        self.best_actor = copy.deepcopy(self.actor)  # the policy checkpoint
        self.best_encoder = copy.deepcopy(self.encoder)
        self.low, self.high, self.seen = 0.0, 0.0, (1e8, -1e8)
        self.steps = 0

    def act(self, obs: np.ndarray) -> np.ndarray:
        """Return the behavior policy's action with exploration noise, in [-1, 1]."""
        with torch.no_grad():
            row = torch.tensor(obs[None], dtype=torch.float, device=self.device)
            action = self.actor(row, self.fixed.zs(row))
            action = action + torch.randn_like(action) * EXPLORATION
            return action.clamp(-1, 1).cpu().numpy()[0]

    def checkpoint_policy(self) -> None:
        """Keep the current policy as the policy checkpoint."""
        self.best_actor.load_state_dict(self.actor.state_dict())
        self.best_encoder.load_state_dict(self.fixed.state_dict())

    def sync(self) -> None:
        """Copy networks to their targets."""
        self.actor_target.load_state_dict(self.actor.state_dict())
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.fixed_target.load_state_dict(self.fixed.state_dict())
        self.fixed.load_state_dict(self.encoder.state_dict())
        self.replay.reset_max_priority()
        self.low, self.high = self.seen

    def update(self) -> None:
        """Make one update."""
        self.steps += 1
        batch = self.replay.sample()
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
        self.replay.set_priority(error.detach().max(1).values.clamp(min=1) ** 0.4)
        if self.steps % 2 == 0:
            chosen = self.actor(obs, zs)
            values = self.critic(obs, chosen, self.fixed.zsa(zs, chosen), zs)
            self.step(2, -values.mean())
        if self.steps % PERIOD == 0:
            self.sync()

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


class Training:
    """TD7's training loop on a Gymnasium task, without evaluation.

    The behavior policy is fixed during an episode. After the episodes of an assessment the
    policy may become the policy checkpoint, and all updates of these steps follow at once.
    """

    def __init__(self, env: Any, learner: Learner, utd: int):
        self.env, self.learner, self.utd = env, learner, utd
        self.scale = float(env.action_space.high[0])
        self.steps = self.updates = 0
        self.pending = self.episodes = 0  # steps and episodes of the current assessment
        self.max_episodes = 1
        self.min_return, self.best_min = 1e8, -1e8

    def random_episode(self) -> int:
        """Record an episode of random actions and return its length."""
        return self._episode(lambda obs: self.env.action_space.sample() / self.scale)[0]

    def episode(self) -> None:
        """Train for an episode: collect it, then make the updates that are due."""
        length, episode_return = self._episode(self.learner.act)
        self.steps += length
        self.pending += length
        self.episodes += 1
        self.min_return = min(self.min_return, episode_return)
        passed = self.min_return >= self.best_min
        if passed and self.episodes < self.max_episodes:
            return
        if passed:
            self.best_min = self.min_return
            self.learner.checkpoint_policy()
        self._train()

    def _episode(self, act: Callable[[np.ndarray], np.ndarray]) -> tuple[int, float]:
        """Record an episode; return its length and its return."""
        obs, _ = self.env.reset()
        length, total, ended = 0, 0.0, False
        while not ended:
            action = act(obs)
            after, reward, terminated, truncated, _ = self.env.step(action * self.scale)
            row = {"obs": obs, "action": action, "next_obs": after, "reward": reward}
            self.learner.replay.add(row | {"alive": 1.0 - terminated})
            obs, ended = after, terminated or truncated
            length, total = length + 1, total + float(reward)
        return length, total

    def _train(self) -> None:
        """Make all pending updates and start the next assessment."""
        for _ in range(self.pending * self.utd):
            if self.learner.steps == LONG_ASSESSMENTS_AFTER:
                self.best_min *= 0.9
                self.max_episodes = 20
            self.learner.update()
        self.updates += self.pending * self.utd
        self.pending = self.episodes = 0
        self.min_return = 1e8


def timed_torch(learner: Learner, count: int) -> float:
    """Return the seconds of `count` updates."""
    start = time.perf_counter()
    for _ in range(count):
        learner.update()
    return time.perf_counter() - start


def our_fleet(given: argparse.Namespace) -> BenchFleet:
    """Return one of our agents, with the program of training."""
    spec = Spec(given.obs, given.action)
    agent = build_agent(agent_config("td7"), spec, utd=1)
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
    replay = Replay(given.obs, given.action, given.rows)
    replay.fill(np.random.default_rng(0))
    learner = Learner(given.obs, given.action, replay)
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
