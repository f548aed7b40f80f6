"""The colors of methods in all charts, and the colors of the page."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from r2r2.stats.paper import BASES
from r2r2.stats.scores import Method

Dash = Literal["solid", "dashed", "dotted"]

# For light and for dark backgrounds. Safe for color-blind readers; the first six are
# Okabe and Ito's.
COLORS, DARK_COLORS = zip(
    ("#0072b2", "#4fa9e2"),
    ("#d55e00", "#f28c45"),
    ("#009e73", "#2fc497"),
    ("#cc79a7", "#e3a0c6"),
    ("#e69f00", "#edb944"),
    ("#56b4e9", "#8fd0f5"),
    ("#7a5195", "#b79ad0"),
    ("#8c564b", "#c99a8f"),
    ("#5f6b6d", "#a3aeb0"),
    ("#b2182b", "#ef7d7d"),
    ("#9a9a00", "#c9c93a"),
    strict=True,
)


class Style(NamedTuple):
    """The look of a method's lines."""

    color: int  # index into `COLORS` and `DARK_COLORS`
    dash: Dash = "solid"


# An agent with R2R2 has the color of its base agent, whose line is dashed.
AGENT_STYLES = {
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
OTHER_COLORS = (4, 6, 9, 7, 5, 8, 10)  # used by no agent, most distinct first


def agent_family(agent: str) -> str:
    """Return the base agent, which names the agents that share a panel.

    Example:
        >>> agent_family("simbav2-spl+r2r2"), agent_family("mine")
        ('simbav2', 'mine')
    """
    return BASES.get(agent, agent)


def method_styles(methods: Iterable[Method]) -> dict[Method, Style]:
    """Return a style for every method; the same for all UTDs.

    Among the variants of an agent, the one with the fewest overridden settings gets the
    agent's style; the others get colors that no agent uses.

    Example:
        >>> one, other = Method("td7", 1, file="a.csv"), Method("td7", 20)
        >>> method_styles([one])[one]
        Style(color=0, dash='dashed')
        >>> method_styles([one, other])[one]
        Style(color=4, dash='solid')
    """
    methods = list(methods)
    variants: dict[str, list[Method]] = {}
    for variant in dict.fromkeys(method._replace(utd=None) for method in methods):
        variants.setdefault(variant.agent, []).append(variant)
    styles: dict[Method, Style] = {}
    others = 0
    for agent, of_agent in variants.items():
        ranked = sorted(of_agent, key=lambda variant: variant.deviation_count)
        for rank, variant in enumerate(ranked):
            agent_style = AGENT_STYLES.get(agent) if rank == 0 else None
            styles[variant] = agent_style or _other_style(others)
            others += agent_style is None
    return {method: styles[method._replace(utd=None)] for method in methods}


def _other_style(number: int) -> Style:
    dashes: tuple[Dash, ...] = ("solid", "dashed", "dotted")
    repeat, index = divmod(number, len(OTHER_COLORS))
    return Style(OTHER_COLORS[index], dashes[repeat % len(dashes)])


# The light and the dark color of every CSS variable of the page.
THEME = {
    "ground": ("#ffffff", "#111418"),
    "raised": ("#f7f8fa", "#191d23"),
    "ink": ("#16191d", "#e9ecef"),
    "soft": ("#454c55", "#b9c0c9"),
    "faint": ("#626a74", "#98a1ac"),
    "rule": ("#dfe3e8", "#2d343d"),
    "accent": ("#0b5cad", "#7db8f2"),
    "warn": ("#c77700", "#d9973a"),
    "warn-ink": ("#8a5200", "#eab96d"),
    "warn-ground": ("#fff6e5", "#2a2113"),
    **{f"c{n}": pair for n, pair in enumerate(zip(COLORS, DARK_COLORS, strict=True))},
}


def theme_css() -> str:
    """Return CSS rules that define a variable for every color.

    The system's color scheme applies unless `data-theme` overrides it; print is light.
    """
    light, dark = (
        f"color-scheme: {scheme}; "
        + " ".join(f"--{name}: {pair[index]};" for name, pair in THEME.items())
        for index, scheme in enumerate(("light", "dark"))
    )
    system_dark = f":root:not([data-theme=light]) {{ {dark} }}"
    return "\n".join(
        [
            f":root {{ {light} }}",
            *(f".s{n} {{ --c: var(--c{n}); }}" for n in range(len(COLORS))),
            f"@media (prefers-color-scheme: dark) {{ {system_dark} }}",
            f":root[data-theme=dark] {{ {dark} }}",
            f"@media print {{ :root:root:root {{ {light} }} }}",
        ]
    )
