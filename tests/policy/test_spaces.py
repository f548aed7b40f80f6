"""Observations are flattened in a fixed, recorded order, and actions scaled to their bounds."""

import copy
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2r2.policy import policy
from r2r2.policy.spaces import (
    ObservationPart,
    TaskSpaces,
    flatten_observation,
    scale_action,
    spaces_from_json,
    spaces_to_json,
)

LAYOUT = (
    ObservationPart(("arm", 0), (2,)),
    ObservationPart(("arm", 1), ()),
    ObservationPart(("camera", "depth"), (2, 3)),
)
OBSERVATION = {
    "camera": {"depth": np.arange(6, dtype=np.int16).reshape(2, 3)},
    "arm": (np.array([7.5, 8.5], np.float32), 9),
    "unused": "text",
}
FLAT = [7.5, 8.5, 9, 0, 1, 2, 3, 4, 5]


def test_parts_are_in_the_order_of_the_layout_and_numbers_in_c_order():
    flat = flatten_observation(LAYOUT, OBSERVATION)
    assert flat.dtype == np.float64
    assert flat.tolist() == FLAT
    depth = np.asfortranarray(OBSERVATION["camera"]["depth"])
    assert flatten_observation(LAYOUT, OBSERVATION | {"camera": {"depth": depth}}).tolist() == FLAT


def test_float64_numbers_stay_exact_and_the_observation_is_not_a_view():
    obs = np.array([1 / 3, 1e-300, 2**53 - 1])
    flat = flatten_observation((ObservationPart((), (3,)),), obs)
    np.testing.assert_array_equal(flat, obs)
    obs[:] = 0
    assert flat[0] == 1 / 3


def test_batches_have_a_further_first_axis():
    batch = {
        "arm": [np.stack([OBSERVATION["arm"][0]] * 4), np.full(4, 9)],
        "camera": {"depth": np.stack([OBSERVATION["camera"]["depth"]] * 4)},
    }
    flat = flatten_observation(LAYOUT, batch, batch=True)
    np.testing.assert_array_equal(flat, [FLAT] * 4)
    batch["arm"][1] = np.full(3, 9)
    with pytest.raises(ValueError, match=r"equal length, got observation\['arm'\]\[0\] 4, "):
        flatten_observation(LAYOUT, batch, batch=True)
    batch["arm"][1] = np.array(9)
    with pytest.raises(ValueError, match=r"\['arm'\]\[1\]: expected shape \(batch, \), got \(\)"):
        flatten_observation(LAYOUT, batch, batch=True)


ARM, DEPTH = "observation['arm']", "observation['camera']['depth']"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"camera": {}}, "observation['camera']: expected a key 'depth', got the keys []"),
        ({"camera": np.zeros(3)}, "observation['camera']: expected a dict, got an array of shape"),
        ({"camera": {"depth": np.zeros(6)}}, f"{DEPTH}: expected shape (2, 3), got (6,)"),
        ({"camera": {"depth": "far"}}, f"{DEPTH}: expected an array of numbers, got a str"),
        ({"camera": {"depth": [[1], [2, 3]]}}, f"{DEPTH}: expected an array of numbers, got a lis"),
        ({"camera": {"depth": None}}, f"{DEPTH}: expected an array of numbers, got a NoneType"),
        ({"arm": (np.zeros(2),)}, f"{ARM}: expected at least 2 entries, got 1"),
        ({"arm": np.zeros((2, 2))}, f"{ARM}: expected a tuple, got an array of shape (2, 2)"),
        ({"arm": (np.zeros(2), np.zeros(1))}, f"{ARM}[1]: expected shape (), got (1,)"),
    ],
)
def test_error_names_the_part(changes, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        flatten_observation(LAYOUT, OBSERVATION | changes)
    assert str(error.value).startswith(message)


BOUNDS = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2, unique=True).map(sorted)


