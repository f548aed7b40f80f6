"""R2R2: sample-efficient continuous control with healthy representations.

A run, in the order in which data passes through the package:

    config    every number, as frozen dataclasses
    envs      tasks behind one interface
    interact  acting, episodes, replay
    learn     losses, networks, agents, the compiled update
    measure   evaluation, what encoders have learnt
    record    the run's folder
    report    statistics and pictures
    run       training, as one page
    use       the command line
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from r2r2.agents.losses.representation import (
        redundancy,
        representation_loss,
        self_prediction,
        variance_hinge,
    )
    from r2r2.api import evaluate_run, train
    from r2r2.config.agents import AGENTS, agent_config
    from r2r2.config.common import R2R2, Representation
    from r2r2.config.errors import UserError
    from r2r2.config.minphi import MinPhiConfig
    from r2r2.config.resolve import resolve
    from r2r2.config.run import RunConfig
    from r2r2.config.simbav2 import SimbaV2Config, SimbaV2SPLConfig
    from r2r2.config.td7 import TD7Config
    from r2r2.diagnostics.representation import dead_coordinates, diagnose
    from r2r2.diagnostics.spectrum import effective_rank, singular_values
    from r2r2.stats.aggregates import (
        iqm,
        mean_score,
        median_score,
        optimality_gap,
        performance_profile,
        probability_of_improvement,
    )
    from r2r2.stats.bootstrap import comparison_interval, interval
    from r2r2.stats.normalization import normalise_scores
    from r2r2.stats.samples import from_rliable, to_rliable
    from r2r2.training.video import record_video

__version__ = "0.1.0"

# Imported when first asked for: a worker process steps environments without JAX.
_HOMES = {
    "r2r2.config.agents": ("AGENTS", "agent_config"),
    "r2r2.config.minphi": ("MinPhiConfig",),
    "r2r2.config.common": ("R2R2", "Representation"),
    "r2r2.config.errors": ("UserError",),
    "r2r2.config.resolve": ("resolve",),
    "r2r2.config.run": ("RunConfig",),
    "r2r2.config.simbav2": ("SimbaV2Config", "SimbaV2SPLConfig"),
    "r2r2.config.td7": ("TD7Config",),
    "r2r2.agents.losses.representation": (
        "redundancy",
        "representation_loss",
        "self_prediction",
        "variance_hinge",
    ),
    "r2r2.diagnostics.representation": ("dead_coordinates", "diagnose"),
    "r2r2.diagnostics.spectrum": ("effective_rank", "singular_values"),
    "r2r2.stats.bootstrap": ("comparison_interval", "interval"),
    "r2r2.stats.normalization": ("normalise_scores",),
    "r2r2.stats.samples": ("from_rliable", "to_rliable"),
    "r2r2.stats.aggregates": (
        "iqm",
        "mean_score",
        "median_score",
        "optimality_gap",
        "performance_profile",
        "probability_of_improvement",
    ),
    "r2r2.api": ("evaluate_run", "train"),
    "r2r2.training.video": ("record_video",),
}

__all__ = [
    "AGENTS",
    "R2R2",
    "MinPhiConfig",
    "Representation",
    "RunConfig",
    "SimbaV2Config",
    "SimbaV2SPLConfig",
    "TD7Config",
    "UserError",
    "agent_config",
    "comparison_interval",
    "dead_coordinates",
    "diagnose",
    "effective_rank",
    "evaluate_run",
    "from_rliable",
    "interval",
    "iqm",
    "mean_score",
    "median_score",
    "normalise_scores",
    "optimality_gap",
    "performance_profile",
    "probability_of_improvement",
    "record_video",
    "redundancy",
    "representation_loss",
    "resolve",
    "self_prediction",
    "singular_values",
    "to_rliable",
    "train",
    "variance_hinge",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'r2r2' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
