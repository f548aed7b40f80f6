"""Scores come in whole, or are refused in a sentence."""

import numpy as np
import pytest

from r2r2.config.errors import UserError
from r2r2.stats.samples import from_rliable, sample_of, to_rliable


def test_an_array_is_runs_by_tasks():
    sample = sample_of(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert sample.tasks == ("0", "1")
    assert sample.counts == (3, 3)
    np.testing.assert_array_equal(sample.part(1), [2, 4, 6])


def test_weights_are_the_same_for_every_task():
    weights = sample_of({"a": [1.0, 2.0, 3.0], "b": [1.0]}).weights
    np.testing.assert_allclose(weights, [1 / 6, 1 / 6, 1 / 6, 1 / 2])


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ({}, "scores are of no task"),
        ({"a": [1.0], "b": []}, "scores of 'b' have shape (0,)"),
        ({"a": [[1.0]]}, "scores of 'a' have shape (1, 1)"),
        ({"a": [1.0, float("nan")]}, "scores of 'a' hold nan"),
        ([[1.0, float("inf")]], "scores of '1' hold inf"),
        ([1.0, 2.0], "scores have shape (2,); allowed is [runs, tasks]"),
        (np.empty((0, 3)), "scores of '0' have shape (0,)"),
    ],
)
def test_what_is_missing_or_not_a_number_is_refused(scores, said):
    with pytest.raises(UserError) as refusal:
        sample_of(scores)
    assert said in str(refusal.value)


def test_rliables_shape_goes_there_and_back():
    scores = {
        "td7": {"a": np.array([1.0, 2.0, 3.0]), "b": np.array([4.0, 5.0, 6.0])},
        "other": {"b": np.array([9.0]), "a": np.array([8.0])},
    }
    arrays = to_rliable(scores)
    np.testing.assert_array_equal(arrays["td7"], [[1, 4], [2, 5], [3, 6]])
    # In the first one's order of tasks.
    np.testing.assert_array_equal(arrays["other"], [[8, 9]])
    back = from_rliable(arrays, ["a", "b"])
    for algorithm, by_task in scores.items():
        for task, expected in by_task.items():
            np.testing.assert_array_equal(back[algorithm][task], expected)


def test_rliables_shape_has_no_room_for_uneven_runs():
    with pytest.raises(UserError, match=r"'td7' are uneven.*\{'a': 2, 'b': 1\}"):
        to_rliable({"td7": {"a": [1.0, 2.0], "b": [1.0]}})


def test_rliables_shape_needs_the_same_tasks_of_all():
    with pytest.raises(UserError, match="scores of other lack b;"):
        to_rliable({"td7": {"a": [1.0], "b": [1.0]}, "other": {"a": [1.0]}})
    with pytest.raises(UserError, match=r"'td7' have 2 columns.* 3 tasks"):
        from_rliable({"td7": [[1.0, 2.0]]}, ["a", "b", "c"])


def test_a_gap_in_rliables_shape_is_refused():
    with pytest.raises(UserError, match="hold nan"):
        from_rliable({"td7": [[1.0, 2.0], [float("nan"), 3.0]]}, ["a", "b"])
