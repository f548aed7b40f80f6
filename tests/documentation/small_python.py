"""The scheme by which Python blocks of the documentation become small enough to be run.

They run as they stand, except that numbers are replaced as `SHORT` says, and that configs and
trainers have small sizes where a block gives none. A block may use the names of `GIVEN`.
"""

import doctest
import re
from functools import partial

import gymnasium
import numpy as np
from doc_pages import ROOT

import r2r2
from r2r2.config.resolve import resolve

SHORT = {
    r"\bsteps=[\d_]{3,}": "steps=60",
    r'(?<!base=\{)"steps": [\d_]{3,}': '"steps": 60, "warmup": 10, "width": 16, "latent": 16',
    r"\bwarmup=[\d_]{3,}": "warmup=10",
    r'"warmup": [\d_]{3,}': '"warmup": 10',
    r"\butd=\d+": "utd=2",
    r"\bseeds=5\b": "seeds=4",
    r"\bepisodes=\d+": "episodes=1",
}
SMALL_TRAINER = {
    **{"width": 16, "latent": 16, "warmup": 10, "eval_episodes": 1, "eval_every": 30},
    **{"workers": 0, "progress": False},
}
SMALL_FIELDS = {"width": 16, "latent": 16, "batch_size": 16, "eval_episodes": 1}
# Names that examples use without defining them.
GIVEN = {
    "np": np,
    "gymnasium": gymnasium,
    "observation": np.zeros(11),
    "observations": np.zeros((4, 11)),
}


def small_config(*layers):
    """Resolve a config, with small sizes for fields that are not given."""
    config = resolve(*layers)
    try:
        return resolve(SMALL_FIELDS, *layers)
    except r2r2.UserError:  # an agent without one of these fields
        return config


def make_runs_small(monkeypatch):
    """Let trainers and configs be small."""
    trainer = partial(r2r2.Trainer, **SMALL_TRAINER)
    monkeypatch.setattr(r2r2, "Trainer", trainer, raising=False)
    monkeypatch.setattr(r2r2, "resolve", small_config, raising=False)


def run_python(block, names):
    """Run a block, or compare a session with what it shows."""
    code = block.code
    for long, short in SHORT.items():
        code = re.sub(long, short, code)
    if code.startswith(">>> "):
        session = doctest.DocTestParser().get_doctest(code, names, block.place, None, block.line)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        assert not runner.run(session, clear_globs=False).failed
        names.update(session.globs)
        return
    # Lines of a traceback are those of the page.
    exec(compile("\n" * block.line + code, str(ROOT / block.page), "exec"), names)
