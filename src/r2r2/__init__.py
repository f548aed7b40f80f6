"""R2R2: sample-efficient continuous control with healthy representations.

A run, in the order in which data passes through the package:

    config    every number, as frozen dataclasses
    envs      tasks behind one interface
    interact  acting, episodes, replay
    learn     losses, networks, agents, the compiled update
    measure   evaluation
    record    the run's folder
    report    pictures
    run       training, as one page
    use       the command line
"""

from r2r2.config.agents import AGENTS, R2R2, Representation, TD7Config, agent_config
from r2r2.config.refusal import Refusal
from r2r2.config.resolve import resolve
from r2r2.config.run import RunConfig
from r2r2.learn.losses.representation import (
    redundancy,
    representation_loss,
    self_prediction,
    variance_hinge,
)
from r2r2.run.start import train
from r2r2.use.evaluate import evaluate_run

__version__ = "0.1.0"

__all__ = [
    "AGENTS",
    "R2R2",
    "Refusal",
    "Representation",
    "RunConfig",
    "TD7Config",
    "agent_config",
    "evaluate_run",
    "redundancy",
    "representation_loss",
    "resolve",
    "self_prediction",
    "train",
    "variance_hinge",
]
