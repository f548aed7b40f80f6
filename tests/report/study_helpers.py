"""Small studies made in memory, and access to their tables."""

from r2r2.report.study import RunData, make_study
from r2r2.stats.scores import Method, Override, Results
from r2r2.storage.evaluations import Row


def run(method, scores, points=1, step=1000, status="finished", **fields):
    """Return a run whose seeds have these scores by task; all points are equal."""
    rows = [
        Row("x", task, seed, "return", number * step, value)
        for task, values in scores.items()
        for seed, value in enumerate(values)
        for number in range(1, points + 1)
    ]
    return RunData(str(method), "runs/x", status, Results(method, rows), **fields)


def study(*runs):
    return make_study(runs)


def full_run(method, scores, **fields):
    """Return a run with the paper's points and steps on Gymnasium tasks."""
    return run(method, scores, points=50, step=10_000, **fields)


def column(table, name):
    """Return the entries of a column of a table."""
    index = table.header.index(name)
    return [row[index] for row in table.rows]


def texts(table):
    return [[entry.text for entry in row] for row in table.rows]


__all__ = ["Method", "Override", "column", "full_run", "run", "study", "texts"]
