"""Any operation that policies may contain, the files of exports, and bad input."""

import json
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runners import RUNNERS, load_module

from policy_parts import NESTED, real_observations, sample
from r2r2.compute.policy_tracing import trace
from r2r2.config.errors import UserError
from r2r2.export import onnx_format
from r2r2.export.card import model_card
from r2r2.export.export import FORMATS, export_policy
from r2r2.export.measure import MeasurementError, action_seconds
from r2r2.export.simplify import simplify
from r2r2.policy.batching import program_values
from r2r2.policy.policy import Policy, PolicyParts
from r2r2.policy.spaces import ObservationPart, TaskSpaces

W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
# Functions of parameters [4, 3] and an observation [4] with three numbers.
FUNCTIONS = {
    "reductions": lambda p, x: (jnp.max(x) * p).min(axis=0) + jnp.outer(x, x[:3]).max(axis=0),
    "joined": lambda p, x: jnp.concatenate([p[:2], jnp.outer(x, x)[:2, :3] / 3]).T[:, 1],
    "right product": lambda p, x: p.T @ jnp.tanh(x),
    "both sides": lambda p, x: (jnp.outer(x, x + 1) @ x)[1:],
    "tensor product": lambda p, x: jnp.tensordot(p, jnp.outer(x, x), ((0,), (1,)))[:, 2],
    "repeated": lambda p, x: jnp.broadcast_to(x[:, None] - p, (2, 4, 3)).sum(axis=(0, 1)),
    "moved": lambda p, x: jnp.clip(x.reshape(2, 2).T, -0.5, 0.5).reshape(-1)[:3],
    "strides": lambda p, x: jnp.concatenate([x[::2], -x[1:2]]),
    "softmax": lambda p, x: (jax.nn.softmax(x) ** 3 % 0.2)[:3],
    "choices": lambda p, x: jnp.where((x > 0) & ~(x > 1) | (x == 0), jnp.sign(x), jnp.abs(x))[1:],
    "smooth": lambda p, x: (jax.nn.silu(x) + jnp.sin(x) * jnp.cos(x) - jax.nn.elu(x))[:3],
    "roots": lambda p, x: (jax.lax.rsqrt(jnp.square(x) + 1) + jnp.sqrt(jnp.abs(x)))[:3],
    "logarithms": lambda p, x: (jnp.log1p(x * x) + jnp.log(x * x + 2) + jnp.exp(-x))[:3],
    "powers": lambda p, x: (jnp.abs(x) ** 1.7 + jnp.floor(x) * x**-1)[:3],
    "integers": lambda p, x: (jnp.maximum(x.astype(jnp.int32), 1) // 2 != 0).astype(x.dtype)[:3],
    "constant": lambda p, x: p[1] / 2,
}
SLOW, OTHERS = pytest.mark.slow, ("td7-ln", "minphi", "simbav2-spl")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def parts_of(function, size=4):
    """Return a policy whose actions are the function's, by bounds that none of them reaches."""
    with jax.numpy_rank_promotion("allow"):
        scaled = trace(lambda p, x: function(p, x) / 100, W, np.zeros(size, np.float32))
    program, bounds = scaled, np.full(3, 100.0)
    spaces = TaskSpaces((ObservationPart((), (size,)),), -bounds, bounds, "float64")
    return PolicyParts(program, (W,), "float32", spaces)


def expected_actions(function, obs):
    with jax.numpy_rank_promotion("allow"):
        return np.asarray(jax.vmap(function, (None, 0))(W, obs.astype(np.float32)))


@pytest.mark.parametrize(
    "name",
    ["numpy", "onnx", *(pytest.param(x, marks=pytest.mark.slow) for x in ("c", "stablehlo"))],
)
def test_formats_compute_every_operation(name, tmp_path):
    if name == "c" and shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    obs = np.random.default_rng(0).normal(size=(6, 4)) * 1.5
    for number, (label, function) in enumerate(FUNCTIONS.items()):
        parts = parts_of(function)
        out = export_policy(parts, name, tmp_path / str(number))
        actual, expected = RUNNERS[name](out, parts)(obs), expected_actions(function, obs)
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5, err_msg=label)


@pytest.mark.parametrize("name", [*FORMATS, "loaded"])
def test_bad_input_gives_nan_even_if_the_network_would_hide_it(name, tmp_path):
    if name == "c" and shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    parts = parts_of(lambda p, x: jnp.where(x[:3] > 0, 50.0, -50.0))
    run = Policy(parts)
    if name != "loaded":
        run = RUNNERS[name](export_policy(parts, name, tmp_path / "policy"), parts)
    bad = [np.nan, np.inf, -np.inf, 1e39]  # in the last entry, which the network ignores
    actions = run(np.array([[1.0, -1.0, 2.0, x] for x in [0.0, *bad]]))
    np.testing.assert_allclose(actions[0], [50, -50, 50], rtol=1e-6)
    assert np.isnan(actions[1:]).all()


