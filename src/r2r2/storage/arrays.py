"""Named arrays to an npz file and back, piece by piece and without pickle."""

import contextlib
import io
import math
import zipfile
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import IO, Any, Protocol, cast

import numpy as np
from numpy.lib import format as npy

from r2r2.config.errors import UserError
from r2r2.storage.files import open_plain

NumPyArray = np.ndarray[Any, np.dtype[Any]]
Header = tuple[tuple[int, ...], bool, np.dtype[Any]]  # shape, by column, dtype

SUFFIX = ".npy"
KINDS = "biuf"
PIECE = 2**22  # bytes that are read at once


class Sink(Protocol):
    """What an archive is written to; it need not be able to go back."""

    def write(self, data: bytes, /) -> int:
        """Takes bytes."""
        ...

    def flush(self) -> None:
        """Hands on what it has taken."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


def write_arrays(sink: Sink, arrays: Iterable[tuple[str, object]]) -> None:
    """Writes arrays as an ordinary npz file, which `numpy.load` reads.

    They go out in pieces, stored and not compressed: no second copy of an array that
    lies in one piece is made. Equal arrays give equal bytes.

    Raises:
        TypeError: One holds other things than truths and numbers.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> write_arrays(file, [("replay/reward", np.zeros(3))])
        >>> with zipfile.ZipFile(file) as archive:
        ...     archive.namelist()
        ['replay/reward.npy']
    """
    with zipfile.ZipFile(sink, "w") as archive:
        for name, value in arrays:
            array = np.asarray(value, order="C")
            if array.dtype.kind not in KINDS:
                raise TypeError(f"{name} is of {array.dtype}, which is not recorded")
            with archive.open(name + SUFFIX, "w", force_zip64=True) as member:
                npy.write_array(member, array, version=(1, 0), allow_pickle=False)


def read_arrays(path: Path) -> dict[str, NumPyArray]:
    """The arrays of a file that `write_arrays` wrote, by name.

    The file is read as data: whatever it holds, none of it is run, and no more memory
    is taken than the file is long.

    Raises:
        UserError: The file is missing, a link, damaged, or holds anything else.
    """
    with refusing(path, "file is"), open_plain(path) as file:
        length = file.seek(0, 2)
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            names = [member.filename.removesuffix(SUFFIX) for member in members]
            # Several names may lead to the same bytes, and packed ones to many more.
            if sum(member.file_size for member in members) > length:
                raise unfit("file is", path, "holds more than it is long")
            if len(set(names)) < len(names):
                raise unfit("file is", path, "holds two arrays of one name")
            return {
                name: _read(archive, member)
                for name, member in zip(names, members, strict=True)
            }


@contextlib.contextmanager
def refusing(path: Path, what: str) -> Generator[None]:
    """Turns whatever reading a file raises into a sentence about it."""
    try:
        yield
    except FileNotFoundError as error:
        raise unfit(what, path, "does not exist") from error
    except UserError:
        raise
    # A hostile file can make zipfile, zlib and NumPy's parser raise nearly anything.
    except Exception as error:
        raise unfit(what, path, "is damaged or not an npz file") from error


def unfit(what: str, path: Path, why: str) -> UserError:
    """The refusal of a file.

    Example:
        >>> str(unfit("weights are", Path("a.npz"), "does not exist"))
        "weights are 'a.npz', which does not exist"
    """
    return UserError(f"{what} '{path}', which {why}")


def read_header(member: IO[bytes] | io.BufferedIOBase) -> Header:
    """The shape of an array, whether it lies by column, and its dtype."""
    if npy.read_magic(member) != (1, 0):
        raise ValueError("an array of another version")
    return npy.read_array_header_1_0(member)


def _read(archive: zipfile.ZipFile, found: zipfile.ZipInfo) -> NumPyArray:
    """One array; memory is taken once the file is known to have as many bytes."""
    with cast("io.BufferedIOBase", archive.open(found)) as member:
        shape, by_column, dtype = read_header(member)
        size, left = math.prod(shape), found.file_size - member.tell()
        stored = found.compress_type == zipfile.ZIP_STORED
        if not stored or dtype.kind not in KINDS or size * dtype.itemsize != left:
            raise ValueError("not an array as it is written here")
        array: NumPyArray = np.empty(size, dtype)
        content = array.view(np.uint8)
        for start in range(0, left, PIECE):
            piece = content[start : start + PIECE]
            if member.readinto(piece.data) != len(piece):
                raise ValueError("fewer bytes than promised")
        if member.read(1):
            raise ValueError("more bytes than promised")
    return array.reshape(shape, order="F" if by_column else "C")
