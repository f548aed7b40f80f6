"""What tests and the examples of docstrings share."""

import os

import jax
import pytest

# They have no doctests, and one name.
collect_ignore_glob = ["*/conftest.py"]


@pytest.fixture(autouse=True)
def no_silent_broadcasting():
    """Raise an error where JAX would broadcast arrays of different ranks."""
    with jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(scope="module", autouse=True)
def compile_without_optimization(request):
    """Compile most programs without optimization, which takes longer than they run.

    Programs of the golden set, and of slow tests in modules that are marked `optimized`, are
    compiled as for users.
    """
    slow_tests = not request.config.option.markexpr.startswith("not slow")
    as_for_users = slow_tests and request.node.get_closest_marker("optimized") is not None
    optimized = as_for_users or "golden" in request.path.parts
    jax.config.update("jax_disable_most_optimizations", not optimized)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory):
    """Cache compiled programs, so that each is compiled once for all tests.

    The processes of pytest-xdist share the folder, and so do all calls of pytest with the same
    R2R2_TEST_CACHE. With a maximal size, JAX locks it.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = os.environ.get("R2R2_TEST_CACHE") or str(folder / "xla")
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_compilation_cache_max_size", 2**33)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
