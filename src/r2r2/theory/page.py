"""The page of `r2r2 theory`: what was checked, in plain words, with tables and figures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from r2r2.report.charts import Chart
from r2r2.report.figures import write_charts
from r2r2.report.page import FILE, Section, escape, figure_html, fill_page, table_html
from r2r2.report.study import Study
from r2r2.report.tables import Table, write_tables
from r2r2.storage.files import atomic_write
from r2r2.theory import charts, tables
from r2r2.theory import experiments as ex
from r2r2.theory.chains import STATES, Chain
from r2r2.theory.experiments import DIM, STARTS, Outcome
from r2r2.theory.practice import practice_charts, practice_table

TITLE = "The constant mode: the theory behind R2R2, checked"
LEDE = (
    "A self-predictive encoder learns the slow directions of the dynamics, and one of them is "
    "always the constant one. Centring deletes it. This page checks that argument with numbers: "
    "on small Markov chains, where everything can be computed exactly, and in trained agents."
)
NO_RUNS = (
    "No runs were given. 'r2r2 theory RUN...' adds the constant mode's share, the spectra and the "
    "effective ranks of trained encoders."
)


class Part(NamedTuple):
    """A section of the page: its text, tables and charts."""

    name: str
    title: str
    paragraphs: Sequence[str]
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()


def make_parts(
    chains: Sequence[Chain], outcomes: Sequence[Outcome], study: Study | None
) -> list[Part]:
    """Return the parts of the page, in order."""
    first = chains[0].name
    lemmas = (
        tables.lemma_table(chains),
        tables.assumption_table(chains, outcomes),
        tables.compatibility_table(chains),
    )
    sphere = (
        charts.sphere_chart(outcomes),
        charts.sphere_time_chart(outcomes),
        charts.sphere_weight_chart(outcomes),
    )
    sweeps = [tables.sweep_table(outcomes)]
    return [
        Part("glance", "At a glance", findings(outcomes)),
        Part("lemmas", "Lemmas and assumptions", LEMMAS, lemmas),
        Part(
            "flows",
            "What each loss learns",
            FLOWS,
            [tables.variant_table(outcomes, first)],
            [charts.variant_chart(outcomes, first), charts.angle_chart(outcomes, first)],
        ),
        Part(
            "weights",
            "Weights and threshold",
            WEIGHTS,
            sweeps,
            charts.weight_charts(outcomes, first),
        ),
        Part("sphere", "On the unit sphere", SPHERE, [tables.sphere_table()], sphere),
        _practice(study),
    ]


def _practice(study: Study | None) -> Part:
    name, title = "practice", "Trained encoders"
    if study is None:
        return Part(name, title, [NO_RUNS])
    return Part(name, title, PRACTICE, [practice_table(study)], practice_charts(study))


LEMMAS = (
    "A Markov chain with transition matrix P maps a function of the state to its expected value "
    "one step later. A constant function does not change, so 1 is an eigenvalue and the constant "
    "vector its eigenvector, and no eigenvalue is larger. The first table checks this for each "
    "chain; it holds for all of them.",
    "The rest of the argument uses symmetry. The second table says what is lost without it. The "
    "constant mode always stays an eigenvector; what fails first is that the other eigenvectors "
    "are orthogonal, that centring commutes with the dynamics, and that the trace objective "
    "always climbs. Negative eigenvalues matter too, also for symmetric chains: from some starts "
    "the flow then ends in another eigenspace than the top one. The lazy version of the same "
    "chain, which has none, reaches the top from every start.",
)
FLOWS = (
    f"An encoder here is a table: {DIM} numbers for each of {STATES} states. It follows the "
    "gradient of the loss, with a latent model that is optimal at every moment. The panels show "
    "what it learns over time.",
)
WEIGHTS = (
    "The same flow for other weights and thresholds, with L_RR as R2R2 has it and with a centred "
    "covariance. The constant mode's share is the part of Z's squared norm that is the mean "
    "latent. The table has the range over a smaller set of weights and thresholds on every chain. "
    "On the directed cycle all eigenvalues have modulus 1, so the constant mode is not more "
    "predictable than other functions, and a strong hinge can remove it, with and without "
    "centring.",
)
SPHERE = (
    "SimbaV2-SPL scales every latent to norm 1. Then the squared deviations of the features sum "
    "to at most N/(N-1), so with d features they cannot all exceed about 1/sqrt(d). The paper's "
    "threshold of 1 is never met. The mean deviation is largest where the mean latent is 0 and all "
    "features are equally wide, so an open hinge always works against the constant mode.",
    "Recommendation: a threshold above the largest deviation of any feature is no setting at all: "
    "all such thresholds give the same training, and only lambda_Var matters. On the grid world "
    "this begins between 1.25/sqrt(d) and 2/sqrt(d). "
    "To keep the constant mode, set v_th to 0.75/sqrt(d), which the encoder can meet. The paper's "
    "scores are with v_th = 1, so the default stays 1. docs/theory.md has the short training runs "
    "behind this: they show the same effect on Z, and are too short to tell returns apart.",
)
PRACTICE = (
    "The same quantities in trained agents, from the diagnostics of the given runs. The states of "
    "a task are not sampled uniformly, the latent model sees actions, and the encoder also serves "
    "a critic that changes, so the numbers need not match the chains.",
)


def findings(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the main results as sentences with the measured numbers."""

    def last(line: str, field: str) -> float:
        return float(np.median(next(x for x in outcomes if x.setting.line == line).last(field)))

    def share(experiment: str, line: str, x: float) -> float:
        wanted = experiment, line, x
        found = next(o for o in outcomes if o.setting[:3] == wanted)
        return float(np.median(found.last("constant_share")))

    chain = outcomes[0].setting.chain.name
    centred = [
        float(np.median(o.last("constant_share")))
        for o in outcomes
        if (o.setting.experiment, o.setting.line) == (ex.BOTH, ex.CENTRED_LINE)
        and o.setting.chain.name == chain
    ]
    weight = f"lambda_Var = {ex.PAPER_WEIGHT:g}"
    root = DIM**0.5
    return [
        f"On the {chain}, SPL with stop-gradient turns its features to within "
        f"{max(last(ex.SPL, 'angle'), 0.001):.1g} degrees "
        f"of the top {DIM} eigenvectors, and {last(ex.SPL, 'constant_mode'):.0%} of the constant "
        "mode is in their span.",
        "There, without the stop-gradient the representation collapses to effective rank "
        f"{last(ex.NO_STOP, 'effective_rank'):.2f}: every state gets the same latent.",
        f"With zero-centred latents {last(ex.CENTRED_OUTPUT, 'constant_mode'):.0%} of the constant "
        "mode remains.",
        "R2R2 keeps all of it, with a share of "
        f"{last(ex.FULL, 'constant_share'):.2f} of Z's squared norm. With a centred covariance the "
        f"share is anything from {min(centred):.2f} to {max(centred):.2f}, depending on the "
        "weights.",
        f"On the unit sphere the share is {share(ex.SPHERE_BASE, ex.NO_HINGE, 0):.2f} without a "
        f"hinge and {share(ex.SPHERE, weight, root):.3f} with the paper's threshold of 1; a "
        f"threshold of 0.75/sqrt(d) leaves {share(ex.SPHERE, weight, 0.75):.2f}.",
    ]


