import io
import os
import pickle
import zipfile

import numpy as np
import pytest
from refused_weights import refusal_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights.npz"


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def npy(array, **options):
    content = io.BytesIO()
    np.lib.format.write_array(content, array, **options)
    return content.getvalue()


def header(text):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


HOSTILE = {
    "objects": npy(np.array([Bomb()]), allow_pickle=True),
    "a bare pickle": pickle.dumps(Bomb()),
    "bare objects": header("{'descr':'|O','fortran_order':False,'shape':(3,)}"),
    "vast": header(f"{{'descr':'<f8','fortran_order':False,'shape':({2**60},)}}"),
    "code": header("__import__('os').mkdir('exploded')"),
    "deep": header("(" * 5000),
    "short": npy(np.zeros(3))[:-1],
    "long": npy(np.zeros(3)) + b"\0",
    "nothing": b"",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.filterwarnings("default")
def test_a_hostile_array_is_refused_and_never_run(path, content, monkeypatch):
    monkeypatch.chdir(path.parent)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", content)
    refusal_of(path, {"a": np.zeros(3)})
    assert os.listdir(path.parent) == ["weights.npz"]


def test_a_hostile_file_is_refused_and_never_run(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    path.write_bytes(pickle.dumps(Bomb()))
    refusal_of(path, {"a": np.zeros(3)})
    assert os.listdir(path.parent) == ["weights.npz"]


def test_no_more_is_unpacked_than_is_needed(path, monkeypatch):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy(np.zeros(3)) + bytes(10_000_000))
    most = []
    read = zipfile.ZipExtFile.read

    def watched(self, n=-1):
        data = read(self, n)
        most.append(len(data))
        return data

    monkeypatch.setattr(zipfile.ZipExtFile, "read", watched)
    assert (
        refusal_of(path, {"a": np.zeros(3)}) == "array 'a': expected 24 bytes, got 25"
    )
    assert max(most) < 1000


def test_a_folder_is_refused(tmp_path):
    assert refusal_of(tmp_path, {"a": np.zeros(3)}) == "damaged or not an npz file"
