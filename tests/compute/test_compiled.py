"""How programs of updates are compiled, which, and how their FLOPs are counted."""

import threading
from concurrent.futures import CancelledError

import jax
import jax.numpy as jnp
import pytest

from r2r2.compute import compiled
from r2r2.compute.compiled import (
    GRAPH,
    LARGE_PRODUCT,
    CompiledUpdates,
    ProgramKey,
    compile_lowered,
    flops_of,
    graph_options,
    largest_product,
    trace_settings,
)
from r2r2.compute.devices import use_device
from r2r2.compute.precision import DEFAULT_OPTIONS

X = jnp.ones((4, 4))
PRODUCT = 2 * 4**3  # operations of X @ X


class Lowered:
    """A lowered program whose XLA may know options of graphs or not."""

    def __init__(self, knows=True):
        self.requested, self.knows = [], knows

    def compile(self, options=None):
        self.requested.append(options)
        if options and not self.knows:
            raise jax.errors.JaxRuntimeError("No such compile option")
        return "program"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(compiled, "platform", lambda: "gpu")


def test_cpu_programs_are_compiled_without_options():
    lowered = Lowered()
    assert compile_lowered(lowered, GRAPH) == "program"
    assert lowered.requested == [None]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("options", "requested"), [(GRAPH, GRAPH), ({}, None)])
def test_gpu_programs_get_the_options(options, requested):
    lowered = Lowered()
    assert compile_lowered(lowered, options) == "program"
    assert lowered.requested == [requested]


@pytest.mark.usefixtures("gpu")
def test_xla_without_graph_options_compiles_with_a_warning():
    lowered = Lowered(knows=False)
    with pytest.warns(UserWarning, match="one GPU graph .*: No such compile option"):
        assert compile_lowered(lowered, GRAPH) == "program"
    assert lowered.requested == [GRAPH, None]


@pytest.mark.usefixtures("gpu")
def test_options_in_xla_flags_take_precedence(monkeypatch):
    first, *others = GRAPH
    monkeypatch.setenv("XLA_FLAGS", f"--{first}=")
    lowered = Lowered()
    compile_lowered(lowered, GRAPH)
    assert lowered.requested[0].keys() == set(others)


@pytest.mark.parametrize(
    ("members", "triton"), [(1, True), (int(LARGE_PRODUCT / 2 / 512**3) + 1, False)]
)
def test_large_products_are_left_to_the_library(members, triton):
    like = jax.ShapeDtypeStruct((members, 512, 512), float)
    options = graph_options(jax.make_jaxpr(lambda x: x @ x)(like).jaxpr)
    assert options.get("xla_gpu_enable_triton_gemm", True) is triton
    assert options.items() >= GRAPH.items()


@pytest.mark.parametrize("fleet", [1, 3])
def test_all_programs_of_a_fleet_are_requested_the_whole_fleet_first(monkeypatch, fleet):
    keys = []
    monkeypatch.setattr(CompiledUpdates, "program", lambda self, key: keys.append(key))
    CompiledUpdates(None, ((), (), ()), DEFAULT_OPTIONS).request(fleet, 4, 2)
    assert keys[:2] == [(fleet, True, 2), (fleet, True, 1)]
    parts = {(1, False, 2), (1, False, 1), (3, False, 2), (3, False, 1)}
    assert set(keys[2:]) == (parts if fleet == 3 else set())


OOM = RuntimeError("out of memory")


@pytest.fixture
def updates(monkeypatch):
    """Programs that are compiled when `release[size]` is set; size 1 at stride 1 fails."""
    release = {size: threading.Event() for size in (1, 2, 3, 5)}

    def compile_key(key, options):
        release[key.size].wait()
        if key == (1, False, 1):
            raise OOM
        return key

    monkeypatch.setattr(CompiledUpdates, "_lowered", lambda self, key: (key, {}))
    monkeypatch.setattr(compiled, "compile_lowered", compile_key)
    updates = CompiledUpdates(None, ((), (), ()), DEFAULT_OPTIONS)
    updates.release = release
    updates.request(5, 4, 2).request_optional(5, 2, 2)
    yield updates
    for event in release.values():
        event.set()
    updates.close()


def test_optional_programs_are_requested_once(updates):
    before = dict(updates._optional)
    assert before
    updates.request_optional(5, 2, 2)
    assert updates._optional == before


def sizes_used(updates, stride):
    return [updates.program_for(k, 2 if k < 3 else 5, stride)[0] for k in (1, 2, 3, 4)]