def write_pages(
    parts: Sequence[Part], chains: int, folder: Path, on_stage: Callable[[str], None]
) -> None:
    """Write `index.html`, `tables/` and `figures/` into a folder; `chains` is their number."""
    on_stage("tables")
    (folder / "tables").mkdir()
    write_tables([table for part in parts for table in part.tables], folder / "tables")
    for part in parts:
        if part.charts:
            on_stage(f"figures: {part.title}")
            write_charts(part.charts, folder / "figures")
    on_stage("page")
    atomic_write(folder / FILE, page_html(parts, chains))


def page_html(parts: Sequence[Part], chains: int) -> str:
    """Return the page; figures and tables are numbered in order of appearance."""
    sections, figures, sheets = [], 0, 0
    for part in parts:
        content = "".join(f"<p>{escape(text)}</p>" for text in part.paragraphs)
        if part.name == "glance":
            items = "".join(f"<li>{escape(text)}</li>" for text in part.paragraphs)
            content = f"<ul>{items}</ul>"
        for chart in part.charts:
            figures += 1
            content += figure_html(chart, figures)
        for table in part.tables:
            sheets += 1
            content += table_html(table, sheets)
        sections.append(Section(part.name, part.title, content))
    facts = {
        "chains": str(chains),
        "states": str(STATES),
        "features": str(DIM),
        "random starts": str(STARTS),
        "precision": "float64",
    }
    listed = "".join(f"<div><dt>{k}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items())
    return fill_page(TITLE, LEDE, ("", listed), sections, "exact computations and run folders")
