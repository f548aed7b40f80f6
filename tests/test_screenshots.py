"""The pictures of docs, and the script that makes those of real output."""

import importlib.util
import re
import struct
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "docs" / "example" / "screenshots.py"
FIGURES = ROOT / "docs" / "figures"
PICTURES = sorted(
    path
    for folder in ("assets", "figures", "theory")
    for path in (ROOT / "docs" / folder).iterdir()
    if path.suffix in (".svg", ".png")
)
# Other files of docs/figures: of docs/example/readme_figure.py, and written by hand.
OTHERS = {f"learning_curves.{x}" for x in ("svg", "png", "csv")}
OTHERS |= {"one-run.svg", "training-processes.svg"}
PNG_PARTS = {b"IHDR", b"PLTE", b"IDAT", b"IEND"}


@pytest.fixture(scope="module")
def screenshots():
    spec = importlib.util.spec_from_file_location("screenshots", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def png_chunks(data):
    """Yield the types of the parts of a PNG file; texts and profiles would be among them."""
    place = 8
    while place < len(data):
        (size,) = struct.unpack(">I", data[place : place + 4])
        yield data[place + 4 : place + 8]
        place += size + 12


def test_the_script_makes_all_pictures_and_no_others(screenshots):
    assert not OTHERS & set(screenshots.PICTURES)
    there = {path.name: path.stat().st_size for path in FIGURES.iterdir()}
    assert set(there) - OTHERS == set(screenshots.PICTURES)
    assert OTHERS <= set(there)
    assert sum(there.values()) < screenshots.MAX_BYTES


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_pictures_load_nothing(path):
    if path.suffix == ".png":
        assert set(png_chunks(path.read_bytes())) <= PNG_PARTS
        return
    text = re.sub(r'xmlns(:xlink)?="http://www.w3.org/(2000/svg|1999/xlink)"', "", path.read_text())
    if path.parent.name == "theory":  # output of `r2r2 theory`; browsers do not fetch these
        text = re.sub(r"<!DOCTYPE.*?>|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    assert not re.findall(r'https?:|//|@import|@font-face|<image|<script|href=(?!"#)', text)
    assert all(address.startswith("#") for address in re.findall(r"url\(([^)]*)", text))


def test_a_drawn_terminal_loads_nothing(screenshots, tmp_path, monkeypatch):
    monkeypatch.setattr(screenshots, "FIGURES", tmp_path)
    screen = screenshots.Screen(100, 5)
    screen.feed("\x1b[1;32m$\x1b[0m <r2r2> & more")
    screenshots.save_terminal("a.svg", screen)
    test_pictures_load_nothing(tmp_path / "a.svg")
    assert "&lt;r2r2&gt;" in (tmp_path / "a.svg").read_text()


def shown(screenshots, *output, width=10, height=4):
    screen = screenshots.Screen(width, height)
    for text in output:
        screen.feed(text)
    return str(screen).split("\n")


def test_a_screen_follows_the_cursor(screenshots):
    frames = ("one\r\ntwo", "\r\x1b[2K\x1b[1A\x1b[2K", "1\r\n\x1b[?25l2\x1b[?25h")
    assert shown(screenshots, *frames) == ["1", "2"]
    assert shown(screenshots, "old text\r\x1b[3mnew\x1b[0m\x1b[K") == ["new"]
    assert shown(screenshots, "ab\x1b[?1049hcd\x1b[Hx\x1b[2Jef") == ["ef"]


def test_a_screen_wraps_and_scrolls(screenshots):
    assert shown(screenshots, "0123456789ab") == ["0123456789", "ab"]
    assert shown(screenshots, "0123456789\r\nab") == ["0123456789", "ab"]
    assert shown(screenshots, "".join(f"{n}\r\n" for n in range(6))) == ["3", "4", "5"]


def test_a_screen_keeps_styles_and_parts_of_sequences(screenshots):
    screen = screenshots.Screen(10, 4)
    for part in ("\x1b[1", ";31mred\x1b", "[0m no"):
        screen.feed(part)
    (row,) = screen.rows()
    assert row.plain == "red no"
    assert [(span.end, str(span.style)) for span in row.spans] == [
        (n, "bold color(1)") for n in (1, 2, 3)
    ]


def test_unknown_sequences_are_errors_and_not_pictures(screenshots):
    with pytest.raises(ValueError, match="unknown control sequence"):
        shown(screenshots, "\x1b[5S")


def test_the_text_of_a_command_is_what_its_terminal_shows(screenshots, tmp_path):
    with screenshots.Terminal("python -c 'print(6 * 7)'", tmp_path) as terminal:
        assert str(terminal.finish()).split("\n") == ["$ python -c 'print(6 * 7)'", "42"]


def test_a_command_that_fails_gives_no_picture(screenshots, tmp_path):
    with screenshots.Terminal("python -c 'raise SystemExit(3)'", tmp_path) as terminal:
        with pytest.raises(SystemExit, match="exit code 3"):
            terminal.finish()
    with screenshots.Terminal("python -c 'print(1)'", tmp_path) as terminal:
        with pytest.raises(SystemExit, match="ended without the expected frame"):
            terminal.wait(lambda _: False)
