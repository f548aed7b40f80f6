"""The chart of the singular values of Z."""

import numpy as np

from r2r2.report.bands import mean_band
from r2r2.report.charts import Axis, Chart, Line, Panel
from r2r2.report.palette import Style, styles_of
from r2r2.report.samples import Floats
from r2r2.report.scores import Method
from r2r2.report.study import Study

# Below this share of the largest a singular value is rounding, and 12 decades of it
# would leave no room for the others.
LEAST = 1e-6
HEAD, MOST = 16, 64  # values drawn of a long spectrum: the first, and others evenly


def spectrum_chart(study: Study) -> Chart | None:
    """The singular values of Z at the last evaluation, a panel for task and UTD."""
    found: dict[tuple[str, int | None], dict[Method, list[Floats]]] = {}
    for run in study.runs:
        method = run.results.method
        for member in run.members:
            if member.spectra and _worth_drawing(member.spectra[-1].singular_values):
                by_method = found.setdefault((member.task, method.utd), {})
                last = member.spectra[-1].singular_values
                by_method.setdefault(method, []).append(last)
    if not found:
        return None
    styles = styles_of(study.methods)
    panels = []
    order = sorted(found, key=lambda one: (study.tasks.index(one[0]), one[1] or 0))
    for task, utd in order:
        spectra = found[task, utd]
        lines = [
            _line(study.label(method, utd=False), styles[method], spectra[method])
            for method in study.methods
            if method in spectra
        ]
        title = task if utd is None else f"{task}, UTD {utd}"
        panels.append(Panel(title, tuple(lines)))
    return Chart(
        "spectra",
        "Spectra of the representation",
        "Singular values of Z at the last evaluation of every seed, largest first, on "
        "a logarithmic scale: means over seeds with 95 % bootstrap intervals. What is "
        "below a millionth of the largest is left out, and of long spectra only some "
        "80 values are drawn.",
        Axis("index of the singular value"),
        Axis("singular value", log=True, shared=True),
        tuple(panels),
    )


def _line(name: str, style: Style, spectra: list[Floats]) -> Line:
    length = min(_worth_drawing(one) for one in spectra)
    even = np.linspace(0, length - 1, min(length, MOST)).round().astype(np.int64)
    places = np.unique(np.concatenate([np.arange(min(length, HEAD)), even]))
    values = np.stack([one[places] for one in spectra])
    return mean_band(name, style, places + 1.0, values)


def _worth_drawing(values: Floats) -> int:
    return int(np.count_nonzero(values > LEAST * values[:1]))
