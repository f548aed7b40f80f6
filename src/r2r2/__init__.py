"""R2R2: sample-efficient continuous control with healthy representations.

The packages, from settings to the command line:

    config       settings as frozen dataclasses, TOML, validation
    policy       policies as NumPy programs, and the spaces of tasks; without JAX
    envs         tasks behind one interface, stepped in worker processes
    agents       algorithms as pure functions, their networks and losses
    replay       replay buffer, prioritized sampling, normalization
    compute      many updates as one compiled program
    diagnostics  rank, spectrum and collapse of representations
    storage      run folders, logs, checkpoints
    export       policies for NumPy, ONNX, StableHLO and C
    stats        scores and their confidence intervals
    report       tables, figures and the HTML page
    theory       the paper's argument, checked on small Markov chains
    training     the training loop, evaluation, resume
    api          train and evaluate a run
    saved_run    load a run: evaluations, diagnostics, policies; without JAX
    saved_results  load a folder of results; without JAX
    trainer      train from scripts and notebooks
    bench        measurements of `r2r2 bench`
    experiments  grids of runs, planned as fleets, on one machine or many
    doctor       what `r2r2 doctor` examines
    cli          the command line
    torch        the losses for PyTorch
"""

# ruff: noqa: F401
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from r2r2.agents.base import Agent, Batch, Update
    from r2r2.agents.losses.representation import (
        redundancy,
        representation_loss,
        self_prediction,
        variance_hinge,
    )
    from r2r2.agents.make import make_agent
    from r2r2.api import RunFailed, RunOptions, evaluate_run, train
    from r2r2.config.agent_configs import MinPhiConfig, SimbaV2Config, SimbaV2SPLConfig, TD7Config
    from r2r2.config.agents import AGENTS, AgentSpec, agent_config, register_agent
    from r2r2.config.common import R2R2, AgentConfig, Representation
    from r2r2.config.errors import StoppedMembersWarning, UserError
    from r2r2.config.resolve import resolve
    from r2r2.config.run import RunConfig
    from r2r2.diagnostics.representation import (
        dead_coordinates,
        diagnose,
        effective_rank,
        singular_values,
    )
    from r2r2.experiments.collect import collect
    from r2r2.experiments.experiment import Experiment, find_experiment
    from r2r2.experiments.sweep import SweepResult, plan_sweep, sweep
    from r2r2.experiments.tuning import tune
    from r2r2.export.export import export_policy
    from r2r2.policy.policy import Policy
    from r2r2.saved_results import SavedResults, load_results
    from r2r2.saved_run import Curve, Records, SavedRun, load
    from r2r2.stats.aggregates import (
        iqm,
        mean_score,
        median_score,
        optimality_gap,
        performance_profile,
        probability_of_improvement,
    )
    from r2r2.stats.bootstrap import comparison_interval, interval
    from r2r2.stats.samples import from_rliable, to_rliable
    from r2r2.stats.suites import normalise_scores
    from r2r2.storage.transitions import save_transitions
    from r2r2.trainer import Trainer
    from r2r2.training.callbacks import (
        Callback,
        CheckpointInfo,
        EndInfo,
        EpisodeInfo,
        EvaluationInfo,
        StartInfo,
        StepInfo,
        StopTraining,
    )
    from r2r2.training.loggers import TensorBoardCallback, WandbCallback
    from r2r2.training.video import record_video

__version__ = "0.2.0"

# Public names by module. They are imported on first use, because worker processes
# step environments without JAX. Type checkers read the imports above.
_EXPORTS = {
    "r2r2.agents.base": "Agent Batch Update",
    "r2r2.agents.losses.representation": "redundancy representation_loss self_prediction "
    "variance_hinge",
    "r2r2.agents.make": "make_agent",
    "r2r2.api": "RunFailed RunOptions evaluate_run train",
    "r2r2.config.agent_configs": "MinPhiConfig SimbaV2Config SimbaV2SPLConfig TD7Config",
    "r2r2.config.agents": "AGENTS AgentSpec agent_config register_agent",
    "r2r2.config.common": "R2R2 AgentConfig Representation",
    "r2r2.config.errors": "StoppedMembersWarning UserError",
    "r2r2.config.resolve": "resolve",
    "r2r2.config.run": "RunConfig",
    "r2r2.diagnostics.representation": "dead_coordinates diagnose effective_rank singular_values",
    "r2r2.experiments.collect": "collect",
    "r2r2.experiments.experiment": "Experiment find_experiment",
    "r2r2.experiments.sweep": "SweepResult plan_sweep sweep",
    "r2r2.experiments.tuning": "tune",
    "r2r2.export.export": "export_policy",
    "r2r2.policy.policy": "Policy",
    "r2r2.saved_results": "SavedResults load_results",
    "r2r2.saved_run": "Curve Records SavedRun load",
    "r2r2.stats.aggregates": "iqm mean_score median_score optimality_gap performance_profile "
    "probability_of_improvement",
    "r2r2.stats.bootstrap": "comparison_interval interval",
    "r2r2.stats.suites": "normalise_scores",
    "r2r2.stats.samples": "from_rliable to_rliable",
    "r2r2.trainer": "Trainer",
    "r2r2.training.callbacks": "Callback CheckpointInfo EndInfo EpisodeInfo EvaluationInfo "
    "StartInfo StepInfo StopTraining",
    "r2r2.training.loggers": "TensorBoardCallback WandbCallback",
    "r2r2.storage.transitions": "save_transitions",
    "r2r2.training.video": "record_video",
}
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names.split()}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'r2r2' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
