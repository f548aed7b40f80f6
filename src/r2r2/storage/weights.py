"""The arrays of a tree to an npz file and back, by name and without pickle."""

import math
import os
import zipfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import jax
import numpy as np

from r2r2.config.errors import UserError
from r2r2.storage.arrays import NumPyArray, read_header, refusing, unfit, write_arrays
from r2r2.storage.files import open_plain, replacing

Tree = TypeVar("Tree")
WEIGHTS = "weights are"
# What other tools write too. The other kinds are unpacked further than asked.
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

# The types of JAX's own signatures lean on jaxlib's, which are unknown.
_untyped_jax = cast("Any", jax)


class ArrayLike(Protocol):
    """What an array looks like, be it there or only described."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its size along every axis."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The kind of its numbers."""
        ...


def save_weights(path: Path, tree: object) -> None:
    """Writes the arrays of a tree of NamedTuples, modules, tuples and dicts.

    Each is named by its place in the tree, such as `actor/l1/kernel`; the file is an
    ordinary npz, which `numpy.load` reads, and equal trees give equal bytes.
    """
    names, leaves = flatten(tree)
    with replacing(path) as temporary, temporary.open("xb") as file:
        write_arrays(file, zip(names, leaves, strict=True))
        file.flush()
        os.fsync(file.fileno())


def load_weights(path: Path, like: Tree) -> Tree:
    """The tree that `save_weights` wrote, in the form of another.

    Args:
        path: The file. It is read as data: whatever it holds, none of it is run.
        like: A tree of the same names, shapes and dtypes; arrays, or what
            `jax.eval_shape` gives. Where it holds NumPy arrays, so does the result.

    Raises:
        UserError: The file is missing, damaged, or of another tree.

    Example:
        state = load_weights(path, like=jax.eval_shape(agent.init, jax.random.key(0)))
    """
    names, leaves = flatten(like)
    with (
        refusing(path, WEIGHTS),
        open_plain(path) as file,
        zipfile.ZipFile(file) as archive,
    ):
        _check_names(path, archive.namelist(), names)
        arrays = [
            _read(path, archive, name, leaf)
            for name, leaf in zip(names, leaves, strict=True)
        ]
    placed = [
        array if isinstance(leaf, np.ndarray) else _untyped_jax.numpy.asarray(array)
        for array, leaf in zip(arrays, leaves, strict=True)
    ]
    structure = _untyped_jax.tree.structure(like)
    return cast(Tree, _untyped_jax.tree.unflatten(structure, placed))


def flatten(tree: object) -> tuple[list[str], list[ArrayLike]]:
    """The names of a tree's arrays, each by its place, and the arrays themselves."""
    name_of = partial(_untyped_jax.tree_util.keystr, simple=True, separator="/")
    flat = _untyped_jax.tree.leaves_with_path(tree)
    names = [str(name_of(place)) for place, _ in flat]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two arrays of the tree are called {twice!r}")
    return names, [leaf for _, leaf in flat]


def _check_names(path: Path, held: Iterable[str], wanted: Sequence[str]) -> None:
    there = {name.removesuffix(".npy") for name in held}
    if missing := [name for name in wanted if name not in there]:
        raise _unfit(path, f"holds no '{missing[0]}'")
    if unknown := sorted(there - set(wanted)):
        raise _unfit(path, f"holds '{unknown[0]}', which has no place here")


def _read(
    path: Path, archive: zipfile.ZipFile, name: str, like: ArrayLike
) -> NumPyArray:
    """One array; no more of the file is read than `like` says there is."""
    found = archive.getinfo(f"{name}.npy")
    if found.compress_type not in PACKINGS:
        raise _unfit(path, f"holds '{name}' packed in a way that is not read")
    with archive.open(found) as member:
        shape, by_column, dtype = read_header(member)
        if shape != like.shape or dtype != like.dtype:
            held, wanted = _describe(shape, dtype), _describe(like.shape, like.dtype)
            raise _unfit(path, f"holds '{name}' as {held}; needed is {wanted}")
        size = math.prod(shape) * dtype.itemsize
        data = member.read(size + 1)
    if len(data) != size:
        raise _unfit(path, f"holds '{name}' in {len(data)} bytes instead of {size}")
    array: NumPyArray = np.frombuffer(data, dtype)
    return array.reshape(shape, order="F" if by_column else "C").copy()


def _describe(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    return f"{dtype}{list(shape)}"


def _unfit(path: Path, why: str) -> UserError:
    return unfit(WEIGHTS, path, why)
