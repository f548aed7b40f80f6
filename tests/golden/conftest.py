import os

import jax
import pytest

from r2r2.compute.compiled import tracing
from r2r2.compute.precision import ComputeOptions

# One recording per family of agents runs with every test, on one of the two paths; everything else
# is a slow test, or runs with R2R2_GOLDEN.
QUICK = {
    "td7_r2r2_wide": "fast",
    "minimalist_phi_phantom": "plain",
    "simbav2_spl_r2r2_cdq0_strong": "fast",
}


@pytest.fixture(params=["float64", "float32"])
def precision(request):
    """The float64 numbers are the real test, the float32 ones a smoke test."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.fixture(params=["plain", "fast"])
def path(request):
    with tracing(ComputeOptions(fast=request.param == "fast")):
        yield request.param


def is_repeated(params):
    """Whether a case is left out: single precision on the plain path, which no run uses."""
    return params.get("path") == "plain" and params.get("precision") == "float32"


def is_quick(params):
    path = QUICK.get(params.get("name", "td7_r2r2_wide"))
    return params.get("precision") != "float32" and params.get("path", path) == path is not None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    golden = [x for x in items if "golden" in x.path.parts]
    params = {x.nodeid: x.callspec.params if hasattr(x, "callspec") else {} for x in golden}
    items[:] = [x for x in items if not is_repeated(params.get(x.nodeid, {}))]
    if "R2R2_GOLDEN" not in os.environ:
        for item in golden:
            if not is_quick(params[item.nodeid]):
                item.add_marker(pytest.mark.slow)
