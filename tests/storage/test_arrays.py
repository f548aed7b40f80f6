import io
import os
import pickle
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from npz_samples import HOSTILE, Bomb, header, load_error, npy

from r2r2.config.errors import UserError
from r2r2.storage.arrays import CHUNK_BYTES, read_arrays, write_arrays

ARRAYS = {"a/b": np.arange(6.0).reshape(2, 3), "c": np.array(True)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.npz"


def written(path, arrays):
    with path.open("wb") as file:
        write_arrays(file, arrays.items())
    return path.read_bytes()


@settings(max_examples=30)
@given(
    st.dictionaries(
        st.text("ab0_/.", max_size=4),
        st.one_of(
            arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0, min_side=0))
            for dtype in (np.bool_, np.uint8, np.int64, np.float32, ">f8", np.float16)
        ),
    )
)
def test_arrays_round_trip_bit_exactly(tmp_path_factory, arrays):
    path = tmp_path_factory.mktemp("arrays") / "file.npz"
    written(path, arrays)
    result = read_arrays(path)
    assert list(result) == list(arrays)
    for name, array in arrays.items():
        assert (result[name].shape, result[name].dtype) == (array.shape, array.dtype)
        assert result[name].tobytes() == array.tobytes()
        assert result[name].flags.writeable


def test_array_of_several_chunks_round_trips(path):
    array = np.arange(CHUNK_BYTES // 4 + 3, dtype=np.int64)
    written(path, {"a": array, "b": array[:2]})
    np.testing.assert_array_equal(read_arrays(path)["a"], array)


def test_file_need_not_be_seekable(path):
    class Pipe(io.RawIOBase):
        def write(self, data):
            return file.write(data)

    with path.open("wb") as file:
        write_arrays(Pipe(), ARRAYS.items())
    with np.load(path, allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["a/b"], ARRAYS["a/b"])
    np.testing.assert_array_equal(read_arrays(path)["a/b"], ARRAYS["a/b"])


def test_no_second_copy_is_allocated(path):
    array = np.zeros(2**25)
    tracemalloc.start()
    written_bytes = 0

    class Counting(io.RawIOBase):
        def write(self, data):
            nonlocal written_bytes
            written_bytes += len(data)
            return len(data)

    try:
        write_arrays(Counting(), [("a", array)])
        most = tracemalloc.get_traced_memory()[1]
        assert written_bytes > array.nbytes
        assert most < array.nbytes / 4
        del array
        with path.open("wb") as file:
            write_arrays(file, [("a", np.zeros(2**23))])
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        read_arrays(path)
        assert tracemalloc.get_traced_memory()[1] - before < 1.3 * 2**26
    finally:
        tracemalloc.stop()


def test_fortran_order_is_read(path):
    np.savez(path, a=np.asfortranarray(ARRAYS["a/b"]))
    np.testing.assert_array_equal(read_arrays(path)["a"], ARRAYS["a/b"])


@pytest.mark.parametrize("value", [np.array([object()]), np.array(["text"])])
def test_non_numeric_dtype_is_not_written(path, value):
    with pytest.raises(TypeError, match="a: cannot save dtype"):
        written(path, {"a": value})


def test_file_truncated_at_any_byte_is_rejected(path):
    content = written(path, ARRAYS)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert load_error(path) == "damaged or not an npz file"


def test_changed_byte_is_rejected_or_harmless(path):
    content = written(path, ARRAYS)
    rejected = 0
    for place in range(len(content)):
        torn = bytearray(content)
        torn[place] ^= (0x01, 0x80)[place % 2]
        path.write_bytes(torn)
        try:
            result = read_arrays(path)
        except UserError:
            rejected += 1
        else:
            # The zip format does not protect the names.
            for name in set(result) & set(ARRAYS):
                np.testing.assert_array_equal(result[name], ARRAYS[name])
    assert rejected > len(content) / 2


@pytest.mark.filterwarnings("default")
def test_hostile_array_is_rejected_and_never_executed(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    for content in HOSTILE.values():
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", content)
        assert load_error(path) == "damaged or not an npz file"
    assert os.listdir(path.parent) == ["file.npz"]


@pytest.mark.parametrize("descr", ["'|O'", "'<U2'", "'<M8[s]'", "[('a', '<i8')]"])
def test_non_numeric_dtype_is_not_read(path, descr):
    array_header = header(f"{{'descr':{descr},'fortran_order':False,'shape':(1,)}}")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", array_header + bytes(8))
    assert load_error(path) == "damaged or not an npz file"


def test_declared_size_is_not_allocated_in_advance(path):
    array_header = header("{'descr':'|u1','fortran_order':False,'shape':(50_000_000,)}")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", array_header)
    tracemalloc.start()
    try:
        assert load_error(path) == "damaged or not an npz file"
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_pickle_is_rejected_and_never_executed(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    path.write_bytes(pickle.dumps(Bomb()))
    assert load_error(path) == "damaged or not an npz file"
    assert os.listdir(path.parent) == ["file.npz"]


def test_compressed_file_is_not_expanded(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy(np.zeros(1_000_000)))
    assert load_error(path) == "the arrays are longer than the file"
    np.savez_compressed(path, a=np.random.default_rng(0).normal(size=100))
    assert load_error(path) == "damaged or not an npz file"


def test_names_that_share_bytes_are_rejected(path):
    written(path, {"a": np.zeros(1000), "b": np.zeros(1)})
    with zipfile.ZipFile(path, "a") as archive:
        first, second = archive.infolist()
        for field in ("header_offset", "CRC", "compress_size", "file_size"):
            setattr(second, field, getattr(first, field))
        archive._didModify = True
    assert load_error(path) == "the arrays are longer than the file"


def test_duplicate_names_are_rejected(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", npy(np.zeros(1)))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.npy", npy(np.ones(1)))
    assert load_error(path) == "two arrays have the same name"


def test_special_file_is_rejected(path, tmp_path):
    assert load_error(path) == "does not exist"
    assert load_error(tmp_path) == "damaged or not an npz file"
    os.mkfifo(path)
    assert load_error(path) == "damaged or not an npz file"
    path.unlink()
    written(tmp_path / "other.npz", ARRAYS)
    path.symlink_to("other.npz")
    assert load_error(path) == "damaged or not an npz file"