@pytest.mark.parametrize("agent", ["td7", *(pytest.param(x, marks=SLOW) for x in OTHERS)])
def test_simplified_programs_compute_the_same_bits(agent):
    parts, obs = sample(agent).parts, real_observations()[0].astype(np.float32)
    simple = simplify(parts)
    assert len(simple.operations) < len(parts.program.operations)
    ours = program_values(simple, (), [obs])[simple.output]
    theirs = program_values(parts.program, parts.parameters, [obs])[parts.program.output]
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["and", "or", "not"])
def test_logical_operations_of_integers_are_rejected(name):
    functions = {"and": lambda x: x & 6, "or": lambda x: x | 6, "not": lambda x: ~x}

    def function(p, x):
        return functions[name](x.astype(jnp.int32)).astype(x.dtype)[:3]

    with pytest.raises(NotImplementedError, match=f"'{name}' of integers is not supported"):
        parts_of(function)


def test_a_model_that_the_checker_rejects_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(onnx_format.SAME, "tanh", "Tangent")
    with pytest.raises(UserError, match=r"format 'onnx': .* not a valid model: .*Tangent"):
        export_policy(parts_of(FUNCTIONS["right product"]), "onnx", tmp_path / "policy")
    assert list(tmp_path.iterdir()) == []


def one_part(path, shape, size=4):
    """Return a policy with one part in its observation."""
    parts = parts_of(lambda p, x: x[:1] * p[1], size)
    return parts._replace(spaces=parts.spaces._replace(observation=(ObservationPart(path, shape),)))


@pytest.mark.parametrize("path", [("goal",), pytest.param((0,), marks=SLOW)])
def test_a_dict_or_tuple_with_one_box_runs_in_every_format(path, tmp_path):
    parts, obs = one_part(path, (4,)), np.arange(4.0)[None] + 1
    out = export_policy(parts, "all", tmp_path / "policy")
    expected = Policy(parts)(obs)
    for name in FORMATS:
        if name != "c" or shutil.which("cc"):
            np.testing.assert_allclose(RUNNERS[name](out, parts)(obs), expected, rtol=1e-5)
            assert action_seconds(out, parts, name) > 0
    code = re.search(
        r"```python\n(import numpy.*?)```", (out / "README.md").read_text(), re.DOTALL
    )[1]
    command = [sys.executable, "-c", code.replace("[...]", "[[1.0, 2.0, 3.0, 4.0]]")]
    subprocess.run(command, cwd=out, check=True)


def test_keys_with_quotes_and_fences_do_not_break_the_card():
    key = "a\"b'c\n```\nd`"
    card = model_card(one_part((key,), (4,)), list(FORMATS))
    assert len(re.findall(r"^```", card, re.MULTILINE)) == 8
    snippet = re.search(r"^inputs = (\{.*?^\})", card, re.MULTILINE | re.DOTALL)[1]
    assert list(eval(snippet.replace("[...]", "[0.0]"), {"np": np})) == [f"observation/{key}"]
    assert "```" not in re.search(r"Its argument is\n(.*)", card)[1]


def numpy_policy(parts, folder):
    return load_module(export_policy(parts, "numpy", folder / "policy") / "policy.py").Policy()


@pytest.mark.parametrize(
    ("shape", "given", "batch"),
    [
        ((1, 4), (1, 4), None),
        ((1, 4), (1, 1, 4), 1),
        ((1, 4), (4,), None),
        ((1, 4), (3, 4), 3),
        ((2, 2), (2, 2), None),
        ((2, 2), (0, 2, 2), 0),
        ((4,), (1, 4), 1),
        ((4,), (0, 4), 0),
        ((), (), None),
        ((), (1,), 1),
        ((), (5,), 5),
        ((), (5, 1), 5),
    ],
)
def test_the_declared_shape_decides_what_a_batch_is(shape, given, batch, tmp_path):
    size = int(np.prod(shape))
    policy = numpy_policy(one_part((), shape, size), tmp_path)
    assert policy(np.ones(given)).shape == ((3,) if batch is None else (batch, 3))
    with pytest.raises(ValueError, match=r"observation: expected shape .* got \(7, 7\)"):
        policy(np.ones((7, 7)))


