import os
from typing import NamedTuple

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refused_weights import refusal_of

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


def test_arrays_are_called_by_their_place_and_numpy_can_read_them(path):
    save_weights(path, state())
    with np.load(path, allow_pickle=False) as archive:
        assert archive.files == NAMES
        np.testing.assert_array_equal(
            archive["actor/l1/kernel"], [[0, 1, 2], [3, 4, 5]]
        )
        assert archive["statistics"].dtype == np.float64


def test_a_tree_comes_back_bit_for_bit(path):
    saved = state(offset=5)
    save_weights(path, saved)
    loaded = load_weights(path, like=state())
    chex.assert_trees_all_equal(loaded, saved, strict=True)
    chex.assert_trees_all_equal_dtypes(loaded, saved)
    assert loaded.actor.l1.gain == 2.0


def test_numpy_stays_numpy_and_may_be_written_to(path):
    save_weights(path, state())
    loaded = load_weights(path, like=state())
    assert isinstance(loaded.statistics, np.ndarray)
    assert isinstance(loaded.actor.l1.kernel, jax.Array)
    loaded.statistics[0] = 1


def test_a_description_of_the_tree_is_enough_to_load_it(path):
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
def test_any_tree_of_arrays_comes_back(tmp_path_factory, shapes, seed):
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


def test_arrays_that_numpy_saved_by_column_are_read(path):
    kernel = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.savez_compressed(path, kernel=kernel)
    loaded = load_weights(path, {"kernel": np.zeros((2, 3))})
    np.testing.assert_array_equal(loaded["kernel"], [[0, 1, 2], [3, 4, 5]])


def test_a_failure_leaves_the_old_file(path, monkeypatch):
    save_weights(path, state())
    monkeypatch.setattr("os.fsync", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_weights(path, state(1))
    chex.assert_trees_all_equal(load_weights(path, state()), state())
    assert os.listdir(path.parent) == ["weights.npz"]


def test_two_arrays_of_one_name_cannot_be_saved(path):
    with pytest.raises(ValueError, match="the name 'a/b'"):
        save_weights(path, {"a": {"b": np.zeros(1)}, "a/b": np.zeros(1)})
    assert not path.exists()


@pytest.mark.parametrize("leaf", [np.array([object()]), jnp.zeros(2, jnp.bfloat16)])
def test_what_npz_cannot_hold_cannot_be_saved(path, leaf):
    with pytest.raises(TypeError, match="a: cannot save dtype"):
        save_weights(path, {"a": leaf})
    assert not path.exists()


@pytest.mark.parametrize(
    ("like", "why"),
    [
        (
            {"a": np.zeros((2, 3)), "b": np.zeros(1), "c": np.zeros(1)},
            "missing array 'c'",
        ),
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
def test_another_tree_is_refused_by_its_first_difference(path, like, why):
    save_weights(path, {"a": np.zeros((2, 3)), "b": np.zeros(1)})
    assert refusal_of(path, like) == why


def test_a_missing_file_is_refused(path):
    assert refusal_of(path, state()) == "does not exist"


def test_a_file_torn_at_any_byte_is_refused(path):
    save_weights(path, {"a": np.arange(3.0), "b": np.array(True)})
    whole, like = path.read_bytes(), {"a": np.zeros(3), "b": np.array(False)}
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert refusal_of(path, like) == "damaged or not an npz file"


def test_a_file_with_any_byte_changed_is_right_or_refused(path):
    saved = {"a": np.arange(3.0), "b": np.array(True)}
    save_weights(path, saved)
    whole, like = path.read_bytes(), jax.tree.map(np.zeros_like, saved)
    refused = 0
    for place in range(len(whole)):
        for change in (0x01, 0x80, 0xFF):
            path.write_bytes(
                whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :]
            )
            try:
                loaded = load_weights(path, like)
            except UserError:
                refused += 1
            else:
                chex.assert_trees_all_equal(loaded, saved)
    assert refused > len(whole)
