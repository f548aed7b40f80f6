from xml.etree import ElementTree

import numpy as np
import pytest
from drawn import EVIL

from r2r2.report.axis_scale import exact, inner_scale, scale_of, short
from r2r2.report.charts import Axis, Chart, Line, Panel
from r2r2.report.learning_curve import COLOURS
from r2r2.report.palette import AGENTS, DARK, Style, styles_of
from r2r2.report.svg_charts import draw_panel, hover_of, plane_of
from r2r2.report.theme import DARK_GROUND, LIGHT_GROUND
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


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts
    ]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one, other):
    light, dark = sorted([luminance(one), luminance(other)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_points_are_drawn_where_the_pointer_tells_them():
    chart = chart_of(line([0.0, 50.0, 100.0]))
    (path,) = parts(parsed(chart), "line")
    drawn = [tuple(map(float, at.split())) for at in path.get("d")[1:].split("L")]
    told = [
        tuple(v[1:3]) for v in hover_of(chart, chart.panels[0])["lines"][0]["values"]
    ]
    assert drawn == told
    frame = plane_of(chart, chart.panels[0]).frame
    bottom, top = frame.height - frame.bottom, frame.top
    assert [y for _, y in drawn] == [bottom, (bottom + top) / 2, top]
    assert (drawn[0][0], drawn[-1][0]) == (frame.left, frame.width - frame.right)


def test_all_of_an_interval_and_of_every_seed_is_within_the_axes():
    each = ((np.arange(2.0), np.array([-7.0, 30.0])),)
    chart = chart_of(
        line([1.0, 2.0], low=np.zeros(2), high=np.full(2, 44.0), each=each)
    )
    scale = plane_of(chart, chart.panels[0]).y
    assert scale.low <= -7
    assert scale.high >= 44


def test_points_without_a_number_are_neither_drawn_nor_told():
    chart = chart_of(line([1.0, np.nan, 3.0]))
    assert parts(parsed(chart), "line")[0].get("d").count("L") == 1
    (told,) = hover_of(chart, chart.panels[0])["lines"]
    assert len(told["values"]) == 2


def test_one_point_is_a_dot():
    root = parsed(chart_of(line([5.0])))
    assert len(parts(root, "dot")) == 1
    assert parts(root, "line") == []


def test_panels_share_an_axis_only_where_asked_to():
    for shared, tops in ((True, {100.0}), (False, {100.0, 1.0})):
        axis = Axis("return", shared=shared)
        small, big = (Panel("", (line([0.0, top]),)) for top in (1.0, 100.0))
        chart = Chart("a", "A", "", Axis("x"), axis, (small, big))
        assert {plane_of(chart, panel).y.high for panel in chart.panels} == tops


def test_a_logarithmic_axis_has_powers_of_ten():
    scale = scale_of(Axis("value", log=True), 0.02, 300.0)
    assert [said for _, said in scale.ticks] == [
        "10⁻²",
        "10⁻¹",
        "1",
        "10",
        "10²",
        "10³",
    ]
    assert scale.place(1.0) == pytest.approx(0.4)


@pytest.mark.parametrize("ends", [(0.0, 0.0), (5.0, 5.0), (-3.0, 1e-6), (1e9, 1e9 + 1)])
def test_any_values_have_a_scale_around_them(ends):
    scale = scale_of(Axis("x"), *ends)
    assert scale.low <= ends[0]
    assert scale.high >= ends[1]
    assert 2 <= len(scale.ticks) <= 8
    inner = inner_scale(Axis("x"), *ends)
    assert inner.low < inner.high


def test_numbers_are_short_on_axes_and_exact_under_the_pointer():
    assert [short(x) for x in (0.0, 1e6, -2500.0)] == ["0", "1M", "\N{MINUS SIGN}2.5k"]
    assert exact(-0.5) == "\N{MINUS SIGN}0.50000"
    assert exact(0.0) == "0"
    assert exact(1e-9) == "1e-09"


def test_bars_begin_at_zero_and_say_their_values():
    row = Line("td7", Style(0), np.zeros(1), np.array([-20.0]), mark="hollow")
    chart = chart_of(row, row._replace(y=np.array([80.0]), mark="full"), rows=True)
    root = parsed(chart)
    (below,), (above,) = parts(root, "hollow"), parts(root, "bar")
    left, width = float(below.get("x")), float(below.get("width"))
    assert left + width == float(above.get("x"))
    assert float(above.get("width")) == pytest.approx(4 * width, abs=0.5)
    assert "80.00" in [part.text for part in root.iter()]


def test_names_are_text_in_drawings():
    chart = chart_of(line([1.0, 2.0])._replace(name=EVIL))
    chart = chart._replace(title=EVIL, panels=(chart.panels[0]._replace(title=EVIL),))
    for rows in (False, True):
        root = parsed(chart._replace(rows=rows))
        assert {part.tag for part in root.iter()} <= {
            *("svg", "title", "desc", "g", "path", "circle", "rect", "text")
        }


def test_r2r2_has_the_colour_of_its_base_which_is_dashed():
    for agent, style in AGENTS.items():
        if agent.endswith("+r2r2"):
            base = AGENTS[agent.removesuffix("+r2r2")]
            assert (style.dash, base.dash) == ("solid", "dashed")
            assert style.colour == base.colour


def test_styles_do_not_depend_on_utd_and_tell_variants_apart():
    plain, variant = Method("td7", 1), Method("td7", 1, ("warmup is 5",))
    styles = styles_of([variant, plain, plain._replace(utd=20), Method("mine")])
    assert styles[plain] == styles[plain._replace(utd=20)] == AGENTS["td7"]
    assert len({styles[plain], styles[variant], styles[Method("mine")]}) == 3


def test_forty_unknown_methods_are_told_apart_as_far_as_colours_and_dashes_go():
    styles = styles_of([Method(f"m{number}") for number in range(40)])
    assert len(set(styles.values())) == 3 * (len(COLOURS) - 4)


def test_texts_and_lines_stand_out_from_both_grounds():
    for ground, lines in ((LIGHT_GROUND, COLOURS), (DARK_GROUND, DARK)):
        for name in ("ink", "soft", "faint", "accent", "warn-ink"):
            assert contrast(ground[name], ground["ground"]) >= 4.5, name
            assert contrast(ground[name], ground["raised"]) >= 4.5, name
        for colour in lines:
            assert contrast(colour, ground["ground"]) >= 2.2, colour
