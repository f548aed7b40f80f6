"""Make the pictures of docs/figures from commands that are run for them.

    python docs/example/screenshots.py            # all pictures
    python docs/example/screenshots.py doctor.svg # only these

Trains four small fleets in a temporary folder, which takes about five minutes on two busy cores.
Each command of a terminal picture runs in a pseudo-terminal, and its output is drawn as it is.
Run it in a clean checkout: the pictures show the commit.
The pages of the report are photographed in Chromium (Debian's `chromium` and
`chromium-driver`).
"""

import codecs
import contextlib
import copy
import fcntl
import io
import os
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

FIGURES = Path(__file__).parents[1] / "figures"
MAX_BYTES = 1_500_000  # of all pictures: they are committed

# The last run is the one in the pictures.
TRAIN = "r2r2 train --quick --seeds 3 --steps 6_000"
STUDY = (
    f"{TRAIN} --agent td7 --utd 1",
    f"{TRAIN} --agent td7+r2r2 --utd 1",
    f"{TRAIN} --agent td7",
    TRAIN,
)
PAGES = {"report-light.png": False, "report-dark.png": True}  # whether it is dark
COMMANDS = {"doctor.svg": "r2r2 doctor", "agents.svg": "r2r2 list agents"}
PICTURES = ("train.svg", "watch.svg", *COMMANDS, *PAGES)

WIDTH, HEIGHT, WATCH_HEIGHT = 100, 60, 50  # of terminals, in characters
PAGE_WIDTH, PAGE_HEIGHT = 1280, 1380  # pixels
SETTLED_SECONDS = 0.15  # without output, after which a frame is complete
TIMEOUT = 1_200.0  # seconds until a command must have shown what it is waited for


def main(names: list[str]) -> None:
    """Make the named pictures, or all; the study first, as pictures change the checkout."""
    # A background job of a shell ignores Ctrl-C, and the commands of the pictures would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if unknown := set(names) - set(PICTURES):
        sys.exit(f"unknown pictures {sorted(unknown)}; expected some of {', '.join(PICTURES)}")
    wanted = set(names or PICTURES)
    FIGURES.mkdir(exist_ok=True)
    if wanted - set(COMMANDS):
        with tempfile.TemporaryDirectory() as folder:
            make_study(Path(folder), wanted)
    for name in wanted & set(COMMANDS):
        with Terminal(COMMANDS[name], Path.cwd()) as terminal:
            save_terminal(name, terminal.finish())
    size = sum((FIGURES / name).stat().st_size for name in PICTURES if (FIGURES / name).exists())
    print(f"{FIGURES}: {size / 1e6:.2f} MB")
    if size > MAX_BYTES:
        sys.exit(f"the pictures are larger than {MAX_BYTES / 1e6} MB")


def make_study(folder: Path, wanted: set[str]) -> None:
    """Train the runs and save the wanted pictures of training, watching and the report."""
    for command in STUDY[:-1]:
        with Terminal(command, folder) as terminal:
            terminal.finish()
    with (
        Terminal(STUDY[-1], folder) as training,
        Terminal("r2r2 watch", folder, WATCH_HEIGHT, prompt=False) as watching,
    ):
        frames = {
            "train.svg": training.wait(lambda text: percent(text) >= 70),
            "watch.svg": watching.wait(lambda text: percent(text) >= 80),
        }
        watching.interrupt()
        watching.finish()
        training.finish()
    for name in wanted & set(frames):
        save_terminal(name, frames[name])
    if pages := {name: dark for name, dark in PAGES.items() if name in wanted}:
        with Terminal("r2r2 report runs", folder) as terminal:
            terminal.finish()
        save_pages(folder / "report" / "index.html", pages)


def percent(text: str) -> int:
    """Return the progress that a screen shows, or 0 without an estimate of the time left."""
    shown = re.search(r" (\d+)% ETA \d", text)
    return int(shown[1]) if shown else 0


# A terminal


class Cell(NamedTuple):
    """A character and the codes of its style."""

    character: str
    style: str


