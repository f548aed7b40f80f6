import pytest

from r2r2.bench.program_cost import kernel_names, kernels_per_update

# The text of a compiled program, reduced to what is counted.
PROGRAM = """HloModule jit_update, is_scheduled=true

%fused_add (param_0: f32[2]) -> f32[2] {
  %param_0 = f32[2]{0} parameter(0)
  ROOT %add = f32[2]{0} add(%param_0, %param_0)
}

%rounds (state: (s32[], f32[2])) -> (s32[], f32[2]) {
  %state = (s32[], f32[2]{0}) parameter(0)
  %one = f32[2]{0} fusion(%state), kind=kLoop, calls=%fused_add
  ROOT %both = (s32[], f32[2]{0}) tuple(%one, %one)
}

%actor (given: (f32[2])) -> (f32[2]) {
  %given = (f32[2]{0}) parameter(0)
  %first = f32[2]{0} fusion(%given), kind=kLoop, calls=%fused_add
  %second = (f32[2]{0}, s8[4]{0}) custom-call(%first), custom_call_target="gemm"
  ROOT %out = (f32[2]{0}) tuple(%first)
}

%nothing (given: (f32[2])) -> (f32[2]) {
  ROOT %given = (f32[2]{0}) parameter(0)
}

%command_buffer (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  %a = f32[2]{0} fusion(%p), kind=kLoop, calls=%fused_add
  ROOT %b = f32[2]{0} fusion(%a), kind=kLoop, calls=%fused_add
}

%longest (carry: (s32[], f32[2])) -> (s32[], f32[2]) {
  %carry = (s32[], f32[2]{0}) parameter(0)
  %x = f32[2]{0} get-tuple-element(%carry), index=1
  %view = f32[2]{0} bitcast(%x)
  %graph = f32[2]{0} call(%view), to_apply=%command_buffer
  %copying = (f32[2]{0}, f32[2]{0}) copy-start(%graph)
  %copied = f32[2]{0} copy-done(%copying)
  %noise = (s32[], f32[2]{0}) while(%carry), body=%rounds, TURNS
  %delayed = (f32[2]{0}) conditional(%flag), branch_computations={%nothing, %actor}
  ROOT %next = (s32[], f32[2]{0}) tuple(%x, %copied)
}

%segment (carry: (s32[], f32[2])) -> (s32[], f32[2]) {
  %carry = (s32[], f32[2]{0}) parameter(0)
  %inner = (s32[], f32[2]{0}) while(%carry), condition=%go, body=%longest
  ROOT %synced = (s32[], f32[2]{0}) fusion(%inner), kind=kLoop, calls=%fused_add
}

ENTRY %main (carry: (s32[], f32[2])) -> (s32[], f32[2]) {
  %carry = (s32[], f32[2]{0}) parameter(0)
  ROOT %all = (s32[], f32[2]{0}) while(%carry), condition=%go, body=%segment
}
""".replace("TURNS", 'backend_config={"known_trip_count":{"n":"5"}}')


@pytest.mark.parametrize(
    ("stride", "period", "expected"),
    [
        (1, 2, 2 + 1 + 5 + 2 / 2),  # graph, copy, rounds, the actor every other time
        (1, 1, 2 + 1 + 5 + 2),
        (2, 2, (2 + 1 + 5 + 2 / 2) / 2),
    ],
)
def test_kernels_are_counted_in_the_update_loop(stride, period, expected):
    assert kernels_per_update(PROGRAM, stride, period) == expected


def test_kernel_names_are_from_the_update_loop():
    renamed = PROGRAM.replace("%second", "%gemm_fusion_dot.2")
    inside = {"a", "b", "copying", "one", "first", "gemm_fusion_dot_2"}
    assert kernel_names(renamed) == inside


def test_program_without_a_loop_has_no_kernels():
    assert kernels_per_update("HloModule jit_nothing\n", 1, 1) is None
    assert kernel_names("HloModule jit_nothing\n") == set()