def test_groups_use_the_smallest_size_that_is_compiled(updates):
    assert sizes_used(updates, 2) == [2, 2, 5, 5]  # nothing is compiled yet: what is required
    for size in (2, 5):
        updates.release[size].set()
    updates.program(ProgramKey(5, False, 1)).result(60)
    assert sizes_used(updates, 1) == [2, 2, 5, 5]
    assert updates.program_for(1, 5, 1)[0] == 2  # smaller than required
    for event in updates.release.values():
        event.set()
    updates.wait()  # the failure of an optional program is no error
    assert sizes_used(updates, 2) == [1, 2, 3, 5]
    assert sizes_used(updates, 1) == [2, 2, 3, 5]  # the smallest one failed
    assert updates.program_for(3, 5, 2)[1].result() == (3, False, 2)


def test_optional_programs_are_compiled_one_at_a_time_after_the_others(updates):
    assert not any(program.done() for program in updates._optional.values())
    for size in (1, 3):
        updates.release[size].set()
    with pytest.raises(TimeoutError):
        updates._optional[1, False, 2].result(0.2)
    for size in (2, 5):
        updates.release[size].set()
    assert updates._optional[1, False, 2].result(60) == (1, False, 2)


def test_closing_drops_optional_programs(updates, monkeypatch):
    first = updates._optional[1, False, 2]
    updates.close()
    for event in updates.release.values():
        event.set()
    with pytest.raises(CancelledError):
        first.result(60)
    assert all(program.cancelled() for program in list(updates._optional.values())[1:])


@pytest.mark.parametrize("partitionable", [True, False])
@pytest.mark.parametrize("x64", [True, False])
def test_optional_programs_are_traced_with_the_settings_of_the_caller(
    monkeypatch, x64, partitionable
):
    seen, requested, cpu = [], threading.Event(), jax.devices("cpu")[0]

    def lower(*_):
        seen.append((trace_settings(), jax.config.jax_default_device))
        return None, {}

    monkeypatch.setattr(CompiledUpdates, "_lowered", lower)
    monkeypatch.setattr(compiled, "compile_lowered", lambda *_: None)
    monkeypatch.setattr(compiled, "wait_until_done", lambda _: requested.wait())
    updates = CompiledUpdates(None, ((), (), ()), DEFAULT_OPTIONS)
    with use_device("cpu"), jax.enable_x64(x64), jax.threefry_partitionable(partitionable):
        updates.request_optional(3, 4, 1)
    requested.set()  # when the settings of the caller hold no longer
    for program in updates._optional.values():
        program.result(60)
    updates.close()
    assert seen == [((x64, partitionable, cpu), cpu)] * 2


def flops(function, *arguments):
    return flops_of(jax.make_jaxpr(function)(*arguments).jaxpr)


def test_flops_of_a_loop_of_known_length():
    def known(x):
        return jax.lax.scan(lambda c, _: (c @ c, None), x, length=5)[0]

    assert flops(known, X) == 5 * PRODUCT


def test_flops_of_a_loop_of_unknown_length_count_once():
    def unknown(x, count):
        return jax.lax.fori_loop(0, count, lambda _, c: c @ c, x)

    assert flops(unknown, X, 7) == PRODUCT


def test_flops_of_branches_are_those_of_the_longer_one():
    def either(x, flag):
        return jax.lax.cond(flag, lambda c: c @ c @ c, lambda c: c @ c, x)

    assert flops(either, X, True) == 2 * PRODUCT


def test_flops_of_unused_results_are_not_counted():
    def wasteful(x):
        jnp.dot(x, x)
        return x @ x

    assert flops(wasteful, X) == PRODUCT


def test_flops_inside_jit_and_of_batches_are_counted():
    batch = jnp.ones((3, 4, 4))
    assert flops(jax.jit(lambda x: x @ x), batch) == 3 * PRODUCT


def test_largest_product_is_found_inside_loops_and_branches():
    def nested(x, flag):
        small = jnp.ones((2, 2)) @ jnp.ones((2, 2))
        large = jax.lax.cond(flag, lambda c: c, lambda c: c @ c, x)
        return jax.lax.fori_loop(0, 3, lambda _, c: c + 1, large), small

    traced = jax.make_jaxpr(nested)(X, True).jaxpr
    assert largest_product(traced) == PRODUCT
    assert largest_product(jax.make_jaxpr(jnp.sin)(X).jaxpr) == 0
