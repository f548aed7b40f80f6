"""Worker program: `python -m r2r2.envs.vector.worker_main PARENT PIPE MEMORY`.

It runs the commands of its slots and exits when the pipe closes, so that it never
outlives the run. The main process runs the commands of its own slots with `LocalEnvs`.
"""

import contextlib
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from r2r2.envs.make import Env
from r2r2.envs.output import lossy_output
from r2r2.envs.spec import Spec
from r2r2.envs.vector import ipc
from r2r2.envs.vector.saved_states import restore_env_state, save_env_state
from r2r2.envs.vector.step_types import NO_EPISODE, EnvFactory, SavedState

PARENT_CHECK_SECONDS = 1.0


class InvalidEnvOutput(ValueError):
    """An environment returned an invalid observation or reward."""


class LocalEnvs:
    """The environments of some slots, each built when it is first needed."""

    def __init__(self, factories: Mapping[int, EnvFactory]):
        self._factories = factories
        self._envs: dict[int, Env] = {}

    def env(self, slot: int) -> Env:
        """Return the environment of a slot."""
        if slot not in self._envs:
            self._envs[slot] = self._factories[slot].build()
        return self._envs[slot]

    def run(
        self,
        commands: Mapping[int, int],
        arrays: ipc.SharedArrays,
        worker: int,
        states: Mapping[int, SavedState],
    ) -> ipc.Message:
        """Run the commands of slots in turn; `states` are those of slots to load.

        An environment that fails is closed, and built again at its next reset. It has failed, too,
        if it raises KeyboardInterrupt or SystemExit.
        """
        errors: dict[int, str] = {}
        saved: dict[int, SavedState] = {}
        for slot, command in commands.items():
            arrays.current_slot[worker] = slot
            try:
                if command == ipc.STEP:
                    self._step(slot, arrays)
                elif command == ipc.SAVE:
                    if (state := save_env_state(self.env(slot))) is not None:
                        saved[slot] = state
                else:
                    self._reset(slot, arrays)
                    if command == ipc.LOAD:
                        restore_env_state(self.env(slot), states[slot])
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                _raise_ctrl_c(error)
                errors[slot] = _format_fault(error)
                if command != ipc.SAVE:  # a failure to save does not end the episode
                    with contextlib.suppress(Exception, SystemExit):  # it may not be built
                        self._envs.pop(slot).close()
        return ipc.Message(errors, saved) if errors or saved else ipc.EMPTY

    def _reset(self, slot: int, arrays: ipc.SharedArrays) -> None:
        obs, _ = self.env(slot).reset(seed=int(arrays.seed[slot]))
        arrays.obs[slot] = _check_obs(obs, arrays)

    def _step(self, slot: int, arrays: ipc.SharedArrays) -> None:
        next_obs, reward, terminated, truncated, _ = self.env(slot).step(arrays.action[slot].copy())
        # `obs` is written last: after a failure it holds the last valid observation.
        arrays.next_obs[slot] = _check_obs(next_obs, arrays)
        if not math.isfinite(reward := float(reward)):
            raise InvalidEnvOutput(f"reward: expected a finite number, got {reward}")
        arrays.reward[slot] = reward
        arrays.terminated[slot], arrays.truncated[slot] = terminated, truncated
        if (terminated or truncated) and arrays.seed[slot] != NO_EPISODE:
            self._reset(slot, arrays)
        else:
            arrays.obs[slot] = arrays.next_obs[slot]

    def close(self) -> None:
        """Close the environments; a second call does nothing."""
        while self._envs:
            self._envs.popitem()[1].close()


def _check_obs(obs: Any, arrays: ipc.SharedArrays) -> NDArray[np.float64]:
    shape, expected = np.shape(obs), arrays.obs.shape[1:]
    if shape != expected:
        raise InvalidEnvOutput(f"observation: expected shape {expected}, got {shape}")
    numbers = np.asarray(obs, np.float64)
    # Takes a quarter of the time of `np.all`, which matters in every step.
    index = np.isfinite(numbers).tobytes().find(b"\0")
    if index >= 0:
        raise InvalidEnvOutput(
            f"observation[{index}]: expected a finite number, got {numbers[index]}"
        )
    return numbers


def _raise_ctrl_c(error: BaseException) -> None:
    """Raise a KeyboardInterrupt that may come from a signal, and not from the environment."""
    handler = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    # Workers ignore signals; the handler of a run knows whether one has arrived.
    may_raise = in_main_thread and callable(handler) and getattr(handler, "signalled", True)
    if isinstance(error, KeyboardInterrupt) and may_raise:
        raise error


def _format_fault(error: BaseException) -> str:
    """Return an exception as text with its message, on one line, at the end."""
    if isinstance(error, InvalidEnvOutput):
        return str(error)
    message = "".join(traceback.format_exception_only(error))
    stack = "".join(traceback.format_exception(error)).removesuffix(message)
    return f"{stack}{' '.join(message.split())}"


class WorkerConfig(NamedTuple):
    """The first message to a worker."""

    number: int
    factories: dict[int, EnvFactory]  # by slot
    slots: int  # of the whole pool
    spec: Spec
    spin_seconds: float  # time to poll for commands before sleeping


def serve(pipe: Connection, memory_file: int) -> None:
    """Run commands until the pipe closes."""
    try:
        config: WorkerConfig = cloudpickle.loads(pipe.recv_bytes())
    except EOFError:
        return
    arrays = ipc.map_arrays(memory_file, config.slots, config.spec)
    envs, number, handled = LocalEnvs(config.factories), config.number, 0
    slots, pending = list(config.factories), arrays.command
    sleeps = arrays.worker_sleeps[number : number + 1]

    def is_done() -> bool:
        return bool(arrays.requested[number] != handled)

    try:
        while True:
            received = ipc.wait_until(is_done, config.spin_seconds, pipe, sleeps)
            handled += 1
            commands = {slot: int(pending[slot]) for slot in slots if pending[slot]}
            loads = ipc.LOAD in commands.values()
            states = ipc.recv_message(pipe, received).states if loads else {}
            message = envs.run(commands, arrays, number, states)
            reply = b"" if message is ipc.EMPTY else ipc.encode(message)
            pending[list(commands)] = ipc.NO_COMMAND
            arrays.current_slot[number] = ipc.IDLE
            arrays.completed[number] = -handled if reply else handled
            if reply or arrays.main_sleeps[number]:
                pipe.send_bytes(reply or ipc.WAKE)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        envs.close()


def _exit_with_parent(parent: int) -> None:
    """Exit when the parent is gone, even if an environment hangs."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)


def main() -> None:
    """Start with the parent's process id and two inherited file descriptors."""
    # The parent handles these signals; it may still need the states for a checkpoint.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent, pipe, memory_file = map(int, sys.argv[1:])
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    with lossy_output():  # what an environment prints must not make it fail
        serve(Connection(pipe), memory_file)


if __name__ == "__main__":
    main()
