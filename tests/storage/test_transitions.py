"""Files and datasets of transitions: what is read, and what is refused with which sentence."""

import contextlib
import hashlib
import io
import sys
import warnings
import zipfile

import gymnasium
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from r2r2 import UserError, save_transitions
from r2r2.storage.transitions import (
    Transitions,
    TransitionSizes,
    check_for_task,
    read_transitions,
    resolve_source,
    source_digest,
)

N, OBS = 12, 3
SIZES = TransitionSizes(OBS, np.array([-2.0, 0.0]), np.array([2.0, 1.0]), least=8)


def arrays(**changes):
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(N + 1, OBS))
    content = {
        "observations": obs[:-1],
        "actions": rng.uniform([-2, 0], [2, 1], (N, 2)),
        "rewards": rng.normal(size=N),
        "next_observations": obs[1:],
        "terminations": np.arange(N) == 5,
        "truncations": np.arange(N) == N - 1,
    }
    content |= changes
    return {name: x for name, x in content.items() if x is not None}


def with_value(name, value, place=(2, 1)):
    array = arrays()[name].copy()
    array[place[: array.ndim]] = value
    return {name: array}


def test_saved_transitions_are_read_back(tmp_path):
    path = tmp_path / "data.npz"
    save_transitions(path, **arrays())
    data = read_transitions(str(path))
    for name, array in arrays().items():
        np.testing.assert_array_equal(getattr(data, name), array)
    check_for_task(str(path), data, SIZES)
    assert source_digest(str(path)) == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_files_of_numpy_with_other_names_types_and_arrays_are_read(tmp_path, save):
    content = arrays(truncations=None, rewards=np.arange(N), infos=np.zeros(3))
    content["terminals"] = content.pop("terminations").astype(np.uint8)
    content["observations"] = content["observations"].astype(np.float32)
    save(tmp_path / "data.npz", **content)
    data = read_transitions(str(tmp_path / "data.npz"))
    assert data.terminations.dtype == bool
    np.testing.assert_array_equal(data.terminations, arrays()["terminations"])
    assert not data.truncations.any()


BAD = {
    "missing": ({"rewards": None}, "no array 'rewards'; expected observations, actions, rewards, "),
    "two names": (
        {"terminals": np.zeros(N, bool)},
        "expected one of the arrays terminals and terminations, got both",
    ),
    "scalar": ({"rewards": np.zeros(())}, "array 'observations': expected shape [N, obs], N > 0"),
    "empty": (
        {name: x[:0] for name, x in arrays().items()},
        "array 'observations': expected shape [N, obs], N > 0 as for rewards, got shape [0, 3]",
    ),
    "column": (
        {"rewards": np.zeros((N, 1))},
        "array 'rewards': expected shape [N], N > 0 as for rewards, got shape [12, 1]",
    ),
    "shorter": (
        {"actions": np.zeros((N - 1, 2))},
        "array 'actions': expected shape [N, action], N > 0 as for rewards, got shape [11, 2]",
    ),
    "other width": (
        {"next_observations": np.zeros((N, 4))},
        "array 'next_observations': expected shape [12, 3], as for observations, got shape [12, 4]",
    ),
    "flags of floats": (
        {"terminations": np.zeros(N)},
        "array 'terminations': expected booleans, got float64",
    ),
    "flags of counts": (
        {"truncations": np.arange(N)},
        "array 'truncations': expected booleans, got 11 and others",
    ),
    "rewards of flags": (
        {"rewards": np.zeros(N, bool)},
        "array 'rewards': expected numbers, got bool",
    ),
    "nan": (
        with_value("observations", np.nan),
        "array 'observations': expected finite numbers of single precision, got nan at [2, 1]",
    ),
    "inf": (
        with_value("rewards", -np.inf),
        "array 'rewards': expected finite numbers of single precision, got -inf at [2]",
    ),
    "too large": (
        with_value("next_observations", 1e39),
        "array 'next_observations': expected finite numbers of single precision, "
        "got 1e+39 at [2, 1]",
    ),
}


@pytest.mark.parametrize(("changes", "sentence"), BAD.values(), ids=BAD)
def test_invalid_arrays_are_named(tmp_path, changes, sentence):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays(**changes))
    with pytest.raises(UserError) as error:
        read_transitions(str(path))
    assert str(error.value).startswith(f"{path}: {sentence}")
    written = tmp_path / "other.npz"
    if "terminals" not in changes:
        with pytest.raises(UserError) as error:
            save_transitions(written, **arrays(**changes))
        assert str(error.value).startswith(f"{written}: {sentence}")
    assert not written.exists()


def test_unknown_array_is_not_saved(tmp_path):
    with pytest.raises(UserError, match="unknown array 'reward'; did you mean 'rewards'"):
        save_transitions(tmp_path / "x.npz", **arrays(rewards=None), reward=np.zeros(N))
    with pytest.raises(UserError, match="cannot write: No such file or directory"):
        save_transitions(tmp_path / "no" / "x.npz", **arrays())


