"""Worker program: `python -m r2r2.envs.vector.worker_main PARENT PIPE MEMORY LOG`.

It runs the commands of its slots and exits when the pipe closes, so that it never
outlives the run. The main process runs the commands of its own slots with `LocalEnvs`.
If the worker crashes, or when it is sent SIGUSR1, it writes its stack to the log.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import NamedTuple

import cloudpickle
import numpy as np

from r2r2.config.errors import UserError
from r2r2.envs.make import Env
from r2r2.envs.output import lossy_output
from r2r2.envs.spec import Spec
from r2r2.envs.vector import ipc
from r2r2.envs.vector.saved_states import restore_env_state, save_env_state
from r2r2.envs.vector.step_types import NO_EPISODE, EnvFactory, SavedState
from r2r2.envs.vector.trial import InvalidEnvOutput, check_obs, check_reward, try_env

PARENT_CHECK_SECONDS = 1.0


class LocalEnvs:
    """The environments of some slots, each built when it is first needed.

    A trial calls `on_call` with the name of each method before it calls the method.
    """

    def __init__(
        self, factories: Mapping[int, EnvFactory], on_call: Callable[[str], None] = lambda _: None
    ):
        self._factories, self._on_call = factories, on_call
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
                    saved |= self._save(slot)
                elif command == ipc.TRY:
                    saved[slot] = self._try(slot)
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

    def _save(self, slot: int) -> dict[int, SavedState]:
        state = save_env_state(self.env(slot))
        return {} if state is None else {slot: state}

    def _try(self, slot: int) -> SavedState:
        spec, limit = try_env(self._factories[slot], self._on_call)
        return {"sizes": np.array([*spec, -1 if limit is None else limit])}

    def _reset(self, slot: int, arrays: ipc.SharedArrays) -> None:
        obs, _ = self.env(slot).reset(seed=int(arrays.seed[slot]))
        arrays.obs[slot] = check_obs(obs, arrays.obs.shape[1])

    def _step(self, slot: int, arrays: ipc.SharedArrays) -> None:
        next_obs, reward, terminated, truncated, _ = self.env(slot).step(arrays.action[slot].copy())
        # `obs` is written last: after a failure it holds the last valid observation.
        arrays.next_obs[slot] = check_obs(next_obs, arrays.obs.shape[1])
        arrays.reward[slot] = check_reward(reward)
        arrays.terminated[slot], arrays.truncated[slot] = terminated, truncated
        if (terminated or truncated) and arrays.seed[slot] != NO_EPISODE:
            self._reset(slot, arrays)
        else:
            arrays.obs[slot] = arrays.next_obs[slot]

    def close(self) -> None:
        """Close the environments; a failure is a warning. A second call does nothing."""
        while self._envs:
            slot, env = self._envs.popitem()
            try:
                env.close()
            except (Exception, SystemExit) as error:
                problem = f"close failed: {type(error).__name__}: {error}"
                warnings.warn(f"env {self._factories[slot].task!r}: {problem}", stacklevel=2)


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
    if isinstance(error, InvalidEnvOutput | UserError):
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


def serve(pipe: Connection, memory_file: int, log: int) -> None:
    """Run commands until the pipe closes."""
    try:
        config: WorkerConfig = cloudpickle.loads(pipe.recv_bytes())
    except EOFError:
        return
    except Exception as error:
        sys.exit(f"r2r2: an environment cannot be unpickled: {type(error).__name__}: {error}")
    arrays = ipc.map_arrays(memory_file, config.slots, config.spec)
    envs, number, handled = LocalEnvs(config.factories, _call_logger(log)), config.number, 0
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
            if reply:
                pipe.send_bytes(reply)
            if config.spin_seconds == ipc.BY_PIPE or (arrays.main_sleeps[number] and not reply):
                pipe.send_bytes(ipc.WAKE)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        envs.close()


def _call_logger(log: int) -> Callable[[str], None]:
    """Return a function for `try_env` that logs each call, and where it calls `os._exit`."""

    def profile(_: object, event: str, function: object) -> None:
        if event == "c_call" and function is os._exit:
            faulthandler.dump_traceback(log, all_threads=False)

    def on_call(name: str) -> None:
        os.write(log, f"{name}\n".encode())
        sys.setprofile(profile)

    return on_call


def _exit_with_parent(parent: int) -> None:
    """Exit when the parent is gone, even if an environment hangs."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)


def main() -> None:
    """Start with the parent's process id and three inherited file descriptors."""
    # The parent handles these signals; it may still need the states for a checkpoint.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    warnings.formatwarning = lambda message, *_, **__: f"r2r2: warning: {message}\n"
    parent, pipe, memory_file, log = map(int, sys.argv[1:])
    faulthandler.enable(log, all_threads=False)
    faulthandler.register(signal.SIGUSR1, log, all_threads=False)
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    with lossy_output():  # what an environment prints must not make it fail
        serve(Connection(pipe), memory_file, log)


if __name__ == "__main__":
    main()
