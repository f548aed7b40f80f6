"""Learning curves as a picture."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from r2r2.config.errors import UserError
from r2r2.storage.evaluations import Row
from r2r2.storage.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = "return"
DPI = 150
MOST_INSIDE = 5  # longer legends would cover the data
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7a5195",
    "#8c564b",
    "#5f6b6d",
    "#b2182b",
    "#9a9a00",
)

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Curve(NamedTuple):
    """The evaluations of one task: a line per seed, and what they have in common."""

    name: str
    seeds: tuple[tuple[Floats, Floats], ...]  # steps and returns, by step
    steps: Floats  # of any seed, as far as every seed has come
    returns: Floats  # [seeds, steps], straight lines between a seed's points


def curves_of(rows: Sequence[Row]) -> list[Curve]:
    """The returns among evaluations, in the order in which tasks first appear.

    Seeds need not have been evaluated at the same steps: between its points a seed is
    a straight line. They are compared from the last first point to the first last one,
    so that the mean never jumps because a seed begins or ends.
    """
    points: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
    for row in rows:
        if row.metric == METRIC:
            task = points.setdefault((row.exp_name, row.env_name), {})
            task.setdefault(row.seed, {})[row.env_step] = row.value
    several = len({exp_name for exp_name, _ in points}) > 1
    return [
        _curve(f"{env_name}, {exp_name}" if several else env_name, by_seed)
        for (exp_name, env_name), by_seed in points.items()
    ]


def compared(seeds: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Seeds' steps and values where all of them are: steps [n], values [seeds, n].

    Example:
        >>> one = np.array([0.0, 10.0]), np.array([0.0, 1.0])
        >>> other = np.array([5.0, 15.0]), np.array([2.0, 3.0])
        >>> steps, values = compared([one, other])
        >>> steps, values
        (array([ 5., 10.]), array([[0.5, 1. ],
               [2. , 2.5]]))
    """
    begin = max(steps[0] for steps, _ in seeds)
    end = min(steps[-1] for steps, _ in seeds)
    every = np.unique(np.concatenate([steps for steps, _ in seeds]))
    shared = every[(every >= begin) & (every <= end)]
    between = [np.interp(shared, steps, values) for steps, values in seeds]
    return shared, np.stack(between)


def draw_curve(
    rows: Sequence[Row],
    path: Path,
    title: str,
    reference: Mapping[str, float] | None = None,
) -> None:
    """Draws the returns among evaluations against environment steps, as a PNG file.

    A task has one colour: a thin line per seed, a bold one for their mean and a band
    from their minimum to their maximum. The file is written whole.

    Args:
        rows: Evaluations; those of other metrics than "return" are left out.
        path: The picture.
        title: Its title.
        reference: Returns to compare with, such as a random policy's, by name.

    Raises:
        UserError: There is no return among the rows.
    """
    curves = curves_of(rows)
    if not curves:
        raise UserError(
            f"there is nothing to draw: no evaluation of '{METRIC}' is there"
        )
    # Drawing is the last thing a run does: training need not wait for this import.
    import matplotlib
    from matplotlib.figure import Figure

    content = io.BytesIO()
    with untyped(matplotlib).rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        _draw(figure, curves, title, reference or {})
        untyped(figure).savefig(content, format="png", dpi=DPI)
    atomic_write(path, content.getvalue())


def _curve(name: str, by_seed: Mapping[int, Mapping[int, float]]) -> Curve:
    seeds: list[tuple[Floats, Floats]] = []
    for _, points in sorted(by_seed.items()):
        table = np.array(sorted(points.items()), dtype=np.float64)
        seeds.append((table[:, 0], table[:, 1]))
    return Curve(name, tuple(seeds), *compared(seeds))


def _draw(
    figure: "Figure",
    curves: Sequence[Curve],
    title: str,
    reference: Mapping[str, float],
) -> None:
    axes = untyped(figure).add_subplot()
    for number, curve in enumerate(curves):
        _draw_task(axes, curve, COLOURS[number % len(COLOURS)])
    for number, (name, value) in enumerate(reference.items()):
        dashes = (0, (6 - number % 3 * 2, 2))
        axes.axhline(value, color="#444444", lw=1.1, ls=dashes, label=name)
        # Left alone, a line just inside the frame stays there, where it is not seen.
        axes.autoscale_view()
    _dress(axes, title)
    _explain(figure, axes, curves)


def _draw_task(axes: Any, curve: Curve, colour: str) -> None:
    count = len(curve.seeds)
    label = f"{curve.name} ({count} seed{'s' if count > 1 else ''})"
    if count > 1:
        for steps, values in curve.seeds:
            dot = "." if len(steps) == 1 else ""
            axes.plot(steps, values, color=colour, lw=0.7, alpha=0.45, marker=dot)
        low, high = curve.returns.min(axis=0), curve.returns.max(axis=0)
        axes.fill_between(curve.steps, low, high, color=colour, alpha=0.14, lw=0)
    mean = curve.returns.mean(axis=0)
    dot = "o" if len(curve.steps) <= 1 else ""
    axes.plot(curve.steps, mean, color=colour, lw=2.2, marker=dot, label=label)


def dress(axes: Any, title: str, size: float) -> None:
    """Gives axes a title and the look that all of this package's pictures have."""
    axes.set_title(title, loc="left", fontsize=size)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)


def _dress(axes: Any, title: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    dress(axes, title, 12)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return of an episode")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_thousands))


def _thousands(value: float, position: int | None) -> str:
    return f"{value:,.10g}"


def _explain(figure: "Figure", axes: Any, curves: Sequence[Curve]) -> None:
    """Adds the legend: beside the data where it is long, else within."""
    handles, labels = axes.get_legend_handles_labels()
    if any(len(curve.seeds) > 1 for curve in curves):
        handles += _key()
        labels += ["mean over seeds", "one seed", "min to max over seeds"]
    if len(labels) > MOST_INSIDE + 3:
        place: dict[str, object] = {"loc": "outside right upper", "frameon": False}
        untyped(figure).legend(handles, labels, fontsize=9, **place)
    else:
        axes.legend(handles, labels, fontsize=9, framealpha=0.85, edgecolor="none")


def _key() -> list[object]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    grey = "#666666"
    bold = Line2D([], [], color=grey, lw=2.2)
    thin = Line2D([], [], color=grey, lw=0.7, alpha=0.6)
    return [bold, thin, Patch(color=grey, alpha=0.14, lw=0)]


def untyped(artist: object) -> Any:
    """Part of matplotlib, whose keyword arguments carry no types."""
    return cast("Any", artist)
