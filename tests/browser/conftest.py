"""A real browser and a report for it."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from r2r2.cli.main import main
from synthetic_runs import make_csv, make_run, rising

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# Works as root and without network access.
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
    "--force-prefers-reduced-motion",
    # No host but this machine can be resolved: every request to the network fails.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)

# The page handles a scroll event in the next frame and then hides the values: a pointer
# that moves before that would lose its own values.
SCROLL_TO = """
    const [node, done] = arguments;
    node.scrollIntoView({block: "center"});
    requestAnimationFrame(() => requestAnimationFrame(() => done()));
"""

# Names that would run a script, or end the one that they are in, if used as markup.
ATTACK = "document.documentElement.dataset.owned=1"
HOSTILE_RUN = f"<img src=x onerror={ATTACK}>"
HOSTILE_METHOD = f'</script></text><img src=x onerror="{ATTACK}">&\'_utd1'


class Report(NamedTuple):
    """A report on disk."""

    folder: Path

    @property
    def page(self):
        return self.folder / "index.html"


class Browser:
    """Chromium, with its console messages and requests since the last page."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, page, width=1280, height=900, dark=False, mobile=False):
        """Open a page in a window of the given size."""
        self.driver.get("about:blank")
        self.driver.get_log("browser"), self.driver.get_log("performance")
        self.resize(width, height, mobile)
        self.media(dark=dark)
        self.driver.get(page.as_uri())

    def resize(self, width, height=900, mobile=False):
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.command("Emulation.setDeviceMetricsOverride", **size, mobile=mobile)

    def media(self, dark=False, kind=""):
        scheme = "dark" if dark else "light"
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.command("Emulation.setEmulatedMedia", media=kind, features=[feature])

    def command(self, name, **arguments):
        """Send a command of the Chrome DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def run(self, script, *arguments):
        """Run a script in the page and return its result."""
        return self.driver.execute_script(script, *arguments)

    def scroll_to(self, node):
        """Scroll to a node and wait until the page has handled the event."""
        self.driver.execute_async_script(SCROLL_TO, node)

    def point(self, node):
        """Scroll to a node and move the pointer to it."""
        self.scroll_to(node)
        ActionChains(self.driver).move_to_element(node).perform()

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        return self.driver.find_element("css selector", selector)

    def console(self):
        """Return the messages of the console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self):
        """Return the addresses of all requests."""
        log = [json.loads(x["message"]) for x in self.driver.get_log("performance")]
        events = [entry["message"] for entry in log]
        sent = [e["params"] for e in events if e["method"].endswith("WillBeSent")]
        return [params["request"]["url"] for params in sent if "request" in params]


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    service = shutil.which("chromedriver")
    if browser is None or service is None:
        pytest.skip("Chromium is missing; apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    profile = tmp_path_factory.mktemp("profile")
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    driver = Chrome(options, Service(service))
    yield driver
    driver.quit()


@pytest.fixture
def browser(driver):
    yield Browser(driver)
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    driver.execute_script("localStorage.clear()")


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """Return a report with every kind of figure and with hostile names."""
    root = tmp_path_factory.mktemp("study")
    for agent in ("td7", "td7+r2r2"):
        for utd in (1, 10):
            path = root / "runs" / f"{agent}_utd{utd}"
            fields = {"agent": agent, "utd": utd, "env": "Hopper-v5,Ant-v5", "seeds": 3}
            make_run(path, rising(100.0 + 10 * utd), **fields)
    ablated = {"agent": "td7+r2r2", "env": "Hopper-v5", "seeds": 3, "lambda_rr": 0}
    make_run(root / "runs" / "ablation", rising(80.0), **ablated)
    make_run(root / "runs" / HOSTILE_RUN, rising(90.0), agent="minphi", seeds=2)
    other = {(HOSTILE_METHOD, "Hopper-v5", 0): [1.0, 2.0, 3.0]}
    files = [root / "runs", make_csv(root / "other.csv", other)]
    folder = root / "report"
    assert main(["report", *map(str, files), "--out", str(folder)]) == 0
    return Report(folder)
