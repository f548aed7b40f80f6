"""The state of a MuJoCo simulation, including every bit that the next step reads."""

import hashlib
import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from r2r2.envs.vector.step_types import SavedState


class Simulation:
    """Saves and loads the state of an mjModel and its mjData.

    The integration state is not sufficient. Gymnasium's tasks end a step with
    `mj_step`, which leaves quantities derived from the positions (`xpos`, `cinert`,
    `cfrc_ext`) one substep behind, and the next reward and observation read some of
    them. A forward pass would not restore them. Therefore every float array whose size
    is given by the model is saved too.

    Contacts and constraints have no fixed size and are stored elsewhere. dm_control's
    tasks end a step with `mj_step1`, which computes them, and begin the next one with
    `mj_step2`, which reads them; `load` recomputes them with `mj_step1` before it
    writes the arrays. Gymnasium's next `mj_step` recomputes them itself; until then
    `data.contact` differs there.

    Integers are never written: `mj_step1` computes those that matter, and indices read
    from a file could be out of range.
    """

    def __init__(self, model: Any, data: Any):
        self._model = model
        self._data = data
        self._mujoco: Any = importlib.import_module("mujoco")

    def is_supported(self) -> bool:
        """Return whether the model has no features with state other than floats."""
        model = self._model
        sleep = model.opt.enableflags & int(self._mujoco.mjtEnableBit.mjENBL_SLEEP)
        unsupported = (model.nflex, model.nplugin, model.nhistory, sleep)
        return model.nq > 0 and not any(unsupported)

    def save(self) -> SavedState:
        """Return the integration state, the derived fields and their fingerprint."""
        fields, kind = self._fields(), self._state_kind("INTEGRATION")
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
        kind, physics = self._state_kind("INTEGRATION"), self._state_kind("PHYSICS")
        motion = np.zeros(mujoco.mj_stateSize(model, physics))
        mujoco.mj_extractState(model, integration, kind, motion, physics)
        if not np.all(np.abs(motion) <= mujoco.mjMAXVAL):
            raise ValueError("its positions or velocities are out of MuJoCo's range")
        mujoco.mj_setState(model, data, integration, kind)
        mujoco.mj_step1(model, data)
        ends = np.cumsum([field.size for field in fields.values()])
        parts = np.split(saved["derived"], ends[:-1])
        for field, part in zip(fields.values(), parts, strict=True):
            field[...] = part.reshape(field.shape)
        # The derived arrays also contain the integration state, but unchecked.
        mujoco.mj_setState(model, data, integration, kind)

    def _state_kind(self, name: str) -> int:
        return int(getattr(self._mujoco.mjtState, f"mjSTATE_{name}"))

    def _fields(self) -> dict[str, NDArray[np.float64]]:
        """Return views of the arrays with sizes given by the model, in a fixed order.

        MuJoCo keeps exactly these in one buffer, which begins with `qpos`. Views
        outside it may be invalid and are not read.
        """
        data = self._data
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
    digest = hashlib.blake2b(names.encode(), digest_size=16).digest()
    return np.frombuffer(digest, np.uint8)
