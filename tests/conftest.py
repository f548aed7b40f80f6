import hypothesis
import jax
import pytest

# It holds no doctests, and cannot be told from those of the folders beside it.
collect_ignore = ["conftest.py"]

# Examples wait for the compiler and for other tests: their time says nothing.
# The same examples each time; `--hypothesis-profile explore` draws others.
hypothesis.settings.register_profile("explore", deadline=None, derandomize=False)
hypothesis.settings.register_profile("r2r2", deadline=None, derandomize=True)
hypothesis.settings.load_profile("r2r2")


@pytest.fixture(autouse=True)
def no_silent_broadcasting():
    with jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(scope="module", autouse=True)
def compiled_hastily(request):
    """Most programs of tests run for a moment, and take long to be optimised.

    Those of the golden set and of the slow tests are compiled as users' are.
    """
    whole = not request.config.option.markexpr.startswith("not slow")
    real = whole or "golden" in request.path.parts
    jax.config.update("jax_disable_most_optimizations", not real)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory):
    """Programs that several tests run are compiled by the first of them."""
    folder = str(tmp_path_factory.mktemp("xla"))
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
