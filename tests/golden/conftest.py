import jax
import pytest


@pytest.fixture(params=["float64", "float32"])
def precision(request):
    """The float64 numbers are the real test, the float32 ones a smoke test."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param
