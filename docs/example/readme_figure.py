"""Draw the README's figure: learning curves of a base agent and the same agent with R2R2.

    python docs/example/readme_figure.py results
    python docs/example/readme_figure.py results --agent td7 --utd 20 --tasks dog-trot,humanoid-run

Reads a folder of results that `r2r2 collect` has written, and writes learning_curves.svg, .png and
.csv into docs/figures: a panel for each task and UTD that both agents have, with means over seeds
and 95 % bootstrap intervals, in the colors of `r2r2 report`.
"""

import argparse
import io
import re
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from r2r2 import SavedResults, UserError, load_results
from r2r2.report.charts import AGENT_STYLES, Axis, Chart, Line, Panel, chart_csv
from r2r2.report.curve_charts import with_mean
from r2r2.report.figures import render_chart
from r2r2.saved_run import Curve
from r2r2.storage.files import atomic_write

FIGURES = Path(__file__).parents[1] / "figures"
# What matplotlib writes beside the drawing: the type and the metadata, with addresses.
SVG_EXTRAS = re.compile(rb"<!DOCTYPE.*?>\n?| *<metadata>.*?</metadata>\n?", re.DOTALL)
CAPTION = "Mean return of each evaluation, over seeds, with 95 % bootstrap intervals."


def main(argv: list[str] | None = None) -> int:
    """Draw the figure, and print what is in it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="folder of r2r2 collect")
    parser.add_argument("--agent", default="td7", choices=sorted(base_agents()))
    parser.add_argument("--utd", type=int, help="one UTD; default: all")
    parser.add_argument("--tasks", default="", help="comma-separated; default: all")
    parser.add_argument("--out", type=Path, default=FIGURES)
    args = parser.parse_args(argv)
    try:
        results = load_results(args.results)
        tasks = tuple(args.tasks.split(",")) if args.tasks else results.tasks
        chart = learning_curve_chart(results, args.agent, args.utd, tasks)
    except UserError as error:
        print(f"readme_figure.py: error: {error}", file=sys.stderr)
        return 2
    write_chart(chart, args.out)
    for panel in chart.panels:
        print(f"{panel.title}: {', '.join(f'{x.name} ({x.detail_text})' for x in panel.lines)}")
    return 0


def base_agents() -> set[str]:
    """Return the agents that exist with and without R2R2."""
    return {name for name in AGENT_STYLES if f"{name}+r2r2" in AGENT_STYLES}


def learning_curve_chart(
    results: SavedResults, agent: str, utd: int | None, tasks: tuple[str, ...]
) -> Chart:
    """Return the chart: a panel for each task and UTD with curves of both agents."""
    utds = sorted({int(row["utd"]) for row in results.evaluations}) if utd is None else [utd]
    panels = []
    for task in tasks:
        for number in utds:
            names = [find_experiment(results, x, number, task) for x in (agent, f"{agent}+r2r2")]
            if None not in names:
                curves = [results.curve(str(name), task) for name in names]
                lines = map(curve_line, (agent, f"{agent}+r2r2"), curves)
                panels.append(Panel(f"{task}, UTD {number}", list(lines)))
    if not panels:
        wanted = f"{agent} and {agent}+r2r2 on the same task at the same UTD"
        raise UserError(f"{results.path}: expected evaluations of {wanted}, got none")
    axes = Axis("environment steps"), Axis("return")
    return Chart("learning_curves", "Learning curves", CAPTION, *axes, panels)


def find_experiment(results: SavedResults, agent: str, utd: int, task: str) -> str | None:
    """Return the agent's experiment on a task with the fewest changed settings; None for none."""
    rows = results.evaluations.where(agent=agent, utd=utd, env_name=task)
    names = sorted({str(row["exp_name"]) for row in rows}, key=count_changes)
    if len(names) > 1 and count_changes(names[0]) == count_changes(names[1]):
        raise UserError(f"{task}: expected one experiment of {agent} at UTD {utd}, got {names}")
    return names[0] if names else None


def count_changes(experiment: str) -> int:
    """Return the number of settings in a name, such as 'td7_warmup=5_utd20'."""
    return experiment.count("=")


def curve_line(agent: str, curve: Curve) -> Line:
    """Return the mean over seeds with its intervals, up to where any seed ends or diverges."""
    finite = np.isfinite(curve.returns).all(axis=0)
    end = len(finite) if finite.all() else int(np.argmin(finite))
    steps = curve.env_steps[:end].astype(np.float64)
    return with_mean(Line(agent, AGENT_STYLES[agent]), steps, curve.returns[:, :end])


def write_chart(chart: Chart, folder: Path) -> None:
    """Write the pictures, without metadata, and the numbers of the chart."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = render_chart(chart)
    atomic_write(folder / f"{chart.name}.svg", SVG_EXTRAS.sub(b"", pictures["svg"]))
    atomic_write(folder / f"{chart.name}.png", png_without_texts(pictures["png"]))
    atomic_write(folder / f"{chart.name}.csv", chart_csv(chart))


def png_without_texts(content: bytes) -> bytes:
    """Return a PNG file with nothing but its pixels."""
    packed = io.BytesIO()
    Image.open(io.BytesIO(content)).convert("RGB").save(packed, "PNG", optimize=True)
    return packed.getvalue()


if __name__ == "__main__":
    sys.exit(main())