def test_nested_observations_may_be_empty_batches_lists_and_incomplete(tmp_path):
    parts = parts_of(lambda p, x: x[:1] * p[1] + x[3], 4)
    layout = ObservationPart(("arm", 0), (2,)), ObservationPart(("arm", 1), ())
    layout += (ObservationPart(("goal",), ()),)
    policy = numpy_policy(
        parts._replace(spaces=parts.spaces._replace(observation=layout)), tmp_path
    )
    assert policy({"arm": (np.ones((0, 2)), np.ones(0)), "goal": np.ones(0)}).shape == (0, 3)
    one = policy({"arm": (np.array([1.0, 2.0]), 3.0), "goal": 4.0})
    np.testing.assert_array_equal(policy({"arm": [[1.0, 2.0], 3.0], "goal": 4.0}), one)
    for bad, sentence in (
        ({"arm": [[1.0, 2.0], 3.0]}, r"observation: expected a key 'goal', got the keys \['arm'\]"),
        ({"arm": [[1.0, 2.0]], "goal": 4.0}, r"observation\['arm'\]: expected at least 2 entries"),
        ({"arm": 3.0, "goal": 4.0}, r"observation\['arm'\]: expected a tuple, got a float"),
        ({"arm": ([1.0, 2.0], None), "goal": 4.0}, r"\['arm'\]\[1\]: expected an array of numbers"),
        (([1.0, 2.0], 3.0), "observation: expected a dict, got a tuple"),
    ):
        with pytest.raises(ValueError, match=sentence):
            policy(bad)


def test_a_list_is_accepted_where_the_environment_has_a_tuple(tmp_path):
    parts = parts_of(lambda p, x: x[:1] * p[1] + x[3], 4)
    layout = ObservationPart((0,), (3,)), ObservationPart((1,), ())
    policy = numpy_policy(
        parts._replace(spaces=parts.spaces._replace(observation=layout)), tmp_path
    )
    one = policy((np.array([1.0, 2.0, 3.0]), 4.0))
    np.testing.assert_array_equal(policy([np.array([1.0, 2.0, 3.0]), 4.0]), one)


@needs_compiler
def test_a_header_that_is_wrong_here_is_an_error_of_the_compiler(tmp_path):
    first = export_policy(one_part((), (4,)), "c", tmp_path / "first")
    second = export_policy(one_part((), (5,), 5), "c", tmp_path / "second")
    both = f'#include "{first}/policy.h"\n#include "{second}/policy.h"\nint main(void) {{}}\n'
    for source, flags, sentence in (
        (both, (), "a C file can include one policy only"),
        (f'#include "{first}/policy.h"', ("-ffinite-math-only",), "without -ffast-math"),
        (both.replace("second", "first"), (), None),
    ):
        (tmp_path / "main.c").write_text(source)
        command = ["cc", "-std=c99", "-fsyntax-only", "-pedantic", *flags, tmp_path / "main.c"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode == 0) == (sentence is None), done.stderr
        assert (sentence or "") in done.stderr
    (first / "policy.h").write_text("int broken\nsyntax;\n")
    with pytest.raises(MeasurementError, match=r"^cc: .*error"):
        action_seconds(first, one_part((), (4,)), "c")


@pytest.mark.parametrize("name", [".", "..", "../here/.", "/"])
def test_the_working_folder_is_never_replaced(name, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match="is the working folder or contains it"):
        export_policy(one_part((), (4,)), "c", name, overwrite=True)
    assert list(tmp_path.rglob("*")) == [tmp_path / "here"]


@pytest.fixture(scope="module")
def numpy_export(tmp_path_factory):
    chosen = sample("simbav2", nested=True)
    return chosen, export_policy(chosen.parts, "numpy", tmp_path_factory.mktemp("x") / "policy")


