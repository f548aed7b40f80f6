"""Named arrays and trees of arrays in npz files, without pickle."""

import contextlib
import importlib
import io
import math
import zipfile
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
from numpy.lib import format as npy

from r2r2.config.errors import UserError
from r2r2.storage.files import atomic_open, open_regular

NumPyArray = np.ndarray[Any, np.dtype[Any]]
Tree = TypeVar("Tree")

SUFFIX = ".npy"
DTYPE_KINDS = "biuf"
CHUNK_BYTES = 2**22  # read at a time
# The compressions that NumPy writes; others may expand further than requested.
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def write_arrays(file: BinaryIO | io.RawIOBase, arrays: Iterable[tuple[str, object]]) -> None:
    """Write boolean and numeric arrays as npz, uncompressed; equal arrays give equal bytes."""
    with zipfile.ZipFile(cast("BinaryIO", file), "w") as archive:
        for name, value in arrays:
            array = np.asarray(value, order="C")
            if array.dtype.kind not in DTYPE_KINDS:
                raise TypeError(f"{name}: cannot save dtype {array.dtype}")
            with archive.open(name + SUFFIX, "w", force_zip64=True) as member:
                npy.write_array(member, array, version=(1, 0), allow_pickle=False)


def read_arrays(path: Path) -> dict[str, NumPyArray]:
    """Return the arrays of a file by name, or raise UserError; never executes its content."""
    with _open_npz(path) as archive:
        members = archive.infolist()
        names = [member.filename.removesuffix(SUFFIX) for member in members]
        # Several names may share bytes, and compressed bytes expand.
        if sum(member.file_size for member in members) > path.stat().st_size:
            raise UserError("the arrays are longer than the file")
        if len(set(names)) < len(names):
            raise UserError("two arrays have the same name")
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("write_arrays does not compress")
        arrays = [_read_array(archive, member) for member in members]
    return dict(zip(names, arrays, strict=True))


def read_named(path: Path, names: Sequence[str]) -> dict[str, NumPyArray]:
    """Return some arrays of a file by name, or raise UserError; the others are not read."""
    with _open_npz(path) as archive:
        members = {info.filename for info in archive.infolist()}
        if missing := [name for name in names if name + SUFFIX not in members]:
            raise UserError(f"missing array '{missing[0]}'")
        return {name: _read_array(archive, archive.getinfo(name + SUFFIX)) for name in names}


def save_weights(path: Path, tree: object) -> None:
    """Write the arrays of a tree, each named by its path, such as `actor/l1/kernel`."""
    names, leaves = flatten_tree(tree)
    with atomic_open(path) as file:
        write_arrays(file, zip(names, leaves, strict=True))


def load_weights(path: Path, like: Tree, subset: bool = False) -> Tree:
    """Return the tree that `save_weights` wrote; it must have the shapes and dtypes of `like`.

    With `subset`, the file may hold other arrays, which are not read.
    """
    names, leaves = flatten_tree(like)
    with _open_npz(path) as archive:
        members = {info.filename.removesuffix(SUFFIX) for info in archive.infolist()}
        if missing := [name for name in names if name not in members]:
            raise UserError(f"missing array '{missing[0]}'")
        if (unknown := sorted(members - set(names))) and not subset:
            raise UserError(f"unexpected array '{unknown[0]}'")
        arrays = [
            _read_array(archive, archive.getinfo(name + SUFFIX), leaf)
            for name, leaf in zip(names, leaves, strict=True)
        ]
    jax = _import_jax()
    values = [
        array if isinstance(leaf, np.ndarray) else jax.numpy.asarray(array)
        for array, leaf in zip(arrays, leaves, strict=True)
    ]
    return cast(Tree, jax.tree.unflatten(jax.tree.structure(like), values))


def flatten_tree(tree: object) -> tuple[list[str], list[Any]]:
    """Return the names of a tree's arrays, which are their paths, and the arrays."""
    jax = _import_jax()
    name = partial(jax.tree_util.keystr, simple=True, separator="/")
    flat = jax.tree.leaves_with_path(tree)
    names = [str(name(path)) for path, _ in flat]
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two arrays of the tree have the name {duplicate!r}")
    return names, [leaf for _, leaf in flat]


def _import_jax() -> Any:
    """Import JAX on first use: reading checkpoints does not need it."""
    return importlib.import_module("jax")


@contextlib.contextmanager
def _open_npz(path: Path) -> Generator[zipfile.ZipFile]:
    """Open an npz file; any error of the block becomes a UserError that names it."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except FileNotFoundError as error:
        raise UserError(f"{path}: does not exist") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    # A malicious file can make zipfile, zlib and NumPy's parser raise almost anything.
    except Exception as error:
        raise UserError(f"{path}: damaged or not an npz file") from error


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, like: Any = None) -> NumPyArray:
    """Read an array, like another one if given; check its header before allocating."""
    if info.compress_type not in COMPRESSIONS:
        raise ValueError("unsupported compression")
    with cast("io.BufferedIOBase", archive.open(info)) as member:
        if npy.read_magic(member) != (1, 0):
            raise ValueError("unsupported version of the npy format")
        shape, fortran_order, dtype = npy.read_array_header_1_0(member)
        if like is not None and (shape != like.shape or dtype != like.dtype):
            name = info.filename.removesuffix(SUFFIX)
            expected, got = f"{like.dtype}{list(like.shape)}", f"{dtype}{list(shape)}"
            raise UserError(f"array '{name}': expected {expected}, got {got}")
        size, rest = math.prod(shape), info.file_size - member.tell()
        if dtype.kind not in DTYPE_KINDS or size * dtype.itemsize != rest:
            raise ValueError("not an array that write_arrays wrote")
        array: NumPyArray = np.empty(size, dtype)
        content = array.view(np.uint8)
        for start in range(0, rest, CHUNK_BYTES):
            chunk = content[start : start + CHUNK_BYTES]
            if member.readinto(chunk.data) != len(chunk):
                raise ValueError("shorter than its header says")
        if member.read(1):
            raise ValueError("longer than its header says")
    return array.reshape(shape, order="F" if fortran_order else "C")
