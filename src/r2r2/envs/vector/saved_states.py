"""Save environments in the middle of an episode and continue them bit-exactly.

A saved state consists of plain arrays. It is loaded into an environment that has just
been reset with the seed of the same episode, possibly in another process. The reset
restores everything that steps do not change, such as a goal.

Supported are Gymnasium's MuJoCo tasks, Pendulum and MountainCarContinuous, the DeepMind Control
Suite, and wrappers that are stateless or count steps. Any other environment, including subclasses
of these, can support it with two methods: `save_state` returns what steps change, as arrays, and
`load_state` takes it back. A wrapper with these methods is responsible for what it wraps. For a
simulation in MuJoCo, `Simulation` provides the arrays. The generator `np_random` is always saved.
"""

import hashlib
import importlib
import re
from typing import Any, Protocol, cast

import numpy as np
from gymnasium import wrappers
from numpy.typing import ArrayLike, NDArray

from r2r2.envs.dm_control import DMCEnv
from r2r2.envs.make import ActionRepeat, BorrowedEnv, Env, FlatObservation, UnitAction
from r2r2.envs.vector.step_types import SavedState

ARRAY_NAME = re.compile(r"[a-z0-9_/.]+")
WORD = 64  # bits
INVALID_GENERATOR = "its random generator is in an impossible state"


class _Component(Protocol):
    """A part of an environment that steps change."""

    def save(self) -> SavedState: ...

    # Takes ownership of the arrays; their names, shapes and kinds are those of `save`,
    # except for `_CustomState`.
    def load(self, saved: SavedState) -> None: ...


class _CustomState:
    """The state that an environment saves with its own two methods."""

    def __init__(self, env: Any):
        self._env = env

    def save(self) -> SavedState:
        state: dict[str, ArrayLike] = self._env.save_state()
        saved = {name: np.array(value) for name, value in state.items()}  # copies
        for name, array in saved.items():
            if not ARRAY_NAME.fullmatch(name) or array.dtype.kind not in "biuf":
                raise ValueError(
                    f"{type(self._env).__name__}.save_state: expected numeric or "
                    "boolean arrays with names of lower-case letters, digits, '_', '/' "
                    f"and '.', got {name!r} of type {array.dtype}"
                )
        return saved

    def load(self, saved: SavedState) -> None:
        self._env.load_state(saved)


class _AttributeState:
    """An attribute that holds all of the state, in its current precision."""

    def __init__(self, env: Any, attribute: str, key: str):
        self._env, self._attribute, self._key = env, attribute, key

    def save(self) -> SavedState:
        return {self._key: np.array(getattr(self._env, self._attribute))}

    def load(self, saved: SavedState) -> None:
        value = saved[self._key]
        setattr(self._env, self._attribute, value if value.ndim else value.item())


