"""Try an environment once, and name the line of the user's code where it fails."""

import contextlib
import json
import math
import traceback
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from r2r2.config.errors import UserError
from r2r2.envs.make import BorrowedEnv, Env, episode_seed, spaces_of, spec_of, time_limit_of
from r2r2.envs.spec import LIBRARIES, InvalidEnvOutput, Spec
from r2r2.envs.vector.step_types import EnvFactory, SavedState
from r2r2.policy.spaces import TaskSpaces, spaces_from_json, spaces_to_json

TRIAL_STEPS = 3
TRIAL_SEED = episode_seed(0, "trial", 0)  # of no episode of any run

Frame = tuple[str, str | int]  # file and line
# Code of r2r2, Gymnasium and the interpreter is not the user's; other libraries may be.
INTERNAL = (str(Path(__file__).parents[2]), str(Path(gymnasium.__file__).parent), "<frozen")


class Trial(NamedTuple):
    """What is known about a task after a trial."""

    spaces: TaskSpaces
    step_limit: int | None  # of an episode, in environment steps

    @property
    def spec(self) -> Spec:
        """The sizes of the task."""
        return Spec(self.spaces.obs_dim, self.spaces.action_dim)


def try_env(
    factory: EnvFactory, on_call: Callable[[str], None] = lambda _: None, steps: int = TRIAL_STEPS
) -> Trial:
    """Build an environment, reset it, make a few random steps, and close it.

    Without steps there is no reset, either. An instance that belongs to the caller is not
    stepped, since that would change its state. `on_call` is called with the name of each
    method before the method itself.

    Raises:
        UserError: One of these failed; the message names the line of the user's code.
    """
    calling = partial(_calling, factory.task, on_call)
    with calling("__init__"):
        env = factory.make()
    with calling("__init__", env):
        adapted = factory.adapt(env)
        trial = Trial(spaces_of(adapted), time_limit_of(adapted))
    if steps and not isinstance(env, BorrowedEnv):
        with calling("reset", env):
            obs, _ = adapted.reset(seed=TRIAL_SEED)
            check_obs(obs, trial.spec.obs_dim)
        with calling("step", env):
            _try_steps(adapted, np.random.default_rng(0), steps)
    with calling("close", env):
        adapted.close()
    return trial


def encode_trial(trial: Trial) -> SavedState:
    """Return a trial as arrays, for a message between processes."""
    record = {"spaces": spaces_to_json(trial.spaces), "step_limit": trial.step_limit}
    return {"trial": np.frombuffer(json.dumps(record).encode(), np.uint8)}


def decode_trial(arrays: SavedState) -> Trial:
    """Return the trial in a message."""
    record = json.loads(arrays["trial"].tobytes())
    return Trial(spaces_from_json(record["spaces"]), record["step_limit"])


def _try_steps(env: Env, rng: np.random.Generator, steps: int) -> None:
    spec = spec_of(env)
    for action in rng.uniform(-1, 1, (steps, spec.action_dim)):
        obs, reward, terminated, truncated, _ = env.step(action)
        check_obs(obs, spec.obs_dim)
        check_reward(reward)
        if terminated or truncated:
            return


@contextlib.contextmanager
def _calling(
    task: str, on_call: Callable[[str], None], method: str, env: Any = None
) -> Generator[None]:
    """Turn errors of a call into a `UserError` that names the user's file and line."""
    on_call(method)
    try:
        yield
    except (Exception, SystemExit) as error:
        cause = error.__cause__ or error
        frames = [(x.filename, x.lineno or 0) for x in traceback.extract_tb(cause.__traceback__)]
        text = f"env {task!r}: {method} failed: {type(error).__name__}: {error}"
        if isinstance(error, UserError):
            text = str(error)
        elif isinstance(error, InvalidEnvOutput):
            text = f"env {task!r}: {method}: {error}"
        text = " ".join(text.split())
        raise UserError(f"{text}{locate([*_definition(env, method), *frames])}") from error


def _definition(env: Any, method: str) -> list[Frame]:
    """Return where the user defines a method (or `reset`), for errors in what it returns."""
    inner = env.unwrapped if isinstance(env, gymnasium.Env) else env
    functions = (getattr(type(inner), name, None) for name in ("reset", method))
    codes = (getattr(function, "__code__", None) for function in functions)
    return [(code.co_filename, code.co_firstlineno) for code in codes if code]


def locate(frames: Iterable[Frame]) -> str:
    """Return ' (file:line)' of the user's innermost frame, the last one; '' without any."""
    others = [frame for frame in frames if not frame[0].startswith(INTERNAL)]
    user = [frame for frame in others if not frame[0].startswith(LIBRARIES)] or others
    return f" ({user[-1][0]}:{user[-1][1]})" if user else ""


def check_obs(obs: Any, size: int) -> NDArray[np.float64]:
    """Return an observation as float64, or raise if its shape or a number is invalid."""
    if (shape := np.shape(obs)) != (size,):
        raise InvalidEnvOutput(f"observation: expected shape {(size,)}, got {shape}")
    numbers = np.asarray(obs, np.float64)
    # Takes a quarter of the time of `np.all`, which matters in every step.
    index = np.isfinite(numbers).tobytes().find(b"\0")
    if index >= 0:
        raise InvalidEnvOutput(
            f"observation[{index}]: expected a finite number, got {numbers[index]}"
        )
    return numbers


def check_reward(reward: Any) -> float:
    """Return a reward as a number, or raise if it is not finite."""
    if not math.isfinite(number := float(reward)):
        raise InvalidEnvOutput(f"reward: expected a finite number, got {number}")
    return number