CONTROL = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b[^\[]|([\r\n])|([^\x1b\r\n])")


class Screen:
    """What a terminal shows: the cursor movements and erasures that rich uses."""

    def __init__(self, width: int, height: int):
        self._width, self._height = width, height
        self._rows: list[list[Cell]] = [[]]
        self._row = self._column = 0
        self._style, self._pending = "", ""

    def feed(self, output: str) -> None:
        """Draw the output of a program."""
        output, end = self._pending + output, 0
        for found in CONTROL.finditer(output):
            if found.start() != end:
                break
            end = found.end()
            arguments, command, line, character = found.groups()
            if character:
                self._write(character)
            elif line:
                self._break_line(line)
            elif command:
                self._control(command, arguments)
        self._pending = output[end:]  # an escape sequence of which the end is not there yet

    def rows(self) -> list[Text]:
        """Return the rows, without empty ones at the end."""
        rows = [Text.from_ansi("".join(map(_with_style, row))) for row in self._rows]
        while rows and not rows[-1].plain.strip():
            rows.pop()
        return rows

    def __str__(self) -> str:
        return "\n".join(row.plain for row in self.rows())

    def _write(self, character: str) -> None:
        if self._column == self._width:
            self._break_line("\r")
            self._break_line("\n")
        row = self._rows[self._row]
        row += [Cell(" ", "")] * (self._column + 1 - len(row))
        row[self._column] = Cell(character, self._style)
        self._column += 1

    def _break_line(self, line: str) -> None:
        if line == "\r":
            self._column = 0
            return
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append([])
        if len(self._rows) > self._height:
            del self._rows[0]
            self._row -= 1

    def _control(self, command: str, arguments: str) -> None:
        number = int(arguments) if arguments.isdecimal() else 0
        if command == "m":
            self._style = "" if arguments in ("", "0") else f"{self._style}\x1b[{arguments}m"
        elif command == "A":
            self._row = max(self._row - max(number, 1), 0)
        elif command == "K":
            del self._rows[self._row][0 if number == 2 else self._column :]
        elif command == "H":
            self._row = self._column = 0
        elif command == "J" or (command == "h" and arguments == "?1049"):
            self._rows, self._row, self._column = [[]], 0, 0
        elif command not in "hl":
            raise ValueError(f"unknown control sequence {arguments + command!r}")


def _with_style(cell: Cell) -> str:
    return f"\x1b[0m{cell.style}{cell.character}"


class Terminal:
    """A command that runs in a pseudo-terminal."""

    def __init__(self, command: str, folder: Path, height: int = HEIGHT, prompt: bool = True):
        self._command, self._screen = command, Screen(WIDTH, height)
        self._changed, self._lock = time.monotonic(), threading.Lock()
        if prompt:
            self._screen.feed(f"\x1b[1;32m$\x1b[0m {command}\r\n")
        self._terminal, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", height, WIDTH, 0, 0))
        program, *arguments = shlex.split(command)
        path = Path(sys.executable).with_name(program)
        environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self._process = subprocess.Popen(
            [path, *arguments], stdin=end, stdout=end, stderr=end, cwd=folder, env=environment
        )
        os.close(end)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait(self, is_ready: Callable[[str], bool]) -> Screen:
        """Return the first complete frame whose text is accepted."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline and self._process.poll() is None:
            time.sleep(0.05)
            with self._lock:
                settled = time.monotonic() - self._changed > SETTLED_SECONDS
                if settled and is_ready(str(self._screen)):
                    return copy.deepcopy(self._screen)
        sys.exit(f"{self._command}: ended without the expected frame:\n{self._screen}")

    def finish(self) -> Screen:
        """Wait until the command has ended and return what it left on the screen."""
        self._process.wait(TIMEOUT)
        self._reader.join()
        if self._process.returncode:
            sys.exit(f"{self._command}: exit code {self._process.returncode}:\n{self._screen}")
        return self._screen

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        os.close(self._terminal)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the last process has closed its end
            decoder = codecs.getincrementaldecoder("utf-8")()
            while output := os.read(self._terminal, 65_536):
                with self._lock:
                    self._screen.feed(decoder.decode(output))
                    self._changed = time.monotonic()


# Pictures

THEME = TerminalTheme(
    (22, 27, 34),
    (214, 220, 228),
    [
        (72, 79, 88),
        (255, 123, 114),
        (63, 185, 80),
        (210, 153, 34),
        (88, 166, 255),
        (188, 140, 255),
        (57, 197, 207),
        (177, 186, 196),
    ],
    [
        (110, 118, 129),
        (255, 161, 152),
        (86, 211, 100),
        (227, 179, 65),
        (121, 192, 255),
        (210, 168, 255),
        (86, 212, 221),
        (240, 246, 252),
    ],
)

# rich's own format loads a font from the network.
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace;
 font-size: {char_height}px; line-height: {line_height}px; white-space: pre; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g>
</svg>
"""


def save_terminal(name: str, screen: Screen) -> None:
    """Save a screen as an SVG file."""
    (FIGURES / name).write_text(draw_terminal(name.removesuffix(".svg"), screen))
    print(f"{name}:\n{screen}\n", flush=True)


def draw_terminal(name: str, screen: Screen) -> str:
    """Return a screen as SVG."""
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for row in screen.rows():
        console.print(row, no_wrap=True, crop=True, highlight=False)
    return console.export_svg(title="", theme=THEME, code_format=SVG, unique_id=name)


def save_pages(page: Path, pages: dict[str, bool]) -> None:
    """Save pictures of the beginning of a page, in its light and dark colours."""
    from PIL import Image

    with chromium() as driver:
        size = {"width": PAGE_WIDTH, "height": PAGE_HEIGHT, "deviceScaleFactor": 1}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size | {"mobile": False})
        for name, dark in pages.items():
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
            driver.get(page.as_uri())
            picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
            colours = picture.quantize(256, dither=Image.Dither.NONE)
            colours.save(FIGURES / name, optimize=True)
            print(f"{name}: {(FIGURES / name).stat().st_size / 1e3:.0f} kB", flush=True)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium without a display and without access to a network."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    with tempfile.TemporaryDirectory() as profile:
        for argument in (*CHROMIUM, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        driver = Chrome(options, Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


CHROMIUM = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the commands, too
    main(sys.argv[1:])
