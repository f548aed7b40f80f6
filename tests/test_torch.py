"""`r2r2.torch` equals the JAX losses in value and gradient."""

import dataclasses
import functools
import subprocess
import sys

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import r2r2
import r2r2.torch as ours
from r2r2 import R2R2, Representation, UserError

TOLERANCE = {np.float32: 1e-6, np.float64: 1e-12}
TERMS = {
    "redundancy": lambda lib, z: lib.redundancy(z),
    "zero_centred": lambda lib, z: lib.redundancy(z, zero_centred=True),
    "variance_hinge": lambda lib, z: lib.variance_hinge(z),
    "threshold": lambda lib, z: lib.variance_hinge(z, 0.5),
    "self_prediction": lambda lib, z: lib.self_prediction(z, z[::-1] if lib is r2r2 else z.flip(0)),
}
each_type = pytest.mark.parametrize("kind", TOLERANCE, ids=lambda kind: kind.__name__)


@functools.cache
def jax_program(term):
    return jax.jit(jax.value_and_grad(lambda z: term(r2r2, z)))


def by_jax(term, z):
    """Return the value and the gradient of a term, computed by JAX."""
    with jax.enable_x64(z.dtype == np.float64):
        return [np.asarray(result) for result in jax_program(term)(z)]


def by_torch(term, z):
    """Return the value and the gradient of a term, computed by PyTorch."""
    tensor = torch.from_numpy(z).requires_grad_()
    value = term(ours, tensor)
    value.backward()
    return value.detach().numpy(), tensor.grad.numpy()


def sizes_of(name, z):
    """Return the value and the largest gradient that a term has if nothing in it cancels."""
    z = np.abs(z.astype(np.float64))
    rows, features = z.shape
    if name in ("redundancy", "zero_centred"):
        moment, pairs = z.T @ z / (rows - 1), features * (features - 1)
        np.fill_diagonal(moment, 0)
        gradient = 4 * z @ moment / (pairs * (rows - 1))
        return (moment**2).sum() / pairs, gradient.max()
    if name == "self_prediction":
        return 4 * (z**2).mean(), 4 * z.max() / z.size
    return 1 + z.max(), 1 / features


def check_equal(term, z, sizes):
    """Compare value and gradient with errors relative to the sizes of their summands."""
    # Rounding errors of a sum over constant features add up instead of cancelling: a float32 sum of
    # 64 of them is wrong by 4e-6 in JAX, and by 2e-6 in PyTorch.
    constant = (z == z[:1]).all(axis=0).any()
    tolerance = max(TOLERANCE[z.dtype.type], constant * len(z) * np.finfo(z.dtype).eps)
    results = zip(by_torch(term, z), by_jax(term, z), sizes, strict=True)
    for torch_result, jax_result, size in results:
        assert torch_result.dtype == jax_result.dtype == z.dtype
        np.testing.assert_allclose(torch_result, jax_result, rtol=0, atol=tolerance * size)


@st.composite
def latents(draw, kind):
    """Latents of any shape, with some constant features, of very different sizes."""
    rows, features = draw(st.sampled_from([(2, 2), (3, 7), (64, 12)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    z = rng.normal(size=(rows, features)) * 10.0 ** draw(st.integers(-8, 8))
    z += draw(st.sampled_from([0, 0.1, -3]))
    z[:, : draw(st.integers(0, features))] = draw(st.sampled_from([0.0, 0.1, -3.3, 1e8]))
    return z.astype(kind)


@each_type
@pytest.mark.parametrize("name", TERMS)
@settings(max_examples=12)
@given(data=st.data())
def test_terms_equal_those_of_jax(name, kind, data):
    z = data.draw(latents(kind))
    check_equal(TERMS[name], z, sizes_of(name, z))


@each_type
def test_total_and_its_terms_equal_those_of_jax(kind):
    z = np.random.default_rng(0).normal(size=(256, 32)).astype(kind)
    weights = Representation(2.0, 0.5, 3.0, variance_threshold=1.5, zero_centred=True)

    def total(lib, z):
        prediction = TERMS["self_prediction"](lib, z)
        loss = ours.representation_loss if lib is ours else r2r2.representation_loss
        value, terms = loss(weights, z, prediction)
        assert set(terms) == {"spl", "redundancy", "variance"}
        return value

    check_equal(total, z, (1, 1))


@pytest.mark.parametrize("value", [0.0, 0.1, 1e15, -3.3])
@pytest.mark.parametrize("rows", [2, 3, 7, 256])
def test_constant_features_have_no_gradient(value, rows):
    z = torch.stack([torch.full((rows,), value), torch.linspace(-0.5, 0.5, rows)], dim=1)
    z.requires_grad_()
    ours.variance_hinge(z).backward()
    assert not z.grad[:, 0].any()
    assert torch.isfinite(z.grad).all()
    assert z.grad[:, 1].any()


def test_no_gradient_reaches_the_target():
    predicted, target = (torch.ones(3, 2, requires_grad=True) for _ in range(2))
    ours.self_prediction(2 * predicted, target).backward()
    assert predicted.grad.any()
    assert target.grad is None


@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (4,), (2, 3, 4)])
@pytest.mark.parametrize("term", [ours.redundancy, ours.variance_hinge])
def test_latents_of_wrong_shape_are_an_error(term, shape):
    with pytest.raises(UserError, match="N >= 2 and d >= 2") as error:
        term(torch.ones(shape))
    assert str(shape) in str(error.value)


def test_zero_weights_remove_their_terms():
    z = torch.full((4, 3), torch.nan)
    total, terms = ours.representation_loss(Representation(), z, torch.tensor(1.5))
    assert float(total) == 1.5
    assert set(terms) == {"spl"}
    none = Representation(lambda_spl=0)
    assert float(ours.representation_loss(none, z, torch.tensor(torch.nan))[0]) == 0


def test_extra_term_is_called_with_tensors():
    weights = dataclasses.replace(R2R2, extra="extra_losses:size", lambda_extra=10.0)
    z = torch.tensor([[0.0, 2.0], [2.0, 0.0]], requires_grad=True)
    total, terms = ours.representation_loss(weights, z, torch.tensor(0.0))
    assert terms["extra"].item() == 2
    base, _ = ours.representation_loss(R2R2, z, torch.tensor(0.0))
    assert (total - base).item() == pytest.approx(20)
    wrong = dataclasses.replace(weights, extra="extra_losses:squares")
    with pytest.raises(UserError, match=r"return a real scalar, got shape \(2, 2\) of torch"):
        ours.representation_loss(wrong, z, torch.tensor(0.0))


def run_python(code):
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return process.stdout + process.stderr


def test_neither_package_imports_the_other_library():
    code = "import sys, r2r2; r2r2.redundancy; print('torch' in sys.modules)"
    assert run_python(code) == "False\n"
    code = "import sys, r2r2.torch; r2r2.R2R2; print('jax' in sys.modules)"
    assert run_python(code) == "False\n"


def test_missing_pytorch_is_a_clear_error():
    code = "import sys; sys.modules['torch'] = None; import r2r2; import r2r2.torch"
    last = run_python(code).strip().splitlines()[-1]
    assert last == (
        "ImportError: r2r2.torch: PyTorch is not installed; install it with: "
        'pip install "r2r2[torch]"'
    )
