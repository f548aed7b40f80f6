import os

import jax
import pytest

LATER = (
    "test_updates[float32",
    "test_updates[float64-minimalist_phi_wide",
    "test_updates[float64-minimalist_phi]",
    "test_updates[float64-simbav2_cdq0_wide",
    "test_updates[float64-simbav2_spl_r2r2_cdq0]",
    "test_updates[float64-td7]",
    "test_updates[float64-td7_wide",
)


@pytest.fixture(params=["float64", "float32"])
def precision(request):
    """The float64 numbers are the real test, the float32 ones a smoke test."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Whole updates in single precision, and half of the others, run with the full set.

    In double precision they agree to nine digits: that is the real test.
    """
    if "R2R2_GOLDEN" in os.environ:
        return
    for item in items:
        if item.name.startswith(LATER):
            item.add_marker(pytest.mark.slow)
