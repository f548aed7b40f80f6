"""The report's page as people see it, in a real browser."""

import base64
import re

import pytest
from selenium.webdriver import ActionChains, Keys

pytestmark = pytest.mark.browser

SIZES = {"phone": 390, "small phone": 320, "tablet": 768, "desk": 1280, "wide": 1920}

BOXES = """
    return [...document.querySelectorAll(arguments[0])].map(node => {
        const box = node.getBoundingClientRect(), style = getComputedStyle(node);
        const seen = style.visibility === "visible" && style.opacity !== "0";
        return [node.closest("figure").id, box.left, box.right, box.height, seen];
    })
"""

COLOURS = """
    const style = getComputedStyle(document.body);
    const canvas = document.createElement("canvas").getContext("2d");
    return [style.backgroundColor, style.color].map(colour => {
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    })
"""


def luminance(colour):
    """How light a colour is, as the guidelines for accessible pages have it."""
    parts = [c / 255 for c in colour]
    linear = [p / 12.92 if p <= 0.04 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def tip(browser):
    """What is told under the pointer, or None."""
    shown = browser.one("#tip")
    return shown.text if shown.is_displayed() else None


def hit_of(figure):
    """Where the pointer is heard in a figure, in the first of its panels."""
    return figure.find_element("css selector", ".hit")


def test_the_page_is_shown_whole_and_says_nothing_on_the_console(browser, report):
    browser.open(report.page)
    assert browser.run("return document.readyState") == "complete"
    assert len(browser.all("figure")) >= 8
    assert len(browser.all(".sheet table")) >= 5
    assert browser.console() == []


def test_nothing_is_asked_for_but_the_page_itself(browser, report):
    browser.open(report.page)
    for figure in browser.all("figure"):
        browser.point(hit_of(figure))
    browser.one("#theme").click()
    asked = [url for url in browser.requests() if not url.startswith("data:")]
    assert asked == [report.page.as_uri()]


def test_what_a_page_asks_for_would_be_noticed(browser, report, tmp_path):
    page = tmp_path / "leaky.html"
    page.write_text("<img src='https://example.org/pixel.png'><script>x.y</script>")
    browser.open(page)
    assert "https://example.org/pixel.png" in browser.requests()
    assert any("x is not defined" in line for line in browser.console())


def test_the_page_needs_no_network(browser, report):
    browser.command("Network.enable")
    off = {"offline": True, "latency": 0, "downloadThroughput": 0}
    browser.command("Network.emulateNetworkConditions", **off, uploadThroughput=0)
    try:
        browser.open(report.page)
        assert browser.run("return navigator.onLine") is False
        assert browser.console() == []
        assert all(figure.is_displayed() for figure in browser.all("figure"))
    finally:
        on = {"offline": False, "latency": 0, "downloadThroughput": -1}
        browser.command("Network.emulateNetworkConditions", **on, uploadThroughput=-1)


@pytest.mark.parametrize("width", SIZES.values(), ids=SIZES.keys())
def test_every_figure_is_seen_and_nothing_reaches_beyond_the_page(
    browser, report, width
):
    browser.open(report.page, width=width, mobile=width < 500)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    boxes = browser.run(BOXES, "figure .panel svg.chart")
    assert {figure for figure, *_ in boxes} == {
        figure.get_attribute("id") for figure in browser.all("figure")
    }
    for figure, left, right, height, visible in boxes:
        assert visible, figure
        assert right - left >= min(width / 4, 200), figure
        assert height >= 60, figure
        assert 0 <= left < right <= width, figure


def test_every_figure_has_something_drawn_in_it(browser, report):
    browser.open(report.page)
    script = """
        return [...document.querySelectorAll("figure svg.chart")].map(svg => {
            const inside = "g[data-line] :is(path, circle, rect, line)";
            const boxes = [...svg.querySelectorAll(inside)].map(x => x.getBBox());
            return boxes.filter(box => box.width > 0 || box.height > 0).length;
        })
    """
    drawn = browser.run(script)
    assert len(drawn) >= 8
    assert min(drawn) > 0


def test_the_pointer_is_told_values_in_every_figure(browser, report):
    browser.open(report.page)
    for figure in browser.all("figure"):
        browser.point(hit_of(figure))
        said, name = tip(browser), figure.get_attribute("id")
        assert said is not None, name
        assert re.search(r"\d", said), name
        box = browser.run(
            "return arguments[0].getBoundingClientRect()", browser.one("#tip")
        )
        assert 0 <= box["left"] < box["right"] <= 1280, name
        assert 0 <= box["top"] < box["bottom"] <= 900, name
        browser.point(figure.find_element("css selector", "h3"))
        assert tip(browser) is None, name


def test_the_keyboard_is_told_values_too(browser, report):
    browser.open(report.page)
    hit = hit_of(browser.one("figure[id^='figure-curves']"))
    hit.send_keys(Keys.HOME)  # out of view as yet: the browser scrolls to it
    first = tip(browser)
    hit.send_keys(Keys.ARROW_RIGHT)
    second = tip(browser)
    assert first is not None
    assert second not in (None, first)
    hit.send_keys(Keys.ARROW_LEFT)
    assert tip(browser) == first
    hit.send_keys(Keys.ESCAPE)
    assert tip(browser) is None


def test_every_figure_is_reached_by_the_tab_key(browser, report):
    browser.open(report.page)
    hits = browser.all("figure .hit")
    assert all(hit.get_attribute("tabindex") == "0" for hit in hits)
    assert all(hit.get_attribute("aria-label") for hit in hits)
    reached = set()
    for _ in range(400):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        script = "return document.activeElement.closest('figure')?.id ?? null"
        reached.add(browser.run(script))
        if browser.run("return document.activeElement === document.body"):
            break
    figures = {figure.get_attribute("id") for figure in browser.all("figure")}
    assert figures <= reached


def test_a_finger_is_told_values_too(browser, report):
    browser.open(report.page, width=390, height=844, mobile=True)
    hit = hit_of(browser.one("figure"))
    browser.bring(hit)
    place = browser.run(
        "const b = arguments[0].getBoundingClientRect();"
        "return {x: b.left + b.width / 2, y: b.top + b.height / 2}",
        hit,
    )
    browser.command("Input.dispatchTouchEvent", type="touchStart", touchPoints=[place])
    browser.command("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    assert tip(browser) is not None
    box = browser.one("#tip").rect
    assert 0 <= box["x"]
    assert box["x"] + box["width"] <= 390


def test_a_name_in_the_legend_hides_and_shows_its_line(browser, report):
    browser.open(report.page)
    figure = browser.one("figure[id^='figure-curves']")
    key = figure.find_element("css selector", ".key")
    browser.bring(key)
    number = key.get_attribute("data-line")
    lines = figure.find_elements("css selector", f"g[data-line='{number}']")
    assert any(line.is_displayed() for line in lines)
    key.click()
    assert not any(line.is_displayed() for line in lines)
    key.click()
    assert any(line.is_displayed() for line in lines)


def test_light_and_dark_differ_and_both_can_be_read(browser, report):
    pictures = {}
    for dark in (False, True):
        browser.open(report.page, dark=dark)
        ground, ink = browser.run(COLOURS)
        assert (luminance(ground) < 0.2) == dark
        assert contrast(ground, ink) >= 7
        pictures[dark] = browser.driver.get_screenshot_as_png()
    assert pictures[False] != pictures[True]


def test_the_button_changes_the_colours_and_they_are_kept(browser, report):
    browser.open(report.page)
    before, _ = browser.run(COLOURS)
    browser.one("#theme").click()
    after, _ = browser.run(COLOURS)
    assert abs(luminance(before) - luminance(after)) > 0.5
    browser.driver.refresh()
    assert browser.run(COLOURS)[0] == after


def test_names_are_shown_and_never_become_markup(browser, report):
    browser.open(report.page)
    for figure in browser.all("figure"):
        browser.point(hit_of(figure))
    assert browser.run("return document.documentElement.dataset.owned") is None
    assert browser.all("img") == []
    # The page's own, and the values of every figure: no other script came in.
    own = browser.all("script:not([type='application/json'])")
    assert len(own) == 1
    text = browser.run("return document.body.textContent")
    assert "<img src=x onerror=" in text
    assert browser.console() == []


def test_every_link_leads_somewhere(browser, report):
    browser.open(report.page)
    links = browser.run(
        "return [...document.querySelectorAll('a')].map(a => a.getAttribute('href'))"
    )
    inside = [link[1:] for link in links if link.startswith("#")]
    assert len(links) > len(inside) > 10
    there = set(
        browser.run("return [...document.querySelectorAll('[id]')].map(n => n.id)")
    )
    assert set(inside) <= there
    for link in set(links) - {f"#{name}" for name in inside}:
        assert (report.folder / link).is_file(), link


def test_without_scripts_figures_and_tables_are_there_all_the_same(browser, report):
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(report.page)
    charts = browser.all("figure svg.chart")
    assert len(charts) >= 8
    assert all(chart.is_displayed() for chart in charts)
    assert not browser.one("#tip").is_displayed()


def test_the_page_is_printed_with_light_ground_and_every_figure(browser, report):
    browser.open(report.page, dark=True)
    browser.media(dark=True, kind="print")
    ground, ink = browser.run(COLOURS)
    assert contrast(ground, ink) >= 7
    hidden = browser.run(
        "return [...document.querySelectorAll('#theme, .toc, .hit')]"
        ".every(node => getComputedStyle(node).display === 'none')"
    )
    assert hidden
    browser.media()
    printed = browser.command(
        "Page.printToPDF", printBackground=True, preferCSSPageSize=True
    )
    content = base64.b64decode(printed["data"])
    assert content.startswith(b"%PDF-")
    pages = len(re.findall(rb"/Type\s*/Page\b", content))
    assert 3 <= pages <= 60
