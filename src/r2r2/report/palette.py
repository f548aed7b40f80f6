"""One colour for a method, wherever it is drawn.

A method with R2R2 has the colour of its base, whose line is broken. The colours are
told apart by colour-blind readers too, the first six of them being Okabe and Ito's.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from r2r2.stats.paper import BASES
from r2r2.stats.scores import Method

Dash = Literal["solid", "dashed", "dotted"]

# The same hues on a dark ground.
DARK = (
    "#4fa9e2",
    "#f28c45",
    "#2fc497",
    "#e3a0c6",
    "#edb944",
    "#8fd0f5",
    "#b79ad0",
    "#c99a8f",
    "#a3aeb0",
    "#ef7d7d",
    "#c9c93a",
)


class Style(NamedTuple):
    """How the lines of a method look."""

    colour: int  # in `COLOURS` and `DARK`
    dash: Dash = "solid"


AGENTS = {
    "td7": Style(0, "dashed"),
    "td7+r2r2": Style(0),
    "minphi": Style(1, "dashed"),
    "minphi+r2r2": Style(1),
    "td7-ln": Style(2, "dashed"),
    "td7-ln+r2r2": Style(2),
    "simbav2": Style(3, "dotted"),
    "simbav2-spl": Style(3, "dashed"),
    "simbav2-spl+r2r2": Style(3),
}
OTHERS = (4, 6, 9, 7, 5, 8, 10)  # those of no agent, the most unlike first


def family_of(agent: str) -> str:
    """The agents that belong in one panel: those with the same base.

    Example:
        >>> family_of("simbav2-spl+r2r2"), family_of("mine")
        ('simbav2', 'mine')
    """
    return BASES.get(agent, agent)


def styles_of(methods: Iterable[Method]) -> dict[Method, Style]:
    """A style for every method; at another UTD it has the same.

    Of several variants of an agent the one that departs least from its defaults is
    drawn as the agent; the others have colours of their own.

    Example:
        >>> one, other = Method("td7", 1, ("steps is 9",)), Method("td7", 20)
        >>> styles_of([one])[one]
        Style(colour=0, dash='dashed')
        >>> styles_of([one, other])[one]
        Style(colour=4, dash='solid')
    """
    given = list(methods)
    variants: dict[str, list[tuple[str, ...]]] = {}
    for method in given:
        known = variants.setdefault(method.agent, [])
        if method.departures not in known:
            known.append(method.departures)
    styles: dict[tuple[str, tuple[str, ...]], Style] = {}
    taken = 0
    for agent, ways in variants.items():
        for rank, way in enumerate(sorted(ways, key=len)):
            plain = AGENTS.get(agent) if rank == 0 else None
            styles[agent, way] = plain or _other(taken)
            taken += plain is None
    return {method: styles[method.agent, method.departures] for method in given}


def _other(number: int) -> Style:
    dashes: tuple[Dash, ...] = ("solid", "dashed", "dotted")
    repeat, place = divmod(number, len(OTHERS))
    return Style(OTHERS[place], dashes[repeat % len(dashes)])
