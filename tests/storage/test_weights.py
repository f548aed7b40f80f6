import os
import pickle
import zipfile
from typing import NamedTuple

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npz_samples import HOSTILE, Bomb, load_error, npy

from r2r2.config.errors import UserError
from r2r2.storage.arrays import load_weights, save_weights


class Linear(eqx.Module):
    kernel: jax.Array
    bias: jax.Array
    gain: float = eqx.field(static=True, default=1.0)


class Actor(NamedTuple):
    l1: Linear
    layers: tuple[jax.Array, ...]


class State(NamedTuple):
    actor: Actor
    statistics: np.ndarray
    flags: dict[str, jax.Array]


def state(offset=0):
    kernel = jnp.arange(6.0).reshape(2, 3) + offset
    linear = Linear(kernel, jnp.array([True, False]), gain=2.0)
    layers = (jnp.int32(7 + offset), jnp.zeros((0, 4)))
    third = np.full(2, 1 / 3 + offset, dtype=np.float64)
    return State(Actor(linear, layers), third, {"file": jnp.float32(offset)})


NAMES = [
    "actor/l1/kernel",
    "actor/l1/bias",
    "actor/layers/0",
    "actor/layers/1",
    "statistics",
    "flags/file",
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights.npz"


def test_arrays_are_named_by_tree_path(path):
    save_weights(path, state())
    with np.load(path, allow_pickle=False) as archive:
        assert archive.files == NAMES
        np.testing.assert_array_equal(archive["actor/l1/kernel"], [[0, 1, 2], [3, 4, 5]])
        assert archive["statistics"].dtype == np.float64


def test_tree_round_trips_bit_exactly(path):
    saved = state(offset=5)
    save_weights(path, saved)
    loaded = load_weights(path, like=state())
    chex.assert_trees_all_equal(loaded, saved, strict=True)
    chex.assert_trees_all_equal_dtypes(loaded, saved)
    assert loaded.actor.l1.gain == 2.0


def test_numpy_leaves_stay_writable_numpy_arrays(path):
    save_weights(path, state())
    loaded = load_weights(path, like=state())
    assert isinstance(loaded.statistics, np.ndarray)
    assert isinstance(loaded.actor.l1.kernel, jax.Array)
    loaded.statistics[0] = 1


def test_tree_of_shapes_is_enough_to_load(path):
    save_weights(path, state(3).actor)
    loaded = load_weights(path, jax.eval_shape(lambda: state().actor))
    chex.assert_trees_all_equal(loaded, state(3).actor)


def test_equal_trees_give_equal_bytes(path, tmp_path):
    by_row = np.arange(6.0).reshape(2, 3)
    save_weights(path, (state(), by_row))
    save_weights(tmp_path / "again", (state(), np.asfortranarray(by_row)))
    assert path.read_bytes() == (tmp_path / "again").read_bytes()


DTYPES = st.sampled_from([np.bool_, np.int8, np.int32, np.float16, np.float32, "f8"])
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
LAYOUTS = st.sampled_from("CF")


@settings(deadline=None)
@given(
    st.dictionaries(st.text("ab/.", max_size=4), st.tuples(SHAPES, DTYPES, LAYOUTS)),
    st.integers(0, 2**32),
)
def test_arbitrary_trees_round_trip(tmp_path_factory, shapes, seed):
    rng = np.random.default_rng(seed)
    tree = {
        name: [np.asarray(rng.normal(size=shape), dtype=dtype, order=layout)]
        for name, (shape, dtype, layout) in shapes.items()
    }
    path = tmp_path_factory.mktemp("tree") / "weights.npz"
    save_weights(path, tree)
    loaded = load_weights(path, jax.tree.map(np.zeros_like, tree))
    chex.assert_trees_all_equal(loaded, tree, strict=True)
    with np.load(path, allow_pickle=False) as archive:
        assert len(archive.files) == len(tree)


def test_fortran_order_is_read(path):
    kernel = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.savez_compressed(path, kernel=kernel)
    loaded = load_weights(path, {"kernel": np.zeros((2, 3))})
    np.testing.assert_array_equal(loaded["kernel"], [[0, 1, 2], [3, 4, 5]])


def test_failed_write_leaves_the_old_file(path, monkeypatch):
    save_weights(path, state())
    monkeypatch.setattr("os.fsync", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_weights(path, state(1))
    chex.assert_trees_all_equal(load_weights(path, state()), state())
    assert os.listdir(path.parent) == ["weights.npz"]


def test_duplicate_names_are_rejected(path):
    with pytest.raises(ValueError, match="the name 'a/b'"):
        save_weights(path, {"a": {"b": np.zeros(1)}, "a/b": np.zeros(1)})
    assert not path.exists()


@pytest.mark.parametrize("leaf", [np.array([object()]), jnp.zeros(2, jnp.bfloat16)])
def test_unsupported_dtype_is_rejected(path, leaf):
    with pytest.raises(TypeError, match="a: cannot save dtype"):
        save_weights(path, {"a": leaf})
    assert not path.exists()


@pytest.mark.parametrize(
    ("like", "why"),
    [
        ({"a": np.zeros((2, 3)), "b": np.zeros(1), "c": np.zeros(1)}, "missing array 'c'"),
        ({"a": np.zeros((2, 3))}, "unexpected array 'b'"),
        (
            {"a": np.zeros((3, 2)), "b": np.zeros(2)},
            "array 'a': expected float64[3, 2], got float64[2, 3]",
        ),
        (
            {"a": np.zeros((2, 3)), "b": np.zeros(1, np.float32)},
            "array 'b': expected float32[1], got float64[1]",
        ),
    ],
)
def test_first_difference_to_another_tree_is_reported(path, like, why):
    save_weights(path, {"a": np.zeros((2, 3)), "b": np.zeros(1)})
    assert load_error(path, like) == why


def test_missing_file_is_rejected(path):
    assert load_error(path, state()) == "does not exist"


def test_file_truncated_at_any_byte_is_rejected(path):
    save_weights(path, {"a": np.arange(3.0), "b": np.array(True)})
    content, like = path.read_bytes(), {"a": np.zeros(3), "b": np.array(False)}
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert load_error(path, like) == "damaged or not an npz file"


def test_changed_byte_is_rejected_or_harmless(path):
    saved = {"a": np.arange(3.0), "b": np.array(True)}
    save_weights(path, saved)
    content, like = path.read_bytes(), jax.tree.map(np.zeros_like, saved)
    rejected = 0
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= (0x01, 0x80, 0xFF)[place % 3]
        path.write_bytes(changed)
        try:
            loaded = load_weights(path, like)
        except UserError:
            rejected += 1
        else:
            chex.assert_trees_all_equal(loaded, saved)
    assert rejected > len(content) / 3


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.filterwarnings("default")
def test_hostile_array_is_rejected_and_never_executed(path, content, monkeypatch):
    monkeypatch.chdir(path.parent)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", content)
    load_error(path, {"a": np.zeros(3)})
    assert os.listdir(path.parent) == ["weights.npz"]


def test_hostile_file_is_rejected_and_never_executed(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    path.write_bytes(pickle.dumps(Bomb()))
    load_error(path, {"a": np.zeros(3)})
    assert os.listdir(path.parent) == ["weights.npz"]


def test_no_more_is_decompressed_than_needed(path, monkeypatch):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy(np.zeros(3)) + bytes(10_000_000))
    most = []
    read = zipfile.ZipExtFile.read

    def watched(self, n=-1):
        data = read(self, n)
        most.append(len(data))
        return data

    monkeypatch.setattr(zipfile.ZipExtFile, "read", watched)
    assert load_error(path, {"a": np.zeros(3)}) == "damaged or not an npz file"
    assert max(most) < 1000


def test_folder_is_rejected(tmp_path):
    assert load_error(tmp_path, {"a": np.zeros(3)}) == "damaged or not an npz file"
