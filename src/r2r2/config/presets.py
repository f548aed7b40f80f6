"""Named starting points."""

# A small network learns faster with larger steps, more noise and a shorter horizon than
# TD7's own; `benchmarks/quick.py` shows what this preset reaches, seed by seed.
QUICK = {
    "agent": "td7+r2r2",
    "env": "cartpole-swingup",
    "steps": 15_000,
    "warmup": 1_000,
    "utd": 3,
    "eval_every": 1_000,
    "eval_episodes": 5,
    "agent.width": 64,
    "agent.latent": 64,
    "agent.batch_size": 128,
    "agent.discount": 0.98,
    "agent.encoder_rate": 1e-3,
    "agent.critic_rate": 1e-3,
    "agent.actor_rate": 1e-3,
    "agent.exploration_noise": 0.3,
    "agent.target_period": 100,
}
QUICK_BAR = 500
