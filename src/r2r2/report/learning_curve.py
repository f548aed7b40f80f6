"""The learning curves of a run as a picture."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from r2r2.config.errors import UserError
from r2r2.report.charts import COLORS
from r2r2.stats.samples import Floats
from r2r2.storage.evaluations import Row
from r2r2.storage.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = "return"
DPI = 150
MAX_INNER_LEGEND = 5  # entries; a longer legend would cover the data


class Curve(NamedTuple):
    """The evaluations of one task: a line per seed, and values at common steps."""

    name: str
    seeds: tuple[tuple[Floats, Floats], ...]  # steps and returns, by step
    steps: Floats  # of any seed, in the range that all seeds cover
    returns: Floats  # [seeds, steps], interpolated linearly


def learning_curves(rows: Sequence[Row]) -> list[Curve]:
    """Return the returns among evaluations, in the order in which tasks first appear.

    Seeds may be evaluated at different steps: they are interpolated linearly between
    their points, and only in the range that all seeds cover, so that the mean does not
    jump where a seed begins or ends.
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


def align_seeds(seeds: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Interpolate seeds to common steps: return steps [n] and values [seeds, n].

    Example:
        >>> one = np.array([0.0, 10.0]), np.array([0.0, 1.0])
        >>> other = np.array([5.0, 15.0]), np.array([2.0, 3.0])
        >>> align_seeds([one, other])
        (array([ 5., 10.]), array([[0.5, 1. ],
               [2. , 2.5]]))
    """
    begin = max(steps[0] for steps, _ in seeds)
    end = min(steps[-1] for steps, _ in seeds)
    all_steps = np.unique(np.concatenate([steps for steps, _ in seeds]))
    common = all_steps[(all_steps >= begin) & (all_steps <= end)]
    return common, np.stack([np.interp(common, *seed) for seed in seeds])


def draw_curve(
    rows: Sequence[Row],
    path: Path,
    title: str,
    reference: Mapping[str, float] | None = None,
) -> None:
    """Draw the returns among evaluations against environment steps, as a PNG file.

    Each task has one color: a thin line per seed, a bold line for their mean and a band
    from their minimum to their maximum. The file is written atomically.

    Args:
        rows: Evaluations; metrics other than "return" are ignored.
        path: The file to write.
        title: The title of the picture.
        reference: Returns to compare with, such as a random policy's, by name.

    Raises:
        UserError: The rows contain no return.
    """
    curves = learning_curves(rows)
    if not curves:
        raise UserError(f"evaluations: nothing to draw; expected metric '{METRIC}'")
    # Slow to import, and needed only at the end of a run.
    import matplotlib

    content = io.BytesIO()
    with untyped(matplotlib).rc_context({"text.parse_math": False}):
        figure = curve_figure(curves, title, reference or {})
        untyped(figure).savefig(content, format="png", dpi=DPI)
    atomic_write(path, content.getvalue())


def curve_figure(
    curves: Sequence[Curve], title: str, reference: Mapping[str, float]
) -> "Figure":
    """Return learning curves, with references as dashed lines, as a figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = untyped(figure).add_subplot()
    for number, curve in enumerate(curves):
        _draw_task(axes, curve, COLORS[number % len(COLORS)])
    for number, (name, value) in enumerate(reference.items()):
        dashes = (0, (6 - number % 3 * 2, 2))
        axes.axhline(value, color="#444444", lw=1.1, ls=dashes, label=name)
        # Otherwise a reference close to the frame is hidden by it.
        axes.autoscale_view()
    _label_axes(axes, title)
    _draw_legend(figure, axes, curves)
    return figure


def style_axes(axes: Any, title: str, size: float) -> None:
    """Give axes a title and the look of all pictures of this package."""
    axes.set_title(title, loc="left", fontsize=size)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)


def untyped(artist: object) -> Any:
    """Return an object of matplotlib, whose keyword arguments have no types, as Any."""
    return cast("Any", artist)


def _curve(name: str, by_seed: Mapping[int, Mapping[int, float]]) -> Curve:
    seeds: list[tuple[Floats, Floats]] = []
    for _, points in sorted(by_seed.items()):
        table = np.array(sorted(points.items()), dtype=np.float64)
        seeds.append((table[:, 0], table[:, 1]))
    return Curve(name, tuple(seeds), *align_seeds(seeds))


def _draw_task(axes: Any, curve: Curve, color: str) -> None:
    count = len(curve.seeds)
    label = f"{curve.name} ({count} seed{'s' if count > 1 else ''})"
    if count > 1:
        for steps, values in curve.seeds:
            marker = "." if len(steps) == 1 else ""
            axes.plot(steps, values, color=color, lw=0.7, alpha=0.45, marker=marker)
        low, high = curve.returns.min(axis=0), curve.returns.max(axis=0)
        axes.fill_between(curve.steps, low, high, color=color, alpha=0.14, lw=0)
    mean = curve.returns.mean(axis=0)
    marker = "o" if len(curve.steps) <= 1 else ""
    axes.plot(curve.steps, mean, color=color, lw=2.2, marker=marker, label=label)


def _label_axes(axes: Any, title: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    style_axes(axes, title, 12)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("episode return")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _draw_legend(figure: "Figure", axes: Any, curves: Sequence[Curve]) -> None:
    """Add the legend: inside the axes if it is short, otherwise beside them."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles, labels = axes.get_legend_handles_labels()
    if any(len(curve.seeds) > 1 for curve in curves):
        gray = "#666666"
        mean = Line2D([], [], color=gray, lw=2.2)
        seed = Line2D([], [], color=gray, lw=0.7, alpha=0.6)
        handles += [mean, seed, Patch(color=gray, alpha=0.14, lw=0)]
        labels += ["mean over seeds", "one seed", "min to max over seeds"]
    if len(labels) > MAX_INNER_LEGEND + 3:
        place: dict[str, object] = {"loc": "outside right upper", "frameon": False}
        untyped(figure).legend(handles, labels, fontsize=9, **place)
    else:
        axes.legend(handles, labels, fontsize=9, framealpha=0.85, edgecolor="none")