@given(BOUNDS, st.floats(-1, 1), st.sampled_from(["float32", "float64"]))
def test_actions_reach_their_bounds_exactly_and_never_leave_them(bounds, unit, dtype):
    low, high = (np.array([x]).astype(dtype).astype(np.float64) for x in bounds)
    spaces = TaskSpaces((), low, high, dtype)
    scaled = [scale_action(spaces, np.array([x])) for x in (-1.0, unit, 1.0)]
    assert all(x.dtype == dtype and x.shape == (1,) for x in scaled)
    assert scaled[0] == low
    assert low <= scaled[1] <= high
    assert scaled[2] == high


def test_unit_bounds_change_no_bit():
    action = np.random.default_rng(0).uniform(-1, 1, 1000) ** 9
    spaces = TaskSpaces((), -np.ones(1000), np.ones(1000), "float64")
    np.testing.assert_array_equal(scale_action(spaces, action), action)


def test_actions_get_the_shape_of_the_environment():
    spaces = TaskSpaces((), np.zeros(6), np.arange(1.0, 7.0), "float32", (2, 3))
    one = scale_action(spaces, np.zeros(6))
    np.testing.assert_array_equal(one, [[0.5, 1, 1.5], [2, 2.5, 3]])
    assert one.dtype == np.float32
    several = scale_action(spaces, np.stack([np.zeros(6), np.ones(6)]))
    np.testing.assert_array_equal(several, [one, [[1, 2, 3], [4, 5, 6]]])


SPACES = TaskSpaces(LAYOUT, np.array([-1 / 3, 0]), np.array([1e-7, 1]), "float64", (2, 1))


def test_json_restores_spaces_exactly():
    restored = spaces_from_json(json.loads(json.dumps(spaces_to_json(SPACES))))
    assert restored.observation == SPACES.observation
    np.testing.assert_array_equal(restored.action_low, SPACES.action_low)
    np.testing.assert_array_equal(restored.action_high, SPACES.action_high)
    assert restored[3:] == SPACES[3:]
    flat = SPACES._replace(action_shape=None)
    assert spaces_from_json(spaces_to_json(flat)).action_shape == (2,)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((), None, "spaces: expected an object with observation, action, got None"),
        (("more",), 1, "spaces: expected an object with"),
        (("observation",), [], "observation: expected a list of parts, got []"),
        (("observation", 1), {"path": []}, "observation 1: expected an object with path, shape"),
        (("observation", 1, "path"), "ab", "observation 1: path: expected a list of keys"),
        (("observation", 1, "path"), [True], "observation 1: path: expected a list of keys"),
        (("observation", 1, "path"), [-1], "observation 1: path: expected a list of keys"),
        (
            ("observation", 1, "path"),
            ["arm", 0],
            f"observation: expected separate parts, got {ARM}",
        ),
        (("observation", 1, "path"), ["arm"], f"observation: expected separate parts, got {ARM}"),
        (("observation", 2, "shape"), [2, 0], "observation 2: shape: expected a list of positive"),
        (("observation", 2, "shape"), [2.0], "observation 2: shape: expected a list of positive"),
        (("action", "low"), [0, float("nan")], "action.low: expected a list of finite numbers"),
        (("action", "high"), [10**400, 1], "action.high: expected a list of finite numbers"),
        (("action", "high"), "11", "action.high: expected a list of finite numbers, got '11'"),
        (("action", "low"), [2, 0], "action: expected low < high everywhere"),
        (("action", "low"), [0], "action: expected 2 bounds for shape (2, 1), got 1 low and 2"),
        (("action", "dtype"), "int64", "action.dtype: expected one of float16, float32, float64"),
        (("action", "dtype"), [], "action.dtype: expected one of float16"),
    ],
)
def test_invalid_record_is_an_error_that_names_the_entry(path, value, message):
    record = {"root": spaces_to_json(SPACES)}
    place = record
    *parents, last = ("root", *path)
    for key in parents:
        place = place[key]
    place[last] = value
    with pytest.raises(ValueError) as error:  # noqa: PT011
        spaces_from_json(copy.deepcopy(record["root"]))
    assert str(error.value).startswith(message)


def test_names_are_also_those_of_the_policy_module():
    assert policy.TaskSpaces is TaskSpaces
    assert policy.ObservationPart is ObservationPart
