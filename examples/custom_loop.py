"""A training loop of your own: TD7+R2R2 on Pendulum, with a replay buffer in NumPy."""

import sys

import gymnasium
import jax
import numpy as np

import r2r2


def train(steps: int = 4_000, warmup: int = 500, seed: int = 0) -> list[float]:
    """Return the returns of all training episodes."""
    env, rng, key = gymnasium.make("Pendulum-v1"), np.random.default_rng(seed), jax.random.key(seed)
    sizes = {"width": 64, "latent": 64, "batch_size": 128}
    speed = {"actor_rate": 1e-3, "critic_rate": 1e-3, "target_period": 100}
    agent = r2r2.make_agent("td7+r2r2", obs_dim=3, action_dim=1, **sizes, **speed)

    @jax.jit
    def act(state, obs, step):
        noise = agent.action_noise(jax.random.fold_in(key, 2 * step))
        return agent.explore(agent.behavior_policy(state), obs, noise)

    @jax.jit
    def learn(state, batch, step):
        noise = agent.update_noise(jax.random.fold_in(key, 2 * step + 1))
        return agent.update(state, batch, noise, step)

    state, total, returns = jax.jit(agent.init)(key), 0.0, []
    replay = r2r2.Batch(*(np.zeros((steps, *shape)) for shape in ((3,), (1,), (), (3,), ())))
    obs, _ = env.reset(seed=seed)
    for step in range(steps):
        action = rng.uniform(-1, 1, 1) if step < warmup else np.asarray(act(state, obs, step))
        next_obs, reward, terminated, truncated, _ = env.step(env.action_space.high * action)
        for column, value in zip(replay, (obs, action, reward, next_obs, terminated), strict=True):
            column[step] = value
        obs, total = next_obs, total + reward
        if terminated or truncated:
            returns, total, (obs, _) = [*returns, total], 0.0, env.reset()
        if step >= warmup:  # one update per step; updates count from 1
            rows = rng.integers(0, step + 1, agent.batch_size)
            batch = r2r2.Batch(*(column[rows] for column in replay))
            state, _ = learn(state, batch, step - warmup + 1)
    return returns


if __name__ == "__main__":
    print(*(f"{x:.0f}" for x in train(*map(int, sys.argv[1:]))))
