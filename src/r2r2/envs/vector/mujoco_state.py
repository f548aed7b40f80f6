"""The state of a MuJoCo simulation, to every bit that the next step reads."""

import hashlib
import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from r2r2.envs.vector.step_types import SavedState


class Simulation:
    """An mjModel and its mjData, as a thing to save and to lay over another.

    The integration state alone is not enough. Gymnasium's tasks end a step with
    `mj_step`, which leaves everything derived from the positions (`xpos`, `cinert`,
    `cfrc_ext`) as it was one substep before, and the next reward and observation read
    some of it: neither keeping those fields nor a forward pass gives them back. So
    every array of floats that has its size from the model is saved too.

    Contacts and rows of constraints have no fixed size and lie elsewhere.
    dm_control's tasks end a step with `mj_step1`, which makes them, and begin the next
    with `mj_step2`, which reads them: loading makes them anew with `mj_step1` before
    the arrays are written over what it changes. Gymnasium's next `mj_step` makes its
    own; only there, and until then, `data.contact` is of another substep.

    Integers are never written: those that matter are made by `mj_step1`, and indices
    out of a file could point anywhere.
    """

    def __init__(self, model: Any, data: Any):
        self._model = model
        self._data = data
        self._mujoco: Any = importlib.import_module("mujoco")

    def offered(self) -> bool:
        """Whether floats are all: these features keep indices, pointers or ages."""
        model = self._model
        sleeps = model.opt.enableflags & int(self._mujoco.mjtEnableBit.mjENBL_SLEEP)
        keepers = (model.nflex, model.nplugin, model.nhistory, sleeps)
        return model.nq > 0 and not any(keepers)

    def save(self) -> SavedState:
        """The integration state, the derived fields, and what tells which they are."""
        fields = self._fields()
        return {
            "integration": self._integration(),
            "derived": np.concatenate([np.ravel(field) for field in fields.values()]),
            "layout": _fingerprint(fields),
        }

    def load(self, saved: SavedState) -> None:
        """Lays a state over this one; shapes and kinds have been checked.

        Raises:
            ValueError: It is of another model or of another MuJoCo, or MuJoCo would
                take its positions for a simulation that has exploded.
        """
        fields = self._fields()
        if not np.array_equal(saved["layout"], _fingerprint(fields)):
            raise ValueError("it is of another model or another version of MuJoCo")
        mujoco, model, data = self._mujoco, self._model, self._data
        integration = np.asarray(saved["integration"], np.float64)
        if not np.all(np.abs(self._moving(integration)) <= mujoco.mjMAXVAL):
            raise ValueError(
                "its positions or velocities are beyond what MuJoCo simulates"
            )
        mujoco.mj_setState(model, data, integration, self._kind("INTEGRATION"))
        mujoco.mj_step1(model, data)
        ends = np.cumsum([field.size for field in fields.values()])
        parts = np.split(saved["derived"], ends[:-1])
        for field, part in zip(fields.values(), parts, strict=True):
            field[...] = part.reshape(field.shape)
        # The fields hold the same once more, unchecked.
        mujoco.mj_setState(model, data, integration, self._kind("INTEGRATION"))

    def _kind(self, name: str) -> int:
        return int(getattr(self._mujoco.mjtState, f"mjSTATE_{name}"))

    def _integration(self) -> NDArray[np.float64]:
        kind = self._kind("INTEGRATION")
        state = np.zeros(self._mujoco.mj_stateSize(self._model, kind))
        self._mujoco.mj_getState(self._model, self._data, state, kind)
        return state

    def _moving(self, integration: NDArray[np.float64]) -> NDArray[np.float64]:
        """The positions and velocities in an integration state."""
        every, moving = self._kind("INTEGRATION"), self._kind("PHYSICS")
        found = np.zeros(self._mujoco.mj_stateSize(self._model, moving))
        self._mujoco.mj_extractState(self._model, integration, every, found, moving)
        return found

    def _fields(self) -> dict[str, NDArray[np.float64]]:
        """Views of the arrays whose sizes the model gives, by name, in a fixed order.

        They are told by where they lie: MuJoCo keeps exactly these in one buffer, which
        `qpos` begins. A view of anything else may point nowhere and is not read.
        """
        data = self._data
        begin = data.qpos.ctypes.data
        found = {"energy": data.energy}
        for name in sorted(dir(data)):
            field = getattr(data, name)
            if not isinstance(field, np.ndarray) or field.dtype != np.float64:
                continue
            if field.size and 0 <= field.ctypes.data - begin < data.nbuffer:
                found[name] = field
        return found


def _fingerprint(fields: dict[str, NDArray[np.float64]]) -> NDArray[np.uint8]:
    """Stands for the names and shapes of the fields."""
    names = str([(name, field.shape) for name, field in fields.items()])
    digest = hashlib.blake2b(names.encode(), digest_size=16).digest()
    return np.frombuffer(digest, np.uint8)
