"""The page of a report in a real browser."""

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

COLORS = """
    const style = getComputedStyle(document.body);
    const canvas = document.createElement("canvas").getContext("2d");
    return [style.backgroundColor, style.color].map(color => {
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    })
"""


def luminance(color):
    """Return the relative luminance of WCAG."""
    parts = [c / 255 for c in color]
    linear = [p / 12.92 if p <= 0.04 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def tip(browser):
    """Return the text of the tooltip, or None if it is hidden."""
    shown = browser.one("#tip")
    return shown.text if shown.is_displayed() else None


def first_panel(figure):
    """Return the area of a figure's first panel that reacts to the pointer."""
    return figure.find_element("css selector", ".hit")


def test_the_page_is_complete_and_the_console_empty(browser, report):
    browser.open(report.page)
    assert browser.run("return document.readyState") == "complete"
    assert len(browser.all("figure")) >= 8
    assert len(browser.all(".sheet table")) >= 5
    assert browser.console() == []


def test_only_the_page_itself_is_requested(browser, report):
    browser.open(report.page)
    for figure in browser.all("figure"):
        browser.point(first_panel(figure))
    browser.one("#theme").click()
    requested = [url for url in browser.requests() if not url.startswith("data:")]
    assert requested == [report.page.as_uri()]


def test_requests_and_console_messages_are_detected(browser, report, tmp_path):
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
def test_every_figure_is_visible_within_the_page(browser, report, width):
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


def test_no_figure_is_empty(browser, report):
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


def test_hovering_shows_values_in_every_figure(browser, report):
    browser.open(report.page)
    for figure in browser.all("figure"):
        browser.point(first_panel(figure))
        text, name = tip(browser), figure.get_attribute("id")
        assert text is not None, name
        assert re.search(r"\d", text), name
        box = browser.run("return arguments[0].getBoundingClientRect()", browser.one("#tip"))
        assert 0 <= box["left"] < box["right"] <= 1280, name
        assert 0 <= box["top"] < box["bottom"] <= 900, name
        browser.point(figure.find_element("css selector", "h3"))
        assert tip(browser) is None, name


def test_arrow_keys_show_values(browser, report):
    browser.open(report.page)
    hit = first_panel(browser.one("figure[id^='figure-curves']"))
    hit.send_keys(Keys.HOME)  # the browser scrolls to it
    first = tip(browser)
    hit.send_keys(Keys.ARROW_RIGHT)
    second = tip(browser)
    assert first is not None
    assert second not in (None, first)
    hit.send_keys(Keys.ARROW_LEFT)
    assert tip(browser) == first
    hit.send_keys(Keys.ESCAPE)
    assert tip(browser) is None


def test_the_tab_key_reaches_every_figure(browser, report):
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


def test_touching_shows_values(browser, report):
    browser.open(report.page, width=390, height=844, mobile=True)
    hit = first_panel(browser.one("figure"))
    browser.scroll_to(hit)
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


def test_the_legend_hides_and_shows_lines(browser, report):
    browser.open(report.page)
    figure = browser.one("figure[id^='figure-curves']")
    key = figure.find_element("css selector", ".key")
    browser.scroll_to(key)
    number = key.get_attribute("data-line")
    lines = figure.find_elements("css selector", f"g[data-line='{number}']")
    assert any(line.is_displayed() for line in lines)
    key.click()
    assert not any(line.is_displayed() for line in lines)
    key.click()
    assert any(line.is_displayed() for line in lines)


def test_light_and_dark_themes_are_readable(browser, report):
    pictures = {}
    for dark in (False, True):
        browser.open(report.page, dark=dark)
        ground, ink = browser.run(COLORS)
        assert (luminance(ground) < 0.2) == dark
        assert contrast(ground, ink) >= 7
        pictures[dark] = browser.driver.get_screenshot_as_png()
    assert pictures[False] != pictures[True]


def test_the_button_switches_the_theme_persistently(browser, report):
    browser.open(report.page)
    before, _ = browser.run(COLORS)
    browser.one("#theme").click()
    after, _ = browser.run(COLORS)
    assert abs(luminance(before) - luminance(after)) > 0.5
    browser.driver.refresh()
    assert browser.run(COLORS)[0] == after


def test_names_never_become_markup(browser, report):
    browser.open(report.page)
    for figure in browser.all("figure"):
        browser.point(first_panel(figure))
    assert browser.run("return document.documentElement.dataset.owned") is None
    assert browser.all("img") == []
    # Only the page's own script, besides the values of the figures.
    scripts = browser.all("script:not([type='application/json'])")
    assert len(scripts) == 1
    text = browser.run("return document.body.textContent")
    assert "<img src=x onerror=" in text
    assert browser.console() == []


def test_every_link_has_a_target(browser, report):
    browser.open(report.page)
    links = browser.run(
        "return [...document.querySelectorAll('a')].map(a => a.getAttribute('href'))"
    )
    inside = [link[1:] for link in links if link.startswith("#")]
    assert len(links) > len(inside) > 10
    ids = set(browser.run("return [...document.querySelectorAll('[id]')].map(n => n.id)"))
    assert set(inside) <= ids
    for link in set(links) - {f"#{name}" for name in inside}:
        assert (report.folder / link).is_file(), link


def test_figures_are_shown_without_scripts(browser, report):
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(report.page)
    charts = browser.all("figure svg.chart")
    assert len(charts) >= 8
    assert all(chart.is_displayed() for chart in charts)
    assert not browser.one("#tip").is_displayed()


def test_print_uses_the_light_theme(browser, report):
    browser.open(report.page, dark=True)
    browser.media(dark=True, kind="print")
    ground, ink = browser.run(COLORS)
    assert contrast(ground, ink) >= 7
    hidden = browser.run(
        "return [...document.querySelectorAll('#theme, .toc, .hit')]"
        ".every(node => getComputedStyle(node).display === 'none')"
    )
    assert hidden
    browser.media()
    printed = browser.command("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
    content = base64.b64decode(printed["data"])
    assert content.startswith(b"%PDF-")
    pages = len(re.findall(rb"/Type\s*/Page\b", content))
    assert 3 <= pages <= 60
