"""Studies of a few numbers, made without any folder."""

from r2r2.report.study import RunData, study_of
from r2r2.stats.scores import Method, Results
from r2r2.storage.evaluations import Row


def run(method, scores, points=1, step=1000, status="finished", **known):
    """A run whose seeds have these scores on tasks, by task; all points are equal."""
    rows = [
        Row("x", task, seed, "return", number * step, value)
        for task, values in scores.items()
        for seed, value in enumerate(values)
        for number in range(1, points + 1)
    ]
    return RunData(str(method), "runs/x", status, Results(method, rows), **known)


def study(*runs):
    return study_of(runs)


def whole(method, scores, **known):
    """A run with the paper's points and steps on Gymnasium's tasks."""
    return run(method, scores, points=50, step=10_000, **known)


def column(table, name):
    """A column of a table."""
    place = table.header.index(name)
    return [row[place] for row in table.rows]


def texts(table):
    return [[entry.text for entry in row] for row in table.rows]


__all__ = ["Method", "column", "run", "study", "texts", "whole"]
