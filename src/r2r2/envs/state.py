"""Environments saved in the middle of an episode, and continued to the bit.

What is saved are plain arrays. They are laid over an environment that has just been
reset with the seed of the same episode, perhaps in another process: whatever a reset
makes (a goal, a model's sizes) is there already, and only what steps change is saved.

Known are Gymnasium's MuJoCo tasks, Pendulum and MountainCarContinuous, the DeepMind
Control Suite, and the wrappers around them that change nothing or count steps. Of any
other environment, be it a subclass of these, it cannot be known what a step reads. It
says so itself, in two methods: `save_state` gives what steps change, as arrays, and
`load_state` takes it back. A wrapper that has them speaks for what it wraps too. For a
simulation in MuJoCo, `r2r2.envs.mujoco_state.Simulation` gives the arrays and takes
them. The generator `np_random` is saved with every environment.

Example:
    >>> import gymnasium
    >>> class Walk(gymnasium.Env):
    ...     def reset(self, *, seed=None, options=None):
    ...         super().reset(seed=seed)
    ...         self.place = np.zeros(2)
    ...         return self.place, {}
    ...     def step(self, action):
    ...         self.place = self.place + self.np_random.normal(size=2)
    ...         return self.place, 0.0, False, False, {}
    ...     def save_state(self):
    ...         return {"place": self.place}
    ...     def load_state(self, saved):
    ...         self.place = saved["place"]
    >>> first, second = Walk(), Walk()
    >>> for env in (first, second):
    ...     start, _ = env.reset(seed=7)
    >>> after_one, *_ = first.step(0)
    >>> restore(second, state_of(first))
    >>> bool(np.all(first.step(0)[0] == second.step(0)[0]))
    True
"""

from typing import Any, cast

import numpy as np
from gymnasium import wrappers
from numpy.typing import NDArray

from r2r2.envs.dmc import DMCEnv
from r2r2.envs.make import Env
from r2r2.envs.mujoco_state import Saved as Saved
from r2r2.envs.mujoco_state import Simulation
from r2r2.envs.own import Lent
from r2r2.envs.state_parts import Classic, Control, Elapsed, Generator, Own, Part
from r2r2.envs.wrappers import ActionRepeat

# What a step passes through without a trace in them. Subclasses are not among them.
TRANSPARENT = (
    ActionRepeat,
    Lent,
    wrappers.ClipAction,
    wrappers.ClipReward,
    wrappers.DtypeObservation,
    wrappers.FlattenObservation,
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.RescaleAction,
    wrappers.RescaleObservation,
    wrappers.ReshapeObservation,
)
# By name, since importing the classes needs what these tasks need.
MUJOCO = "gymnasium.envs.mujoco."
CLASSIC = (
    "gymnasium.envs.classic_control.continuous_mountain_car",
    "gymnasium.envs.classic_control.pendulum",
)


def state_of(env: Env) -> Saved | None:
    """What a later step of an environment reads, or None if it does not offer that.

    Args:
        env: Has been reset.

    Raises:
        ValueError: What its own `save_state` gives are not arrays with plain names.
    """
    parts = _parts(env)
    if parts is None:
        return None
    return {
        f"{place}/{name}": array
        for place, part in parts.items()
        for name, array in part.save().items()
    }


def restore(env: Env, saved: Saved) -> None:
    """Continues an episode that was saved.

    Args:
        env: Has just been reset with the seed of that episode.
        saved: Of an environment built in the same way.

    Raises:
        ValueError: It does not fit; the environment is to be reset before it is used.
    """
    parts = _parts(env)
    if parts is None:
        raise ValueError("the environment takes no saved state")
    given: dict[str, Saved] = {place: {} for place in parts}
    for name, array in saved.items():
        place, _, own = name.partition("/")
        if place not in given:
            raise ValueError(f"the saved state has {name!r}, which is not of this task")
        given[place][own] = np.array(array)
    for place, part in parts.items():
        if not isinstance(part, Own):
            _compare(place, given[place], part.save())
    for place, part in parts.items():
        try:
            part.load(given[place])
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"the saved state does not fit: {reason}") from error


def _compare(place: str, given: Saved, fresh: Saved) -> None:
    """Refuses what the environment itself would not have saved.

    Kinds and not types are compared: MountainCarContinuous changes its precision.
    """
    if given.keys() != fresh.keys():
        odd = sorted(given.keys() ^ fresh.keys())[0]
        has = "has" if odd in given else "lacks"
        raise ValueError(f"the saved state {has} {f'{place}/{odd}'!r}")
    for name, array in fresh.items():
        here, there = _described(array), _described(given[name])
        if here != there:
            raise ValueError(
                f"the saved state's {f'{place}/{name}'!r} is {there}, not {here}"
            )


def _described(array: NDArray[Any]) -> str:
    return f"of kind {array.dtype.kind!r} and shape {array.shape}"


def _parts(env: Env) -> dict[str, Part] | None:
    """All that steps change, from the outermost layer in; None if that is not known."""
    parts: dict[str, Part] = {}
    layer: Any = env
    # Classes are asked: a wrapper may hand on what is asked of the instance.
    while not _speaks(type(layer)):
        if type(layer) is wrappers.TimeLimit:
            parts[f"limit{len(parts)}"] = Elapsed(layer)
        elif type(layer) not in TRANSPARENT:
            break
        layer = layer.env
    innermost = Own(layer) if _speaks(type(layer)) else _innermost(layer)
    generator = Generator(env.unwrapped)
    if innermost is None or not generator.offered():
        return None
    return parts | {"task": innermost, "np_random": generator}


def _speaks(kind: type) -> bool:
    return hasattr(kind, "save_state") and hasattr(kind, "load_state")


def _innermost(env: Env) -> Part | None:
    if type(env) is DMCEnv:
        control = Control(env)
        return control if control.simulation.offered() else None
    module = type(env).__module__
    if module in CLASSIC:
        return Classic(env)
    if module.startswith(MUJOCO):
        known = cast(Any, env)
        simulation = Simulation(known.model, known.data)
        return simulation if simulation.offered() else None
    return None
