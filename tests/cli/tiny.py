"""A run of seconds, as a command line."""

TINY = {
    "env": "Pendulum-v1",
    "seeds": "0,3",
    "width": "8",
    "latent": "8",
    "batch_size": "8",
    "steps": "450",
    "warmup": "200",
    "eval_every": "225",
    "eval_episodes": "1",
}


def train_tiny(out, **changed):
    """The command line of a run that takes seconds: two episodes and a bit."""
    fields = TINY | {"out": str(out)} | changed
    return ["train", *(f"--{name}={value}" for name, value in fields.items())]