TASK = {
    "obs": (
        {"observations": np.zeros((N, 4)), "next_observations": np.zeros((N, 4))},
        "array 'observations': expected shape [12, 3], got shape [12, 4]",
    ),
    "action": (
        {"actions": np.zeros((N, 1))},
        "array 'actions': expected shape [12, 2], got shape [12, 1]",
    ),
    "high": (
        with_value("actions", 1.001),
        "array 'actions': expected values from 0 to 1, the range of the task, got 1.001 at [2, 1]",
    ),
    "low": (with_value("actions", -2.5, (3, 0)), "array 'actions': expected values from -2 to 2"),
    "few": (
        {name: x[:7] for name, x in arrays().items()},
        "expected at least 8 transitions, those of one batch, got 7",
    ),
}


@pytest.mark.parametrize(("changes", "sentence"), TASK.values(), ids=TASK)
def test_transitions_of_another_task_are_refused(changes, sentence):
    content = Transitions(**arrays(**changes))
    with pytest.raises(UserError) as error:
        check_for_task("x.npz", content, SIZES)
    assert str(error.value).startswith(f"x.npz: {sentence}")


def test_rounding_errors_of_actions_are_allowed():
    check_for_task("x.npz", Transitions(**arrays(**with_value("actions", 1.00005))), SIZES)


class Marked:
    """Leaves a trace when it is unpickled."""

    def __reduce__(self):
        return exec, ("import sys; sys.unpickled = True",)


def test_pickled_objects_are_refused_and_not_loaded(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays(rewards=np.array([Marked()] * N)))
    with pytest.raises(UserError, match=r"array 'rewards': expected numbers, got dtype object"):
        read_transitions(str(path))
    assert not hasattr(sys, "unpickled")


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_damaged_files_are_refused_or_read(tmp_path_factory, place, change):
    path = tmp_path_factory.mktemp("damaged") / "data.npz"
    save_transitions(path, **arrays())
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= change
    path.write_bytes(content)
    with contextlib.suppress(UserError):  # any other error fails the test
        read_transitions(str(path))


def test_files_that_are_not_npz_are_refused(tmp_path):
    for content in (b"", b"text", zipped("x.txt", b"hello")):
        path = tmp_path / "data.npz"
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"data.npz: (damaged or not|no array)"):
            read_transitions(str(path))
    for call in (read_transitions, source_digest):
        with pytest.raises(UserError, match=r"missing.npz: does not exist"):
            call(str(tmp_path / "missing.npz"))


def zipped(name, content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def test_sources_do_not_depend_on_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "real.npz").write_bytes(b"")
    (tmp_path / "link.npz").symlink_to("real.npz")
    monkeypatch.chdir(tmp_path)
    assert resolve_source("link.npz") == str(tmp_path / "real.npz")
    assert resolve_source("minari:a/b-v0") == "minari:a/b-v0"


# Minari


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A dataset of two episodes: one ends, and the recording of the other one stopped."""
    minari = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer

    content = arrays()
    last = content["next_observations"][[5, N - 1]]
    parts = [(slice(0, 6), last[:1]), (slice(6, N), last[1:])]
    episodes = [
        EpisodeBuffer(
            id=number,
            observations=list(np.concatenate([content["observations"][part], end])),
            actions=list(content["actions"][part]),
            rewards=content["rewards"][part].tolist(),
            terminations=content["terminations"][part].tolist(),
            truncations=[False] * 6,
        )
        for number, (part, end) in enumerate(parts)
    ]
    root = tmp_path_factory.mktemp("minari")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        warnings.simplefilter("ignore")  # there is no author, code or environment
        minari.create_dataset_from_buffers(
            "toy/test-v0",
            episodes,
            observation_space=gymnasium.spaces.Box(-9, 9, (OBS,), np.float64),
            action_space=gymnasium.spaces.Box(-2, 2, (2,), np.float64),
        )
    return root


def test_minari_dataset_is_read_by_name_and_by_path(dataset, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(dataset))
    folder = dataset / "toy" / "test-v0"
    sources = "minari:toy/test-v0", str(folder), str(folder / "data")
    for source in sources:
        data = read_transitions(source)
        for name, array in arrays().items():
            np.testing.assert_array_equal(getattr(data, name), array, err_msg=name)
    digests = {source_digest(source) for source in sources}
    assert len(digests) == 1
    (folder / "data" / "metadata.json").touch()
    assert source_digest(sources[1]) in digests


def test_minari_datasets_that_are_missing_are_refused(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(dataset))
    for source in ("minari:toy/other-v0", str(tmp_path)):
        with pytest.raises(UserError, match="not a Minari dataset that can be read"):
            read_transitions(source)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(UserError, match=r"not installed; pip install 'r2r2\[minari\]'"):
        source_digest("minari:toy/test-v0")
