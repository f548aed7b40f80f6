"""What `import r2r2` offers is documented, each with an example that runs."""

import subprocess
import sys

import r2r2


def test_every_public_name_is_there_and_documented_with_an_example():
    for name in r2r2.__all__:
        offered = getattr(r2r2, name)
        if callable(offered):
            # The examples run as doctests, with all other tests.
            assert ">>>" in (offered.__doc__ or ""), name


def test_the_version_is_the_packages():
    from importlib.metadata import version

    assert r2r2.__version__ == version("r2r2")


def test_environments_do_without_jax():
    code = "import sys, r2r2.envs.make; print('jax' in sys.modules)"
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
