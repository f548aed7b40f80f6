"""Charts as SVG: scales, drawings, and the values shown on hover."""

from xml.etree import ElementTree

import numpy as np
import pytest
from example_study import HOSTILE

from r2r2.report.charts import (
    AGENT_STYLES,
    COLORS,
    DARK_COLORS,
    Axis,
    Chart,
    Line,
    Panel,
    Style,
    method_styles,
)
from r2r2.report.page import THEME
from r2r2.report.svg import (
    draw_panel,
    hover_data,
    make_scale,
    plot_area,
    tick_text,
    tight_scale,
    value_text,
)
from r2r2.stats.scores import Method


def chart_of(*lines, rows=False):
    axes = Axis("steps"), Axis("return")
    return Chart("a", "A", "", *axes, (Panel("p", lines),), rows)


def line(y, **fields):
    values = np.array(y, dtype=np.float64)
    return Line("td7", Style(0), np.arange(float(len(values))), values, **fields)


def parsed(chart):
    return ElementTree.fromstring(draw_panel(chart, chart.panels[0]))


def parts(root, kind):
    return [part for part in root.iter() if kind in part.get("class", "").split()]


def luminance(color):
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one, other):
    light, dark = sorted([luminance(one), luminance(other)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_points_are_drawn_at_their_hover_positions():
    chart = chart_of(line([0.0, 50.0, 100.0]))
    (path,) = parts(parsed(chart), "line")
    drawn = [tuple(map(float, at.split())) for at in path.get("d")[1:].split("L")]
    hover = [tuple(v[1:3]) for v in hover_data(chart, chart.panels[0])["lines"][0]["values"]]
    assert drawn == hover
    frame = plot_area(chart, chart.panels[0]).frame
    bottom, top = frame.height - frame.bottom, frame.top
    assert [y for _, y in drawn] == [bottom, (bottom + top) / 2, top]
    assert (drawn[0][0], drawn[-1][0]) == (frame.left, frame.width - frame.right)


def test_axes_include_intervals_and_seeds():
    each = ((np.arange(2.0), np.array([-7.0, 30.0])),)
    chart = chart_of(line([1.0, 2.0], low=np.zeros(2), high=np.full(2, 44.0), seeds=each))
    scale = plot_area(chart, chart.panels[0]).y
    assert scale.low <= -7
    assert scale.high >= 44


def test_nan_points_are_omitted():
    chart = chart_of(line([1.0, np.nan, 3.0]))
    assert parts(parsed(chart), "line")[0].get("d").count("L") == 1
    (values,) = hover_data(chart, chart.panels[0])["lines"]
    assert len(values["values"]) == 2


def test_a_single_point_is_a_dot():
    root = parsed(chart_of(line([5.0])))
    assert len(parts(root, "dot")) == 1
    assert parts(root, "line") == []


def test_panels_share_only_shared_axes():
    for shared, tops in ((True, {100.0}), (False, {100.0, 1.0})):
        axis = Axis("return", shared=shared)
        small, big = (Panel("", (line([0.0, top]),)) for top in (1.0, 100.0))
        chart = Chart("a", "A", "", Axis("x"), axis, (small, big))
        assert {plot_area(chart, panel).y.high for panel in chart.panels} == tops


def test_a_logarithmic_axis_has_powers_of_ten():
    scale = make_scale(Axis("value", log=True), 0.02, 300.0)
    assert [text for _, text in scale.ticks] == ["10⁻²", "10⁻¹", "1", "10", "10²", "10³"]
    assert scale.position(1.0) == pytest.approx(0.4)


@pytest.mark.parametrize("bounds", [(0.0, 0.0), (5.0, 5.0), (-3.0, 1e-6), (1e9, 1e9 + 1)])
def test_scales_include_all_values(bounds):
    scale = make_scale(Axis("x"), *bounds)
    assert scale.low <= bounds[0]
    assert scale.high >= bounds[1]
    assert 2 <= len(scale.ticks) <= 8
    inner = tight_scale(Axis("x"), *bounds)
    assert inner.low < inner.high


def test_numbers_are_short_on_axes_and_exact_on_hover():
    assert tick_text(1e6) == "1M"
    assert tick_text(-2500.0) == "\N{MINUS SIGN}2.5k"
    assert value_text(-0.5) == "\N{MINUS SIGN}0.50000"
    assert value_text(0.0) == "0"
    assert value_text(1e-9) == "1e-09"


def test_bars_start_at_zero_and_show_their_values():
    row = Line("td7", Style(0), np.zeros(1), np.array([-20.0]), marker="hollow")
    chart = chart_of(row, row._replace(y=np.array([80.0]), marker="filled"), rows=True)
    root = parsed(chart)
    (below,), (above,) = parts(root, "hollow"), parts(root, "bar")
    left, width = float(below.get("x")), float(below.get("width"))
    assert left + width == float(above.get("x"))
    assert float(above.get("width")) == pytest.approx(4 * width, abs=0.5)
    assert "80.00" in [part.text for part in root.iter()]


def test_names_are_escaped():
    chart = chart_of(line([1.0, 2.0])._replace(name=HOSTILE))
    panel = chart.panels[0]._replace(title=HOSTILE)
    chart = chart._replace(title=HOSTILE, panels=(panel,))
    for rows in (False, True):
        root = parsed(chart._replace(rows=rows))
        assert {part.tag for part in root.iter()} <= {
            *("svg", "title", "desc", "g", "path", "circle", "rect", "text")
        }


# Linear RGB as people without one kind of cone see it (Machado and others, 2009).
VISION = {
    "usual": np.eye(3),
    "protan": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deutan": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "tritan": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(color, vision):
    """Return a color as seen, in CIE Lab, where 2 is just visible."""
    part = np.array([int(color[n : n + 2], 16) for n in (1, 3, 5)]) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(vision @ linear, 0, 1) / TO_XYZ.sum(axis=1)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", VISION)
def test_r2r2_and_its_base_differ_in_dash_and_in_color_for_everyone(kind):
    pairs = [(x, x.removesuffix("+r2r2")) for x in AGENT_STYLES if x.endswith("+r2r2")]
    for agent, base in [*pairs, ("simbav2-spl+r2r2", "simbav2")]:
        ours, theirs = AGENT_STYLES[agent], AGENT_STYLES[base]
        assert ours.dash == "solid" != theirs.dash
        for colors in (COLORS, DARK_COLORS):
            seen = [lab(colors[style.color], VISION[kind]) for style in (ours, theirs)]
            assert np.linalg.norm(seen[0] - seen[1]) > 20, (agent, base)


def test_other_methods_have_colors_that_no_shown_agent_has():
    methods = [*map(Method, AGENT_STYLES), Method("sac"), Method("bro")]
    styles = method_styles(methods)
    assert len({style.color for style in styles.values()}) == len(methods)


def test_styles_depend_on_variants_but_not_on_utd():
    plain, variant = Method("td7", 1), Method("td7", 1, ("warmup is 5",))
    styles = method_styles([variant, plain, plain._replace(utd=20), Method("mine")])
    assert styles[plain] == styles[plain._replace(utd=20)] == AGENT_STYLES["td7"]
    assert len({styles[plain], styles[variant], styles[Method("mine")]}) == 3


def test_many_unknown_methods_use_all_colors_and_dashes():
    styles = method_styles([Method(f"m{number}") for number in range(40)])
    assert len(set(styles.values())) == 3 * len(COLORS)


def test_texts_and_lines_have_contrast_in_both_themes():
    for index, colors in enumerate((COLORS, DARK_COLORS)):
        theme = {name: pair[index] for name, pair in THEME.items()}
        for name in ("ink", "soft", "faint", "accent", "warn-ink"):
            assert contrast(theme[name], theme["ground"]) >= 4.5, name
            assert contrast(theme[name], theme["raised"]) >= 4.5, name
        for color in colors:
            assert contrast(color, theme["ground"]) >= 2.2, color


def test_a_padded_axis_has_room_beyond_its_ticks():
    plain = chart_of(line([0.0, 1.0]))
    padded = plain._replace(y=plain.y._replace(padded=True))
    (a, b), ticks = (plot_area(x, x.panels[0]).y[:2] for x in (plain, padded)), (0.0, 1.0)
    assert a == ticks
    assert b[0] < 0 < 1 < b[1]
    assert plot_area(padded, padded.panels[0]).y.ticks == plot_area(plain, plain.panels[0]).y.ticks
