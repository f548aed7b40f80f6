"""The distributions: reproducible to the byte, the same from a clone and from a sdist."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

BUILD = """
import sys
sys.path.insert(0, "tools")
import build_backend
print(getattr(build_backend, sys.argv[1])(sys.argv[2]))
"""
REQUIREMENTS = """
import sys
sys.path.insert(0, "tools")
import build_backend
print("|".join(getattr(build_backend, f"get_requires_for_build_{sys.argv[1]}")()))
"""


def backend(program, *arguments, folder, umask=0o022):
    """Run a program with the backend in a folder of sources, and return what it prints."""
    environment = {k: v for k, v in os.environ.items() if k != "SOURCE_DATE_EPOCH"}
    answer = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        **{"cwd": folder, "env": environment, "umask": umask},
        **{"capture_output": True, "text": True, "check": False},
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()[-1]


def build(kind, sources, out, umask=0o022):
    """Build a distribution and return its file."""
    out.mkdir(parents=True, exist_ok=True)
    return out / backend(BUILD, f"build_{kind}", out, folder=sources, umask=umask)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Return a function that copies the files of the repository to a new folder."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    def copy(name):
        folder = tmp_path_factory.mktemp(name) / name
        for file in filter(None, listed.stdout.split("\0")):
            if (ROOT / file).is_file():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / file, folder / file)
        return folder

    return copy


def requirements(kind):
    return backend(REQUIREMENTS, kind, folder=ROOT).split("|")


def test_only_wheels_need_mkdocs():
    pytest.importorskip("hatchling")
    names = [x.split("==")[0] for x in requirements("wheel") if "==" in x]
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]["docs"]
    assert {x.split(">=")[0] for x in extra} <= set(names)
    assert "pymdown-extensions" in names
    assert "jax" not in names
    assert "mkdocs" not in " ".join(requirements("editable") + requirements("sdist"))


@pytest.mark.slow
def test_distributions_are_reproducible_and_hold_the_site(clone, tmp_path):
    pytest.importorskip("hatchling")
    first, second = clone("first"), clone("a_longer_name")
    sdist = build("sdist", first, tmp_path / "1")
    wheel = build("wheel", first, tmp_path / "1")
    assert build("sdist", second, tmp_path / "2", 0o077).read_bytes() == sdist.read_bytes()
    assert build("wheel", second, tmp_path / "2", 0o077).read_bytes() == wheel.read_bytes()

    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "3", filter="data")
    (unpacked,) = (tmp_path / "3").iterdir()
    assert build("wheel", unpacked, tmp_path / "4").read_bytes() == wheel.read_bytes()

    assert wheel.stat().st_size < 2.5e6
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert "r2r2/site/index.html" in names
        assert "r2r2/site/search/search_index.json" in names
        assert b"r2r2.train" in archive.read("r2r2/site/api/training/index.html")


@pytest.mark.slow
def test_an_editable_install_builds_no_site(clone, tmp_path):
    pytest.importorskip("hatchling")
    wheel = build("editable", clone("editable"), tmp_path)
    assert not [x for x in zipfile.ZipFile(wheel).namelist() if "site/" in x]
