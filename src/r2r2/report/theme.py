"""The colours of a page, on a light ground and on a dark one."""

from collections.abc import Mapping

from r2r2.report.learning_curve import COLOURS
from r2r2.report.palette import DARK

LIGHT_GROUND = {
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
DARK_GROUND = {
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
    """Style rules that give every colour its name.

    The system chooses, or the page's button by `data-theme`; print is always light.

    Example:
        >>> theme_css().splitlines()[1][:20]
        '.s0 { --c: var(--c0)'
    """
    light = _named("light", LIGHT_GROUND, COLOURS)
    dark = _named("dark", DARK_GROUND, DARK)
    rules = [f":root {{ {light} }}"]
    rules += [f".s{n} {{ --c: var(--c{n}); }}" for n in range(len(COLOURS))]
    chosen = f":root:not([data-theme=light]) {{ {dark} }}"
    rules += [
        f"@media (prefers-color-scheme: dark) {{ {chosen} }}",
        f":root[data-theme=dark] {{ {dark} }}",
        f"@media print {{ :root:root:root {{ {light} }} }}",
    ]
    return "\n".join(rules)


def _named(scheme: str, ground: Mapping[str, str], lines: tuple[str, ...]) -> str:
    numbered = {f"c{number}": colour for number, colour in enumerate(lines)}
    names = {**ground, **numbered}
    listed = " ".join(f"--{name}: {colour};" for name, colour in names.items())
    return f"color-scheme: {scheme}; {listed}"
