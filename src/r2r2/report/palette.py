"""The colors of methods in all charts, and the colors of the page."""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from r2r2.stats.paper import BASES
from r2r2.stats.scores import Method

Dash = Literal["solid", "dashed", "dotted"]

# Safe for color-blind readers; the first six are Okabe and Ito's.
COLORS = (
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
# The same hues for a dark background.
DARK_COLORS = (
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


LIGHT_THEME = {
    "ground": "#ffffff",
    "raised": "#f7f8fa",
    "ink": "#16191d",
    "soft": "#454c55",
    "faint": "#626a74",
    "rule": "#dfe3e8",
    "accent": "#0b5cad",
    "warn": "#c77700",
    "warn-ink": "#8a5200",
    "warn-ground": "#fff6e5",
}
DARK_THEME = {
    "ground": "#111418",
    "raised": "#191d23",
    "ink": "#e9ecef",
    "soft": "#b9c0c9",
    "faint": "#98a1ac",
    "rule": "#2d343d",
    "accent": "#7db8f2",
    "warn": "#d9973a",
    "warn-ink": "#eab96d",
    "warn-ground": "#2a2113",
}


def theme_css() -> str:
    """Return CSS rules that define a variable for every color.

    The system's color scheme applies unless `data-theme` overrides it; print is light.
    """
    light = _variables("light", LIGHT_THEME, COLORS)
    dark = _variables("dark", DARK_THEME, DARK_COLORS)
    rules = [f":root {{ {light} }}"]
    rules += [f".s{n} {{ --c: var(--c{n}); }}" for n in range(len(COLORS))]
    system_dark = f":root:not([data-theme=light]) {{ {dark} }}"
    rules += [
        f"@media (prefers-color-scheme: dark) {{ {system_dark} }}",
        f":root[data-theme=dark] {{ {dark} }}",
        f"@media print {{ :root:root:root {{ {light} }} }}",
    ]
    return "\n".join(rules)


def _variables(scheme: str, theme: Mapping[str, str], colors: tuple[str, ...]) -> str:
    values = {**theme, **{f"c{index}": color for index, color in enumerate(colors)}}
    declarations = " ".join(f"--{name}: {color};" for name, color in values.items())
    return f"color-scheme: {scheme}; {declarations}"