def test_the_numpy_policy_needs_numpy_only_and_checks_itself(numpy_export, tmp_path):
    _, out = numpy_export
    code = (
        "import runpy, sys; sys.argv = ['policy.py']\n"
        f"try: runpy.run_path({str(out / 'policy.py')!r}, run_name='__main__')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'r2r2', 'jax', 'gymnasium'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"largest difference from the exported policy: " in done.stdout


def test_the_self_check_finds_other_weights(numpy_export, tmp_path):
    _, out = numpy_export
    copy = shutil.copytree(out, tmp_path / "copy")
    with np.load(copy / "policy.npz") as arrays:
        changed = dict(arrays)
    changed["weight0"][0] += 1
    np.savez(copy / "policy.npz", **changed)
    done = subprocess.run([sys.executable, copy / "policy.py"], capture_output=True)
    assert done.returncode == 1
    assert b"does not compute the same" in done.stderr


def test_the_numpy_policy_takes_nested_flat_and_single_observations(numpy_export):
    chosen, out = numpy_export
    policy, loaded = load_module(out / "policy.py").Policy(), Policy(chosen.parts)
    obs = real_observations()[:5]
    first, scalar, goal = obs[:, :6].reshape(-1, 2, 3), obs[:, 6], obs[:, 7:]
    batch = {"arm": (first, scalar), "goal": goal}
    one = {"arm": (first[2], scalar[2]), "goal": goal[2]}
    for act in (policy, loaded):
        np.testing.assert_allclose(act(batch), policy(obs), rtol=1e-5)
        np.testing.assert_allclose(act(one), policy(obs)[2], rtol=1e-5)
        assert act(one).shape == (3,)
        assert act(list(obs[0])).shape == (3,)
        bad = {"arm": (first[2], np.nan), "goal": goal[2]}
        assert np.isnan(act(bad)).all()
        for wrong in (obs[0, :10], np.zeros((2, 2, 11)), one | {"goal": goal[2, :3]}):
            with pytest.raises((ValueError, KeyError, IndexError, TypeError)):
                act(wrong)
    with pytest.raises(ValueError, match=r"observation\['goal'\]: expected shape \(4,\)"):
        policy(one | {"goal": goal[2, :3]})
    assert [part.path for part in NESTED] == [("arm", 0), ("arm", 1), ("goal",)]


@pytest.mark.parametrize("name", ["numpy", "onnx", "stablehlo"])
def test_actions_have_the_shape_and_type_of_the_environment(name, tmp_path):
    parts = sample("minphi").parts
    shaped = parts.spaces._replace(action_shape=(3, 1), action_dtype="float64")
    changed = parts._replace(spaces=shaped)
    out = export_policy(changed, name, tmp_path / "policy")
    obs = real_observations()[:4]
    actions = RUNNERS[name](out, changed)(obs)
    assert (actions.shape, actions.dtype) == ((4, 3, 1), np.float64)
    np.testing.assert_allclose(actions[..., 0], Policy(parts)(obs), rtol=1e-5, atol=1e-5)


def test_the_folder_lists_its_files_and_describes_the_policy(tmp_path):
    parts = sample("td7").parts
    out = export_policy(parts, "c", tmp_path / "policy")
    record = json.loads((out / "export.json").read_text())
    assert record["kind"] == "r2r2 export"
    assert record["files"].keys() == {"policy.h", "README.md"}
    assert record["policy"]["seed"] == 3
    assert record["spaces"]["action"]["high"] == [2, 3, 7]
    card = (out / "README.md").read_text()
    for text in (
        "# td7 on Hopper-v5, seed 3",
        "| Trained for | 50,000 decision steps |",
        "| Commit | 0123abcd |",
        "| All 2 seeds | return 3105.2 ± 148.8 (mean and standard deviation over seeds)",
        "| `observation` | (11,) | 0 to 10 |",
        "| 2 | -1 | 7 |",
        "every\n  entry of its action is NaN",
    ):
        assert text in card
    assert "onnxruntime" not in card


def test_an_export_is_replaced_only_on_demand_and_nothing_else_is_deleted(tmp_path):
    parts, out = sample("td7").parts, tmp_path / "policy"
    export_policy(parts, "c", out)
    with pytest.raises(UserError, match="add --overwrite"):
        export_policy(parts, "c", out)
    export_policy(parts, "numpy", out, overwrite=True)
    assert not (out / "policy.h").exists()
    (out / "thesis.txt").write_text("")
    with pytest.raises(UserError, match=r"also contains 'thesis\.txt'"):
        export_policy(parts, "c", out, overwrite=True)
    with pytest.raises(UserError, match="not empty and not an export"):
        export_policy(parts, "c", tmp_path, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"policy"}


def test_nothing_is_written_if_a_format_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_format.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'r2r2\[onnx\]'"):
        export_policy(sample("td7").parts, "all", tmp_path / "policy")
    with pytest.raises(UserError, match=r"expected one of .* got 'onx'; did you mean 'onnx'"):
        export_policy(sample("td7").parts, "onx", tmp_path / "policy")
    assert list(tmp_path.iterdir()) == []
    assert list(FORMATS) == ["numpy", "onnx", "stablehlo", "c"]


def test_names_from_a_run_cannot_become_code(tmp_path):
    evil = 'x"""\nimport os */ int main'
    part = ObservationPart((evil,), (11,))
    base = sample("td7").parts
    info = dict(base.info) | {"agent": evil, "task": evil}
    parts = base._replace(spaces=base.spaces._replace(observation=(part,)), info=info)
    out = export_policy(parts, "numpy", tmp_path / "numpy")
    policy = load_module(out / "policy.py").Policy()
    assert policy({evil: np.zeros(11)}).shape == (3,)
    header = (export_policy(parts, "c", tmp_path / "c") / "policy.h").read_text()
    assert header.split("#ifndef")[0].count("*/") == 1