class Simulation:
    """Saves and loads the state of an mjModel and its mjData.

    The integration state is not sufficient. Gymnasium's tasks end a step with `mj_step`, which
    leaves quantities derived from the positions (`xpos`, `cinert`, `cfrc_ext`) one substep behind,
    and the next reward and observation read some of them. A forward pass would not restore them.
    Therefore every float array whose size is given by the model is saved too.

    Contacts and constraints have no fixed size and are stored elsewhere. dm_control's tasks end a
    step with `mj_step1`, which computes them, and begin the next one with `mj_step2`, which reads
    them; `load` recomputes them with `mj_step1` before it writes the arrays. Gymnasium's next
    `mj_step` recomputes them itself; until then `data.contact` differs there.

    Integers are never written: `mj_step1` computes those that matter, and indices read
    from a file could be out of range.
    """

    def __init__(self, model: Any, data: Any):
        self._model, self._data = model, data
        self._mujoco: Any = importlib.import_module("mujoco")
        self._kind = int(self._mujoco.mjtState.mjSTATE_INTEGRATION)

    def is_supported(self) -> bool:
        """Return whether the model has no features with state other than floats."""
        model = self._model
        sleep = model.opt.enableflags & int(self._mujoco.mjtEnableBit.mjENBL_SLEEP)
        unsupported = (model.nflex, model.nplugin, model.nhistory, sleep)
        return model.nq > 0 and not any(unsupported)

    def save(self) -> SavedState:
        """Return the integration state, the derived fields and their fingerprint."""
        fields, kind = self._fields(), self._kind
        integration = np.zeros(self._mujoco.mj_stateSize(self._model, kind))
        self._mujoco.mj_getState(self._model, self._data, integration, kind)
        return {
            "integration": integration,
            "derived": np.concatenate([np.ravel(field) for field in fields.values()]),
            "layout": _fingerprint(fields),
        }

    def load(self, saved: SavedState) -> None:
        """Replace the state; shapes and kinds of the arrays must match `save`.

        Raises:
            ValueError: The state is of another model or MuJoCo version, or its
                positions or velocities are too large or not finite.
        """
        fields = self._fields()
        if not np.array_equal(saved["layout"], _fingerprint(fields)):
            raise ValueError("it is of another model or another version of MuJoCo")
        mujoco, model, data = self._mujoco, self._model, self._data
        integration = np.asarray(saved["integration"], np.float64)
        kind, physics = self._kind, int(mujoco.mjtState.mjSTATE_PHYSICS)
        motion = np.zeros(mujoco.mj_stateSize(model, physics))
        mujoco.mj_extractState(model, integration, kind, motion, physics)
        if not np.all(np.abs(motion) <= mujoco.mjMAXVAL):
            raise ValueError("its positions or velocities are out of MuJoCo's range")
        mujoco.mj_setState(model, data, integration, kind)
        mujoco.mj_step1(model, data)
        ends = np.cumsum([field.size for field in fields.values()])
        for field, part in zip(fields.values(), np.split(saved["derived"], ends[:-1]), strict=True):
            field[...] = part.reshape(field.shape)
        # The derived arrays also contain the integration state, but unchecked.
        mujoco.mj_setState(model, data, integration, kind)

    def _fields(self) -> dict[str, NDArray[np.float64]]:
        """Return views of the arrays with sizes given by the model, in a fixed order."""
        data = self._data
        # MuJoCo keeps exactly these in one buffer. Views outside may be invalid and are not read.
        begin = data.qpos.ctypes.data
        fields = {"energy": data.energy}
        for name in sorted(dir(data)):
            field = getattr(data, name)
            if not isinstance(field, np.ndarray) or field.dtype != np.float64:
                continue
            if field.size and 0 <= field.ctypes.data - begin < data.nbuffer:
                fields[name] = field
        return fields


def _fingerprint(fields: dict[str, NDArray[np.float64]]) -> NDArray[np.uint8]:
    """Return a hash of the names and shapes of the fields."""
    names = str([(name, field.shape) for name, field in fields.items()])
    return np.frombuffer(hashlib.blake2b(names.encode(), digest_size=16).digest(), np.uint8)


class _DMControlState(Simulation):
    """Simulation, step count and random generator of a dm_control task."""

    def __init__(self, env: DMCEnv):
        self._env = env
        self._inner = cast(Any, env)._env
        physics = self._inner.physics
        super().__init__(physics.model.ptr, physics.data.ptr)

    def save(self) -> SavedState:
        _, key, position, *gauss = self._inner.task.random.get_state()
        return super().save() | {
            "step_count": np.array(self._inner._step_count, np.int64),
            "running": np.array(self._env._running),
            "random": np.array([*key, position], np.uint64),
            "random_gauss": np.array(gauss, np.float64),
        }

    def load(self, saved: SavedState) -> None:
        *key, position = (int(word) for word in saved["random"])
        if position > len(key) or max(key) >= 2**32:
            raise ValueError(INVALID_GENERATOR)
        super().load(saved)
        has_gauss, gauss = saved["random_gauss"]
        self._inner.task.random.set_state(
            ("MT19937", np.array(key, np.uint32), position, int(has_gauss == 1), gauss)
        )
        self._inner._step_count = int(saved["step_count"])
        self._env._running = bool(saved["running"])
        self._inner._reset_next_step = not self._env._running


