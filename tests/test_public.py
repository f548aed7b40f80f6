"""The public names of `r2r2` are documented, each with an example that runs."""

import subprocess
import sys
from importlib.metadata import version

import r2r2


def test_every_public_name_has_documentation_with_an_example():
    for name in r2r2.__all__:
        value = getattr(r2r2, name)
        if callable(value):
            # The examples run as doctests, with all other tests.
            assert ">>>" in (value.__doc__ or ""), name


def test_version_is_that_of_the_package():
    assert r2r2.__version__ == version("r2r2")


def test_environments_and_agent_records_do_not_import_jax():
    code = "import sys, r2r2.envs.make; r2r2.AGENTS; print('jax' in sys.modules)"
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout == "False\n"
