"""Worker program: `python -m r2r2.envs.vector.worker_main PARENT PIPE MEMORY STREAMS LOG`.

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
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple, cast

import cloudpickle
import numpy as np

from r2r2.config.errors import UserError
from r2r2.envs.make import Env
from r2r2.envs.output import lossy_output
from r2r2.envs.spec import InvalidEnvOutput, Spec
from r2r2.envs.vector import ipc
from r2r2.envs.vector.saved_states import restore_env_state, save_env_state
from r2r2.envs.vector.step_types import (
    FAULT,
    NO_EPISODE,
    STREAM,
    EnvFactory,
    SavedState,
    array_to_text,
    text_to_array,
)
from r2r2.envs.vector.streams import FAILED, Player, StreamArrays, StreamLayout, map_streams
from r2r2.envs.vector.trial import check_obs, check_reward, encode_trial, try_env

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
        self._seeds: dict[int, int] = {}  # of the running episodes, by slot
        self._player: Player | None = None
        self._ready: int | None = None  # a slot that can make a row
        self._failures: dict[int, str] = {}  # of slots that played ahead, not reported yet

    def attach(self, layout: StreamLayout, arrays: ipc.SharedArrays, streams: StreamArrays) -> None:
        """Let these environments be played by policies."""
        step = partial(self._step, arrays=arrays)
        self._player = Player(list(self._factories), layout, arrays, streams, step)
        self._streams = streams

    def can_play(self) -> bool:
        """Return whether some slot can make a row now."""
        if self._ready is None and self._player is not None:
            self._ready = self._player.next_slot()
        return self._ready is not None

    def play_next(self, arrays: ipc.SharedArrays, worker: int) -> None:
        """Make a row of a slot that can; an error is kept for `REPORT`."""
        if self._player is None or not self.can_play():
            return
        slot, self._ready = cast(int, self._ready), None
        arrays.current_slot[worker] = slot
        try:
            self._player.play(slot)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            self._failures[slot] = _format_fault(error)
            self._close_env(slot)
            self._streams.state[slot] = FAILED

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
        self._ready = None  # a command may end its plan
        errors: dict[int, str] = {}
        saved: dict[int, SavedState] = {}
        for slot, command in commands.items():
            arrays.current_slot[worker] = slot
            try:
                if command == ipc.REPORT:
                    errors[slot] = self._failures.pop(slot)
                elif (state := self._run(slot, command, arrays, states)) is not None:
                    saved[slot] = state
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                _raise_ctrl_c(error)
                errors[slot] = _format_fault(error)
                if command != ipc.SAVE:  # a failure to save does not end the episode
                    self._close_env(slot)
        return ipc.Message(errors, saved) if errors or saved else ipc.EMPTY

    def _run(
        self, slot: int, command: int, arrays: ipc.SharedArrays, states: Mapping[int, SavedState]
    ) -> SavedState | None:
        """Run one command; return what it saves, if anything."""
        if command == ipc.SAVE:
            return self._save(slot, arrays)
        if command == ipc.TRY:
            return self._try(slot)
        if command == ipc.STEP:
            self._step(slot, arrays)
        elif command == ipc.PLAY and self._player:
            self._player.play(slot)
        else:
            self._cancel(slot)
            self._begin(slot, arrays, states[slot] if command == ipc.LOAD else None)
        return None

    def _begin(self, slot: int, arrays: ipc.SharedArrays, state: SavedState | None) -> None:
        """Begin an episode, or continue the saved one if a state is given."""
        if state is not None and FAULT in state:  # it has no environment until its next reset
            self._seeds[slot] = int(arrays.seed[slot])
            self._failures[slot] = array_to_text(state[FAULT])
            self._close_env(slot)
            return
        self._reset(slot, arrays)
        if state is not None:
            restore_env_state(self.env(slot), state)

    def _close_env(self, slot: int) -> None:
        with contextlib.suppress(Exception, SystemExit):  # it may not be built
            self._envs.pop(slot).close()

    def _save(self, slot: int, arrays: ipc.SharedArrays) -> SavedState | None:
        failure = self._failures.get(slot)
        state: SavedState | None
        if failure is None:
            state = save_env_state(self.env(slot))
        else:
            state = {FAULT: text_to_array(failure)}
        if state is not None and self._player is not None:
            state |= {
                STREAM + "made": self._streams.made[slot].copy(),
                STREAM + "seed": np.asarray(self._seeds[slot]),
                STREAM + "current_obs": arrays.obs[slot].copy(),
            }
        return state

    def _cancel(self, slot: int) -> None:
        if self._player is not None:
            self._player.cancel(slot)
            self._failures.pop(slot, None)

    def _try(self, slot: int) -> SavedState:
        return encode_trial(try_env(self._factories[slot], self._on_call))

    def _reset(self, slot: int, arrays: ipc.SharedArrays) -> None:
        self._seeds[slot] = int(arrays.seed[slot])
        obs, _ = self.env(slot).reset(seed=self._seeds[slot])
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
    layout: StreamLayout | None  # of the memory in which policies are played, if they are


def serve(pipe: Connection, memory_file: int, stream_file: int, log: int) -> None:
    """Run commands until the pipe closes."""
    try:
        config: WorkerConfig = cloudpickle.loads(pipe.recv_bytes())
    except EOFError:
        return
    except Exception as error:
        sys.exit(f"r2r2: an environment cannot be unpickled: {type(error).__name__}: {error}")
    arrays = ipc.map_arrays(memory_file, config.slots, config.spec)
    envs = LocalEnvs(config.factories, _call_logger(log))
    if config.layout is not None:
        envs.attach(config.layout, arrays, map_streams(stream_file, config.layout))
    worker = Worker(config, pipe, arrays, envs)
    try:
        while True:
            worker.work()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        envs.close()


class Worker:
    """Runs the commands of some slots, and plays them ahead in the meantime."""

    def __init__(
        self, config: WorkerConfig, pipe: Connection, arrays: ipc.SharedArrays, envs: LocalEnvs
    ):
        self._pipe, self._arrays, self._envs = pipe, arrays, envs
        self._number = config.number
        self._by_pipe = bool(arrays.spin_seconds[config.number] == ipc.BY_PIPE)
        self._slots, self._handled = list(config.factories), 0
        self._received = b""  # the message of a request that is still to come
        self._sleeps = arrays.worker_sleeps[config.number : config.number + 1]

    def work(self) -> None:
        """Wait for something to do, and do it."""
        seconds = float(self._arrays.spin_seconds[self._number])
        received = ipc.wait_until(self._has_work, seconds, self._pipe, self._sleeps)
        self._received = received or self._received
        if self._has_request():
            self._run_commands(self._received)
            self._received = b""
            return
        self._envs.play_next(self._arrays, self._number)
        self._arrays.current_slot[self._number] = ipc.IDLE
        if self._arrays.main_sleeps[self._number]:
            self._pipe.send_bytes(ipc.WAKE)

    def _has_request(self) -> bool:
        return bool(self._arrays.requested[self._number] != self._handled)

    def _has_work(self) -> bool:
        return self._has_request() or (not self._by_pipe and self._envs.can_play())

    def _run_commands(self, received: bytes) -> None:
        arrays, number, pending = self._arrays, self._number, self._arrays.command
        self._handled += 1
        commands = {slot: int(pending[slot]) for slot in self._slots if pending[slot]}
        loads = ipc.LOAD in commands.values()
        states = ipc.recv_message(self._pipe, received).states if loads else {}
        message = self._envs.run(commands, arrays, number, states)
        reply = b"" if message is ipc.EMPTY else ipc.encode(message)
        pending[list(commands)] = ipc.NO_COMMAND
        arrays.current_slot[number] = ipc.IDLE
        arrays.completed[number] = -self._handled if reply else self._handled
        if reply:
            self._pipe.send_bytes(reply)
        if self._by_pipe or (arrays.main_sleeps[number] and not reply):
            self._pipe.send_bytes(ipc.WAKE)


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
    """Start with the parent's process id and four inherited file descriptors."""
    # The parent handles these signals; it may still need the states for a checkpoint.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    warnings.formatwarning = lambda message, *_, **__: f"r2r2: warning: {message}\n"
    parent, pipe, memory_file, stream_file, log = map(int, sys.argv[1:])
    faulthandler.enable(log, all_threads=False)
    faulthandler.register(signal.SIGUSR1, log, all_threads=False)
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    with lossy_output():  # what an environment prints must not make it fail
        serve(Connection(pipe), memory_file, stream_file, log)


if __name__ == "__main__":
    main()
