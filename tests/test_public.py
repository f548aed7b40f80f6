"""The public names of `r2r2` are documented, each with an example that runs."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import r2r2


def test_every_public_name_has_documentation_with_an_example():
    for name in r2r2.__all__:
        value = getattr(r2r2, name)
        if callable(value):
            # The examples run as doctests, with all other tests.
            assert ">>>" in (value.__doc__ or ""), name


def test_version_is_that_of_the_package():
    assert r2r2.__version__ == version("r2r2")


def test_version_is_the_same_everywhere():
    root = Path(__file__).parents[1]
    cited = re.search(r"^version: (\S+)$", (root / "CITATION.cff").read_text(), re.MULTILINE)
    changes = (root / "CHANGELOG.md").read_text()
    unreleased, newest = re.findall(r"^## \[(.*?)\]", changes, re.MULTILINE)[:2]
    assert (cited[1], unreleased, newest) == (r2r2.__version__, "Unreleased", r2r2.__version__)


def test_changelog_is_grouped_and_dated():
    changes = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (.*)$", changes, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", x) for x in versions[1:])
    groups = set(re.findall(r"^### (.*)$", changes, re.MULTILINE))
    assert groups <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_environments_and_agent_records_do_not_import_jax():
    code = "import sys, r2r2.envs.make; r2r2.AGENTS; print('jax' in sys.modules)"
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout == "False\n"
