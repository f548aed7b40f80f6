"""Transitions that a run starts from: npz files and Minari datasets, checked before use."""

import hashlib
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from r2r2.config.errors import UserError, did_you_mean
from r2r2.storage.arrays import read_named_arrays, write_arrays
from r2r2.storage.files import atomic_open, cannot_read, cannot_write, open_regular

MINARI = "minari:"  # prefix of a dataset's name
MINARI_DATA = "data"  # folder of a dataset with its files
METADATA = "metadata.json"  # names, authors and spaces, but no transitions
# Names of arrays in D4RL's files.
ALIASES = {"terminals": "terminations", "timeouts": "truncations"}
# Actions may lie outside their bounds by this fraction of the range; they are clipped.
BOUND_TOLERANCE = 1e-4


class Transitions(NamedTuple):
    """N transitions, in order: those of an episode follow each other."""

    observations: NDArray[Any]  # [N, obs]
    actions: NDArray[Any]  # [N, action], in the environment's own range
    rewards: NDArray[Any]  # [N]
    next_observations: NDArray[Any]  # [N, obs]
    terminations: NDArray[np.bool_]  # [N]
    truncations: NDArray[np.bool_]  # [N]


class TransitionSizes(NamedTuple):
    """What a task expects of transitions."""

    obs_dim: int
    action_low: NDArray[np.float64]  # [action]
    action_high: NDArray[np.float64]  # [action]
    least: int  # transitions, those of one batch


OPTIONAL = ("truncations",)
DIMENSIONS = {"observations": 2, "actions": 2, "next_observations": 2}  # of the others: 1


def save_transitions(path: Path | str, **arrays: ArrayLike) -> None:
    """Write transitions to an npz file for `--prefill`; nothing is written if they are invalid.

    Args:
        path: the file; an existing one is replaced.
        **arrays: `observations` [N, obs], `actions` [N, action] in the environment's own range,
            `rewards` [N], `next_observations` [N, obs], `terminations` [N] (bool), and optionally
            `truncations` [N] (bool). Transitions of an episode must follow each other.

    Raises:
        UserError: An array is missing or unknown, has another shape or type, or is not finite.

    Example:
        >>> import tempfile
        >>> obs = np.arange(8.0).reshape(4, 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_transitions(
        ...         f"{folder}/data.npz",
        ...         observations=obs[:-1],
        ...         actions=np.zeros((3, 1)),
        ...         rewards=np.ones(3),
        ...         next_observations=obs[1:],
        ...         terminations=np.array([False, False, True]),
        ...     )
        ...     len(read_transitions(f"{folder}/data.npz").rewards)
        3
    """
    for name in arrays:
        if name not in Transitions._fields:
            near = did_you_mean(name, Transitions._fields, most=1)
            raise UserError(f"{path}: unknown array '{name}'{near}")
    checked = _checked(str(path), {name: np.asarray(x) for name, x in arrays.items()})
    try:
        with atomic_open(Path(path)) as file:
            write_arrays(file, checked._asdict().items())
    except OSError as error:
        raise cannot_write(Path(path), error) from error


def read_transitions(source: str) -> Transitions:
    """Return the checked transitions of an npz file or of a Minari dataset."""
    if _is_minari(source):
        return _checked(source, _read_minari(source))
    names = {*Transitions._fields, *ALIASES}
    return _checked(source, read_named_arrays(Path(source), names))


def check_for_task(source: str, data: Transitions, sizes: TransitionSizes) -> None:
    """Check that transitions fit a task and are enough for a batch."""
    widths = {
        "observations": sizes.obs_dim,
        "next_observations": sizes.obs_dim,
        "actions": len(sizes.action_low),
    }
    count = len(data.rewards)
    for name, width in widths.items():
        array = getattr(data, name)
        if array.shape[1] != width:
            raise _invalid(source, name, f"shape [{count}, {width}]", _shape_text(array))
    if count < sizes.least:
        expected = f"at least {sizes.least} transitions, those of one batch"
        raise UserError(f"{source}: expected {expected}, got {count}")
    slack = BOUND_TOLERANCE * (sizes.action_high - sizes.action_low)
    low, high = sizes.action_low - slack, sizes.action_high + slack
    outside = np.argwhere((data.actions < low) | (data.actions > high))
    for row, column in outside[:1]:
        bounds = f"{sizes.action_low[column]:g} to {sizes.action_high[column]:g}"
        expected = f"values from {bounds}, the range of the task"
        place = f"{data.actions[row, column]:g} at [{row}, {column}]"
        raise _invalid(source, "actions", expected, place)


def resolve_source(source: str) -> str:
    """Return where data are, independently of the working directory."""
    if source.startswith(MINARI):
        return source
    try:
        return str(Path(source).resolve())
    except (OSError, RuntimeError) as error:  # or a loop of links
        raise UserError(f"{source}: cannot read: {error}") from error


def source_digest(source: str) -> str:
    """Return the SHA-256 of an npz file, or of the names and contents of a dataset's files."""
    if not _is_minari(source):
        return file_sha256(Path(source))
    folder = _minari_folder(source)
    total = hashlib.sha256()
    files = sorted(x for x in folder.rglob("*") if x.is_file() and x.name != METADATA)
    for path in files:
        total.update(f"{path.relative_to(folder).as_posix()} {file_sha256(path)}\n".encode())
    return total.hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, hashlib.sha256).hexdigest()
    except FileNotFoundError as error:
        raise UserError(f"{path}: does not exist") from error
    except OSError as error:
        raise cannot_read(path, error) from error


