"""Conversion of scores, and errors for invalid ones."""

import numpy as np
import pytest

from r2r2.config.errors import UserError
from r2r2.stats.samples import as_sample, from_rliable, to_rliable


def test_array_is_runs_by_tasks():
    sample = as_sample(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert sample.tasks == ("0", "1")
    assert sample.counts == (3, 3)
    np.testing.assert_array_equal(sample.task_scores(1), [2, 4, 6])


def test_tasks_have_equal_weights():
    weights = as_sample({"a": [1.0, 2.0, 3.0], "b": [1.0]}).weights
    np.testing.assert_allclose(weights, [1 / 6, 1 / 6, 1 / 6, 1 / 2])


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({}, "scores: expected at least one task"),
        ({"a": [1.0], "b": []}, "scores of 'b': expected a row of at least one score, got"),
        ({"a": [[1.0]]}, "got shape (1, 1)"),
        ({"a": [1.0, float("nan")]}, "scores of 'a': expected finite numbers, got nan"),
        ([[1.0, float("inf")]], "scores of '1': expected finite numbers, got inf"),
        ([1.0, 2.0], "scores: expected shape (runs, tasks), got shape (2,)"),
        (np.empty((0, 3)), "scores of '0': expected a row"),
    ],
)
def test_invalid_scores_are_rejected(scores, message):
    with pytest.raises(UserError) as error:
        as_sample(scores)
    assert message in str(error.value)


def test_rliable_round_trip():
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


def test_uneven_runs_cannot_be_converted_to_rliable():
    with pytest.raises(UserError, match=r"'td7': expected the same.*\{'a': 2, 'b': 1\}"):
        to_rliable({"td7": {"a": [1.0, 2.0], "b": [1.0]}})


def test_rliable_needs_the_same_tasks_for_all_algorithms():
    with pytest.raises(UserError, match="other: expected the same tasks, got missing b"):
        to_rliable({"td7": {"a": [1.0], "b": [1.0]}, "other": {"a": [1.0]}})
    with pytest.raises(UserError, match=r"'td7': expected one column.* 3 tasks, got 2"):
        from_rliable({"td7": [[1.0, 2.0]]}, ["a", "b", "c"])


def test_nan_from_rliable_is_rejected():
    with pytest.raises(UserError, match="got nan"):
        from_rliable({"td7": [[1.0, 2.0], [float("nan"), 3.0]]}, ["a", "b"])