class _GeneratorState:
    """Gymnasium's random generator of an environment."""

    def __init__(self, generator: np.random.PCG64):
        self._generator = generator

    def save(self) -> SavedState:
        """Return two 128-bit numbers, low words first, and the spare 32 bits."""
        state = cast(dict[str, Any], self._generator.state)
        numbers = state["state"]["state"], state["state"]["inc"]
        words = [n >> shift & 2**WORD - 1 for n in numbers for shift in (0, WORD)]
        return {"pcg64": np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)}

    def load(self, saved: SavedState) -> None:
        low, high, inc_low, inc_high, has_spare, spare = map(int, saved["pcg64"])
        if has_spare > 1 or spare >= 2**32:
            raise ValueError(INVALID_GENERATOR)
        self._generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": low + (high << WORD), "inc": inc_low + (inc_high << WORD)},
            "has_uint32": has_spare,
            "uinteger": spare,
        }


# Wrappers without state. Their subclasses are not included.
STATELESS = (
    ActionRepeat,
    BorrowedEnv,
    FlatObservation,
    UnitAction,
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
# Module names, because importing the classes requires optional packages.
MUJOCO = "gymnasium.envs.mujoco."
CLASSIC = (
    "gymnasium.envs.classic_control.continuous_mountain_car",
    "gymnasium.envs.classic_control.pendulum",
)


def save_env_state(env: Env) -> SavedState | None:
    """Return everything that later steps read, or None if that is not supported."""
    components = _components(env)
    if components is None:
        return None
    return {
        f"{prefix}/{name}": array
        for prefix, component in components.items()
        for name, array in component.save().items()
    }


def restore_env_state(env: Env, saved: SavedState) -> None:
    """Continue a saved episode, in an environment just reset with that episode's seed.

    If the state does not fit, it raises ValueError; the environment must be reset then.
    """
    components = _components(env)
    if components is None:
        raise ValueError("saved state: not supported by this environment")
    states: dict[str, SavedState] = {prefix: {} for prefix in components}
    for key, array in saved.items():
        prefix, _, name = key.partition("/")
        if prefix not in states:
            raise ValueError(f"saved state: unexpected array {key!r}")
        states[prefix][name] = np.array(array)
    for prefix, component in components.items():
        if not isinstance(component, _CustomState):
            _check_arrays(prefix, states[prefix], component.save())
    for prefix, component in components.items():
        try:
            component.load(states[prefix])
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"saved state: cannot be loaded: {reason}") from error


def _check_arrays(prefix: str, saved: SavedState, current: SavedState) -> None:
    """Compare with what would be saved now, by kind: MountainCarContinuous changes precision."""
    if saved.keys() != current.keys():
        name = min(saved.keys() ^ current.keys())
        problem = "unexpected" if name in saved else "missing"
        raise ValueError(f"saved state: {problem} array {f'{prefix}/{name}'!r}")
    for name in current:
        expected, got = (
            f"kind {array.dtype.kind!r} and shape {array.shape}"
            for array in (current[name], saved[name])
        )
        if expected != got:
            key = f"{prefix}/{name}"
            raise ValueError(f"saved state: {key!r}: expected {expected}, got {got}")


def _components(env: Env) -> dict[str, _Component] | None:
    """Return all parts that steps change, outermost first; None if not supported."""
    components: dict[str, _Component] = {}
    layer: Any = env
    while type(layer) in (wrappers.TimeLimit, *STATELESS):
        if type(layer) is wrappers.TimeLimit:
            limit = _AttributeState(layer, "_elapsed_steps", "steps")
            components[f"limit{len(components)}"] = limit
        layer = layer.env
    if (task := _task_state(layer)) is None:
        return None
    components["task"] = task
    if (generator := env.unwrapped._np_random) is not None:
        if type(generator.bit_generator) is not np.random.PCG64:
            return None
        components["np_random"] = _GeneratorState(generator.bit_generator)
    return components


def _task_state(env: Any) -> _Component | None:
    # On the class, because a wrapper may forward attributes of the instance.
    if hasattr(type(env), "save_state") and hasattr(type(env), "load_state"):
        return _CustomState(env)
    module = type(env).__module__
    if module in CLASSIC:
        return _AttributeState(env, "state", "state")
    if type(env) is DMCEnv:
        simulation: Simulation = _DMControlState(env)
    elif module.startswith(MUJOCO):
        simulation = Simulation(env.model, env.data)
    else:
        return None
    return simulation if simulation.is_supported() else None
