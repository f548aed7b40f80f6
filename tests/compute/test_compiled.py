"""How programs of updates are compiled, and which."""

import jax
import pytest

from r2r2.compute import compiled as programs
from r2r2.compute.compiled import GRAPH, LARGE, CompiledUpdates, compiled, graph_options


class Lowered:
    """What JAX gives to be compiled; its XLA may know of graphs or not."""

    def __init__(self, knows=True):
        self.asked, self.knows = [], knows

    def compile(self, options=None):
        self.asked.append(options)
        if options and not self.knows:
            raise jax.errors.JaxRuntimeError("No such compile option")
        return "program"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(programs.jax, "default_backend", lambda: "gpu")


def test_a_cpu_gets_no_graph():
    lowered = Lowered()
    assert compiled(lowered, GRAPH) == "program"
    assert lowered.asked == [None]


@pytest.mark.usefixtures("gpu")
def test_a_gpu_gets_one():
    lowered = Lowered()
    assert compiled(lowered, GRAPH) == "program"
    assert lowered.asked == [GRAPH]


@pytest.mark.usefixtures("gpu")
def test_an_xla_that_knows_no_graphs_compiles_all_the_same_and_says_so():
    lowered = Lowered(knows=False)
    with pytest.warns(UserWarning, match="not one graph: No such compile option"):
        assert compiled(lowered, GRAPH) == "program"
    assert lowered.asked == [GRAPH, None]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", GRAPH)
def test_what_the_user_has_chosen_stays_so(monkeypatch, name):
    monkeypatch.setenv("XLA_FLAGS", f"--{name}=")
    lowered = Lowered()
    compiled(lowered, GRAPH)
    (asked,) = lowered.asked
    assert asked.keys() == GRAPH.keys() - {name}


@pytest.mark.parametrize(
    ("members", "triton"), [(1, True), (int(LARGE / 2 / 512**3) + 1, False)]
)
def test_large_products_are_left_to_the_library(members, triton):
    like = jax.ShapeDtypeStruct((members, 512, 512), float)
    traced = jax.make_jaxpr(lambda x: x @ x)(like)
    options = graph_options(traced.jaxpr)
    assert options.get("xla_gpu_enable_triton_gemm", True) is triton
    assert options.items() >= GRAPH.items()


@pytest.mark.parametrize("fleet", [1, 3])
def test_what_a_fleet_may_need_is_asked_for_ahead_the_whole_fleet_first(
    monkeypatch, fleet
):
    asked = []
    monkeypatch.setattr(CompiledUpdates, "of", lambda self, *which: asked.append(which))
    CompiledUpdates.__new__(CompiledUpdates).ahead(fleet, 4, 2)
    assert asked[:2] == [(fleet, True, 2), (fleet, True, 1)]
    parts = {(1, False, 2), (1, False, 1), (3, False, 2), (3, False, 1)}
    assert set(asked[2:]) == (parts if fleet == 3 else set())
