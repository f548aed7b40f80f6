"""Malicious npz files, and the errors that loading them gives."""

import io
import os
import pickle

import numpy as np
import pytest

from r2r2.config.errors import UserError
from r2r2.storage.arrays import load_weights, read_arrays


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


def load_error(path, like=None):
    """Return the error of reading a file, without the file name."""
    with pytest.raises(UserError) as error:
        load_weights(path, like) if like is not None else read_arrays(path)
    prefix = f"{path}: "
    assert str(error.value).startswith(prefix)
    return str(error.value).removeprefix(prefix)