# Checks


def _checked(source: str, arrays: Mapping[str, NDArray[Any]]) -> Transitions:
    """Return the arrays under their own names; they must be those of N transitions."""
    named = _named(source, arrays)
    count = len(named["rewards"]) if named["rewards"].ndim else 0
    for name, array in named.items():
        dimensions = DIMENSIONS.get(name, 1)
        if array.ndim != dimensions or len(array) != count or not array.size:
            widths = ["N", "action" if name == "actions" else "obs"][:dimensions]
            expected = f"shape [{', '.join(widths)}], N > 0 as for rewards"
            raise _invalid(source, name, expected, _shape_text(array))
    flags = {name: _flags(source, name, named[name]) for name in ("terminations", *OPTIONAL)}
    for name in (x for x in Transitions._fields if x not in flags):
        _check_numbers(source, name, named[name])
    shapes = [named[name].shape for name in ("observations", "next_observations")]
    if shapes[0] != shapes[1]:
        got = _shape_text(named["next_observations"])
        expected = f"{_shape_text(named['observations'])}, as for observations"
        raise _invalid(source, "next_observations", expected, got)
    return Transitions(**(named | flags))


def _named(source: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    named: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        own = ALIASES.get(name, name)
        if own in named:
            both = " and ".join(sorted(x for x in arrays if ALIASES.get(x, x) == own))
            raise UserError(f"{source}: expected one of the arrays {both}, got both")
        named[own] = array
    for name in Transitions._fields:
        if name not in named and name not in OPTIONAL:
            expected = ", ".join(x for x in Transitions._fields if x not in OPTIONAL)
            got = ", ".join(sorted(arrays)) or "none of them"
            raise UserError(f"{source}: no array '{name}'; expected {expected}, got {got}")
    named.setdefault("truncations", np.zeros(np.shape(named["rewards"])[:1], dtype=bool))
    return {name: named[name] for name in Transitions._fields}


def _flags(source: str, name: str, array: NDArray[Any]) -> NDArray[np.bool_]:
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind in "iu" and np.isin(array, (0, 1)).all():
        return array.astype(bool)
    got = f"{array.dtype}" if array.dtype.kind not in "iu" else f"{array.max()} and others"
    raise _invalid(source, name, "booleans", got)


def _check_numbers(source: str, name: str, array: NDArray[Any]) -> None:
    if array.dtype.kind not in "fiu":
        raise _invalid(source, name, "numbers", str(array.dtype))
    with np.errstate(over="ignore"):  # replay has single precision
        finite = np.isfinite(array.astype(np.float32))
    for place in np.argwhere(~finite)[:1]:
        where = ", ".join(map(str, place))
        got = f"{array[tuple(place)]} at [{where}]"
        raise _invalid(source, name, "finite numbers of single precision", got)


def _invalid(source: str, name: str, expected: str, got: str) -> UserError:
    return UserError(f"{source}: array '{name}': expected {expected}, got {got}")


def _shape_text(array: NDArray[Any]) -> str:
    return f"shape {list(array.shape)}"


# Minari


def _is_minari(source: str) -> bool:
    return source.startswith(MINARI) or Path(source).is_dir()


def _import_minari(source: str) -> Any:
    try:
        return importlib.import_module("minari")
    except ImportError as error:
        raise UserError(
            f"{source}: expected the package minari, which is not installed; "
            "pip install 'r2r2[minari]'"
        ) from error


def _open_minari(source: str) -> Any:
    """Return a local dataset; nothing is downloaded."""
    minari = _import_minari(source)
    try:
        if source.startswith(MINARI):
            return minari.load_dataset(source.removeprefix(MINARI))
        folder = Path(source)
        return minari.MinariDataset(
            folder / MINARI_DATA if (folder / MINARI_DATA).is_dir() else folder
        )
    except Exception as error:  # of Minari, HDF5 or the file system
        text = " ".join(str(error).split())
        raise UserError(f"{source}: not a Minari dataset that can be read: {text}") from error


def _minari_folder(source: str) -> Path:
    return Path(_open_minari(source).storage.data_path)


def _read_minari(source: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of all episodes; an episode has one observation more than steps."""
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in Transitions._fields}
    for episode in _episodes(source):
        observations = episode.observations
        for name, value in (("observations", observations), ("actions", episode.actions)):
            if not isinstance(value, np.ndarray):
                got = f"a {type(value).__name__} of arrays"
                raise _invalid(source, name, "one array per episode", got)
        steps = len(episode.rewards)
        columns = {
            "observations": observations[:steps],
            "actions": episode.actions[:steps],
            "rewards": np.asarray(episode.rewards),
            "next_observations": observations[1:],
            "terminations": np.asarray(episode.terminations, dtype=bool),
            "truncations": np.asarray(episode.truncations, dtype=bool).copy(),
        }
        columns["truncations"][-1:] |= ~columns["terminations"][-1:]  # recording stopped there
        for name, column in columns.items():
            parts[name].append(column)
    if not parts["rewards"]:
        raise UserError(f"{source}: expected episodes, got none")
    return {name: np.concatenate(columns) for name, columns in parts.items()}


def _episodes(source: str) -> Iterable[Any]:
    try:
        yield from _open_minari(source).iterate_episodes()
    except UserError:
        raise
    except Exception as error:  # a damaged file can make HDF5 raise almost anything
        text = " ".join(str(error).split())
        raise UserError(f"{source}: cannot read: {text}") from error
