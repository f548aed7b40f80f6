"""Callbacks: a user's code that runs at certain moments of a run.

Hooks get copies, so that nothing in them can change a run. What a hook raises never stops the loop
in the middle of a step: it is kept, and the loop handles it before its next iteration.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from r2r2.config.errors import UserError
from r2r2.training.signals import Interrupted


class StopTraining(Exception):
    """Raise it in a hook of a `Callback` to stop a run, with the reason as its text.

    The run ends before its next step, with a checkpoint, as after Ctrl-C: its `Result` has
    `interrupted=True` and the reason as `stop_reason`, and the same command resumes it.

    Example:
        >>> from r2r2 import Callback
        >>> class Enough(Callback):
        ...     def on_evaluation(self, info):
        ...         if info.mean > 900:
        ...             raise StopTraining("good enough")
        >>> str(StopTraining("good enough"))
        'good enough'
    """


class StartInfo(NamedTuple):
    """The start of a run, or of its continuation.

    Example:
        >>> StartInfo(Path("runs/a"), "td7", ("Hopper-v5_s0",), 0, 1000, False, {}).resumed
        False
    """

    run: Path  # the run folder
    agent: str
    members: tuple[str, ...]
    step: int  # decision steps that are done: 0, or those of the checkpoint
    steps: int  # decision steps of the whole run
    resumed: bool
    config: dict[str, Any]  # all fields of the config by dotted name
    stopped: tuple[str, ...] = ()  # members that were stopped before


class StepInfo(NamedTuple):
    """One decision step of a member, or a block of several; the arrays have a row for each.

    On a CPU every step is reported by itself. Beside an accelerator, the steps that workers have
    made meanwhile are reported together, never across the end of an episode.

    Example:
        >>> row = np.zeros((1, 3))
        >>> flag = np.array([False])
        >>> StepInfo("Hopper-v5_s0", 7, 1, row, row[:, :1], np.ones(1), row, flag, flag).step
        7
    """

    member: str
    step: int  # decision steps of the member, these included
    count: int  # type: ignore[assignment]  # steps in this block; hides tuple.count
    obs: NDArray[np.float64]  # [count, obs], that was acted on
    action: NDArray[np.floating]  # [count, action], in [-1, 1]
    reward: NDArray[np.float64]  # [count]
    next_obs: NDArray[np.float64]  # [count, obs], the outcome, also at the end of an episode
    terminated: NDArray[np.bool_]  # [count]
    truncated: NDArray[np.bool_]  # [count]


class EpisodeInfo(NamedTuple):
    """A training episode that has ended.

    Example:
        >>> EpisodeInfo("Hopper-v5_s0", 500, 100, 4, 200, 12.5, False).total_return
        12.5
    """

    member: str
    step: int  # decision steps of the member
    updates: int  # of the member
    episode: int  # from 0
    length: int  # decision steps
    total_return: float  # undiscounted
    random: bool  # an episode of the warm-up


class EvaluationInfo(NamedTuple):
    """An evaluation that has ended; training may be further by then.

    Example:
        >>> EvaluationInfo("Hopper-v5_s0", 10_000, 9_000, 2.0, 1.0, np.array([1.0, 3.0]), 2.0).mean
        2.0
    """

    member: str
    step: int  # decision steps of the member whose policy was evaluated
    updates: int
    mean: float
    std: float  # over the episodes; NaN for a single one
    returns: NDArray[np.float64]  # [episodes]
    point: float | None  # of the learning curve, if this evaluation completes one


class CheckpointInfo(NamedTuple):
    """A run checkpoint that is on disk.

    Example:
        >>> CheckpointInfo(Path("runs/a/checkpoints/00000001.json"), 5000).step
        5000
    """

    path: Path  # its manifest; older checkpoints are deleted
    step: int  # decision steps that every member has made


class EndInfo(NamedTuple):
    """The end of a call of `train`, also after an interruption or an error.

    Example:
        >>> EndInfo(Path("runs/a"), 5000, False, "interrupted", {}, {}).finished
        False
    """

    run: Path
    step: int  # decision steps that every member has made
    finished: bool  # otherwise the run can be resumed
    reason: str  # why it ended before its last step; empty: it did not
    returns: dict[str, float]  # the last point of each member; NaN without any
    stopped: dict[str, str]  # members that were stopped, with the reason


class Callback:
    """Methods that `train` calls; subclass it and override some of them.

    A hook gets a named tuple with copies: changing them changes nothing. It may raise
    `StopTraining`; another exception ends the run with a checkpoint, too, and is raised by `train`.
    Hooks are called in the thread of `train`, so a slow one makes training slow. Results do not
    depend on callbacks.

    Example:
        >>> class PrintReturns(Callback):
        ...     def on_episode(self, info):
        ...         print(f"{info.member}: {info.total_return:.1f}")
        >>> PrintReturns().on_episode(EpisodeInfo("Hopper-v5_s0", 500, 0, 4, 200, 12.5, False))
        Hopper-v5_s0: 12.5
    """

    def on_start(self, info: StartInfo) -> None:
        """Handle the start of a run, before its first event and its first step."""

    def on_step(self, info: StepInfo) -> None:
        """Handle a decision step of a member, or a block of steps beside an accelerator."""

    def on_episode(self, info: EpisodeInfo) -> None:
        """Handle the end of a training episode."""

    def on_evaluation(self, info: EvaluationInfo) -> None:
        """Handle the end of an evaluation."""

    def on_checkpoint(self, info: CheckpointInfo) -> None:
        """Handle a run checkpoint that was written."""

    def on_log(self, event: dict[str, Any]) -> None:
        """Handle an event of `events.jsonl`, as a dictionary."""

    def on_end(self, info: EndInfo) -> None:
        """Handle the end of the call of `train`; called once after every `on_start`."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class CallbackList:
    """Calls the hooks of several callbacks, and keeps what they raise.

    Attributes:
        stop_reason: the first request to stop, with the callback that made it; or empty.
    """

    def __init__(self, callbacks: Sequence[Callback] = ()):
        if not isinstance(callbacks, list | tuple):
            raise UserError(f"expected a list, got {callbacks!r}", "callbacks")
        for callback in callbacks:
            if not isinstance(callback, Callback):
                expected = "instances of subclasses of r2r2.Callback"
                raise UserError(f"expected {expected}, got {callback!r}", "callbacks")
        self._callbacks = tuple(callbacks)
        self._hooks = {hook: [x for x in callbacks if _overrides(x, hook)] for hook in HOOKS}
        self._failed: list[Callback] = []
        self._error: BaseException | None = None
        self._started = False
        self.stop_reason = ""

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._callbacks)

    def wants(self, hook: str) -> bool:
        """Return whether any callback has this hook; without one, no copies need be made."""
        return bool(self._hooks[hook])

    def call(self, hook: str, make_info: Callable[[], object]) -> None:
        """Call a hook of all callbacks, each with its own copy of the information."""
        for callback in self._hooks[hook]:
            if any(callback is failed for failed in self._failed):
                continue
            info = make_info()
            try:
                getattr(callback, hook)(info)
            except StopTraining as stop:
                why = f": {stop}" if str(stop) else ""
                self.stop_reason = self.stop_reason or f"{type(callback).__name__}{why}"
            except BaseException as error:  # also Ctrl-C: the step must be completed
                self._failed.append(callback)
                error.add_note(f"raised in {hook} of the callback {type(callback).__name__}")
                self._error = self._error or error

    def start(self, make_info: Callable[[], StartInfo]) -> None:
        """Call `on_start`."""
        self._started = True
        self.call("on_start", make_info)

    def log(self, event: Mapping[str, object]) -> None:
        """Call `on_log` with an event of plain values."""
        self.call("on_log", lambda: copy.deepcopy(dict(event)))

    def end(self, make_info: Callable[[], EndInfo]) -> None:
        """Call `on_end` of every callback, once after `start`; raise the first error of a hook."""
        if self._started:
            self._started, self._failed = False, []
            self.call("on_end", make_info)
            self.raise_error()

    @property
    def failed(self) -> bool:
        """Whether a hook has raised an error that was not raised again yet."""
        return self._error is not None

    @property
    def stops(self) -> bool:
        """Whether the run must end now."""
        return self.failed or bool(self.stop_reason)

    def raise_stop(self) -> None:
        """Raise what a hook raised: an error, or a request to stop as an interruption."""
        self.raise_error()
        if self.stop_reason:
            raise Interrupted(self.stop_reason)

    def raise_error(self) -> None:
        """Raise the first error of a hook, if any; Ctrl-C in a hook is an interruption."""
        if self._error is None:
            return
        error, self._error = self._error, None
        if type(error) is KeyboardInterrupt:
            raise Interrupted from error
        raise error

    def add_note(self, note: str) -> None:
        """Add a note to the error that will be raised, if any."""
        if self._error is not None:
            self._error.add_note(note)


def _overrides(callback: Callback, hook: str) -> bool:
    method: object = getattr(callback, hook)
    return getattr(method, "__func__", None) is not cast("object", getattr(Callback, hook))


def step_info(
    name: str, step: int, obs: NDArray[np.float64], columns: Sequence[NDArray[Any]]
) -> StepInfo:
    """Return the steps of one member, as copies.

    Args:
        name: of the member.
        step: its decision steps, these included.
        obs: its observation before these steps, [obs].
        columns: actions, rewards, next observations, terminated, truncated, and the observations
            to act on next, [count, ...] each.
    """
    action, reward, next_obs, terminated, truncated, following = map(np.array, columns)
    acted_on = np.concatenate([obs[None], following[:-1]])
    flags = terminated, truncated
    return StepInfo(name, step, len(reward), acted_on, action, reward, next_obs, *flags)
