"""The documentation site in a real browser."""

import functools
import http.server
import threading

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from r2r2.cli.docs import Handler

pytestmark = pytest.mark.browser

SIZES = {"phone": 400, "tablet": 768, "wide": 1400}
PAGES = ("", "performance/", "design/", "theory/", "api/configs/", "api/agents/", "fidelity/")


class Address(str):
    """An address as `Browser.open` takes it."""

    def as_uri(self):
        return str(self)


@pytest.fixture(scope="module")
def address(site):
    handler = functools.partial(Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def check_page(browser, address, page, size, dark=False):
    """Check the width of a page, its console and its requests."""
    browser.open(Address(address + page), width=SIZES[size], dark=dark)
    width = browser.run("return document.documentElement.scrollWidth")
    assert width <= SIZES[size], page
    assert browser.console() == [], page
    requests = [x for x in browser.requests() if not x.startswith(("data:", "about:"))]
    assert len(requests) > 3
    assert [x for x in requests if not x.startswith(address)] == [], page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_pages_fit_the_window_and_load_only_from_their_server(browser, address, size, dark):
    for page in PAGES:
        check_page(browser, address, page, size, dark)


def test_every_page_fits_a_phone(browser, address, site):
    paths = [path.parent.relative_to(site).as_posix() for path in site.rglob("index.html")]
    pages = sorted(f"{path}/" for path in paths if path not in (".", "example_report"))
    assert len(pages) > 50
    for page in pages:
        check_page(browser, address, page, "phone")


@pytest.mark.parametrize(("dark", "scheme"), [(False, "default"), (True, "slate")])
def test_colors_follow_the_system_and_the_switch(browser, address, dark, scheme):
    browser.open(Address(address), dark=dark)
    read = "return document.body.dataset.mdColorScheme"
    assert browser.run(read) == scheme
    other = "slate" if scheme == "default" else "default"
    for _ in range(2):  # to light, to dark
        labels = [
            x for x in browser.all("form[data-md-component=palette] label") if x.is_displayed()
        ]
        labels[0].click()
        if browser.run(read) == other:
            break
    assert browser.run(read) == other


@pytest.mark.parametrize("size", SIZES)
def test_search_finds_a_page(browser, address, size):
    browser.open(Address(address), width=SIZES[size])
    if SIZES[size] < 900:
        browser.one("label[for=__search]").click()
    field = browser.one("input.md-search__input")
    field.send_keys("variance_hinge")
    results = ".md-search-result__item a.md-search-result__link"
    wait = WebDriverWait(browser.driver, 20)
    wait.until(lambda _: browser.all(results))
    links = [x.get_attribute("href") for x in browser.all(results)]
    assert any(link.startswith(f"{address}api/agents/") for link in links), links
    assert browser.console() == []


def test_code_can_be_copied_and_formulas_are_drawn(browser, address):
    browser.open(Address(address + "api/agents/"))
    WebDriverWait(browser.driver, 20).until(
        lambda _: browser.all("button.md-clipboard, .md-code__button")
    )
    sizes = browser.run(
        "return [...document.querySelectorAll('math[display=block]')]"
        ".map(x => [x.getBoundingClientRect().width, x.getBoundingClientRect().height])"
    )
    assert len(sizes) >= 3
    assert all(width > 50 and height > 20 for width, height in sizes)


@pytest.mark.parametrize("size", ["phone", "wide"])
def test_formulas_are_not_cut_off(browser, address, size):
    for page in ("method/", "api/agents/"):
        browser.open(Address(address + page), width=SIZES[size])
        hidden = browser.run(
            "return [...document.querySelectorAll('math[display=block]')]"
            ".map(x => x.scrollHeight - x.clientHeight)"
        )
        assert len(hidden) >= 3, page
        assert max(hidden) <= 0, page


def test_figures_are_loaded(browser, address):
    for page in ("performance/", "design/", "theory/"):
        browser.open(Address(address + page))
        images = browser.run(
            "return [...document.querySelectorAll('article img')].map(x => x.naturalWidth)"
        )
        assert images, page
        assert all(images), page
