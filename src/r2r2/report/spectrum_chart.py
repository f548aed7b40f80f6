"""The chart of the singular values of Z."""

from collections.abc import Mapping

import numpy as np

from r2r2.report.absences import NO_MEAN, Gap, gaps_noted, lacking
from r2r2.report.bands import mean_band
from r2r2.report.charts import Axis, Chart, Line, Panel
from r2r2.report.members import members_by_seed
from r2r2.report.palette import Style, styles_of
from r2r2.report.samples import Floats
from r2r2.report.scores import Method
from r2r2.report.shortfalls import seed_list
from r2r2.report.study import Study

# Below this share of the largest a singular value is rounding, and 12 decades of it
# would leave no room for the others.
LEAST = 1e-6
HEAD, MOST = 16, 64  # values drawn of a long spectrum: the first, and others evenly


def spectrum_chart(study: Study) -> Chart | None:
    """The singular values of Z at the last evaluation, a panel for task and UTD."""
    styles = styles_of(study.methods)
    panels: dict[str, list[Line]] = {}
    absent: list[Gap] = []
    for (task, method), by_seed in _found(study).items():
        spectra = np.stack(list(by_seed.values()))
        bad = [str(s) for s, one in by_seed.items() if not np.isfinite(one).all()]
        title = task if method.utd is None else f"{task}, UTD {method.utd}"
        if bad:
            why = f"seed {seed_list(bad)} not finite"
        elif not spectra.any():
            why = "all values are zero"
        else:
            line = _line(study.label(method, utd=False), styles[method], spectra)
            line = line._replace(lacks=lacking(study, method, [task]))
            panels.setdefault(title, []).append(line)
            continue
        absent.append(Gap(study.label(method), task, why))
    if not panels:
        return None
    return Chart(
        "spectra",
        "Spectra of the representation",
        "Singular values of Z at the last evaluation of every seed, largest first, on "
        "a logarithmic scale: means over seeds with 95 % bootstrap intervals, and 0 "
        "where a seed has no such value. What is below a millionth of the largest of "
        "every seed is left out, and of long spectra only some 80 values are drawn.",
        Axis("index of the singular value"),
        Axis("singular value", log=True, shared=True),
        tuple(Panel(title, tuple(lines)) for title, lines in panels.items()),
        notes=gaps_noted(NO_MEAN, absent),
    )


def _found(study: Study) -> Mapping[tuple[str, Method], Mapping[int, Floats]]:
    """The last spectrum of each seed, by task and method in the order of a report.

    Those of one method have the same length, that of the longest: what a collapsed
    seed lacks is zero.
    """
    last: dict[tuple[str, Method], dict[int, Floats]] = {}
    for (method, task, seed), member in members_by_seed(study).items():
        if member.spectra:
            by_seed = last.setdefault((task, method), {})
            by_seed[seed] = member.spectra[-1].singular_values
    methods = study.methods

    def place(which: tuple[str, Method]) -> tuple[int, ...]:
        task, method = which
        return study.tasks.index(task), method.utd or 0, methods.index(method)

    return {which: _padded(last[which]) for which in sorted(last, key=place)}


def _padded(by_seed: Mapping[int, Floats]) -> dict[int, Floats]:
    most = max(map(len, by_seed.values()))
    return {s: np.pad(one, (0, most - len(one))) for s, one in by_seed.items()}


def _line(name: str, style: Style, spectra: Floats) -> Line:
    """The mean over seeds of spectra [seeds, values], as far as one has any."""
    length = max(map(_worth_drawing, spectra))
    even = np.linspace(0, length - 1, min(length, MOST)).round().astype(np.int64)
    places = np.unique(np.concatenate([np.arange(min(length, HEAD)), even]))
    line = mean_band(name, style, places + 1.0, spectra[:, places])
    if line.low is None:
        return line
    # An end at zero has no place on the scale.
    floor = np.minimum(LEAST * line.y[0], line.y)
    return line._replace(low=np.maximum(line.low, floor))


def _worth_drawing(values: Floats) -> int:
    return int(np.count_nonzero(values > LEAST * values[:1]))
