"""A user's term of the encoder's loss, `representation.extra`."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2 import R2R2, Representation, UserError, representation_loss, resolve
from r2r2.agents.base import Batch
from r2r2.agents.registry import build_agent, check_extra_loss, state_shapes
from r2r2.cli.main import main
from r2r2.cli.train import parse_train
from r2r2.config.resolve import default_config
from r2r2.config.toml_io import changed_fields, parse_toml, run_name, to_toml
from r2r2.storage.events import read_events
from small_fleets import SPEC, check_paths_agree, small

Z = jnp.array([[0.0, 1.0], [0.6, 3.0], [0.0, 6.0]])
ENCODERS = ("td7", "minphi", "simbav2-spl")
FIELD = "agent.representation.extra"


def with_extra(name, function, **changes):
    """Return a small agent with a term of `extra_losses.py`."""
    config = small(name)
    changes = {"extra": f"extra_losses:{function}", **changes}
    weights = dataclasses.replace(config.representation, **changes)
    return dataclasses.replace(config, representation=weights)


def loss(function, inputs=None, **weights):
    weights = Representation(extra=f"extra_losses:{function}", **weights)
    return representation_loss(weights, Z, jnp.asarray(7.0), inputs or {})


def test_term_is_added_with_its_weight():
    total, terms = loss("size", lambda_extra=0.5)
    np.testing.assert_allclose(terms["extra"], np.mean(Z**2), rtol=1e-6)
    np.testing.assert_allclose(total, 7 + 0.5 * np.mean(Z**2), rtol=1e-6)


def test_weight_is_one_by_default_and_zero_removes_the_term():
    np.testing.assert_allclose(loss("size")[0], 7 + np.mean(Z**2), rtol=1e-6)
    assert set(loss("size", lambda_extra=0)[1]) == {"spl"}


def test_functions_get_the_inputs_that_they_name():
    batch = Batch(Z, Z, jnp.array([1.0, 2.0, 3.0]), Z, jnp.zeros(3, bool))
    inputs = {"predicted": Z + 1, "target": Z - 1, "batch": batch}
    assert loss("distance", inputs)[1]["extra"] == 1
    # 2 (4 + mean of (1, 3.6, 6) * (1, 2, 3)); a parameter with another name keeps its default.
    np.testing.assert_allclose(
        loss("everything", inputs)[1]["extra"], 2 * (4 + 26.2 / 3), rtol=1e-6
    )


def test_terms_of_the_library_can_be_used():
    weights = Representation(extra="r2r2:variance_hinge", lambda_extra=R2R2.lambda_var)
    expected = representation_loss(Representation(lambda_var=0.01), Z, jnp.asarray(0.0))
    np.testing.assert_allclose(representation_loss(weights, Z, jnp.asarray(0.0))[0], expected[0])


@pytest.mark.parametrize("name", ENCODERS)
def test_every_encoder_is_trained_with_the_term(name):
    config = with_extra(name, "everything")
    check_extra_loss(config, SPEC)
    agent = build_agent(config, SPEC, 1)
    rows = agent.batch_size
    batch = Batch(*(jnp.zeros((rows, n)) for n in SPEC), jnp.zeros(rows), jnp.zeros((rows, 4)), 0)
    batch = batch._replace(terminated=jnp.zeros(rows, bool))
    noise = jax.eval_shape(agent.update_noise, jax.random.key(0))
    _, out = jax.eval_shape(agent.update, state_shapes(agent), batch, noise, 1)
    assert "representation/extra" in out.metrics


@pytest.mark.slow
def test_plain_and_fast_path_agree():
    weights = with_extra("td7", "everything").representation
    with jax.enable_x64(True):
        check_paths_agree("td7", (2, 4, 6), updates=6, representation=weights)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("missing_module:loss", "cannot import 'missing_module' (ModuleNotFoundError"),
        ("extra_losses:sise", "'extra_losses' has no attribute 'sise'; did you mean 'size'?"),
        ("extra_losses:NUMBER", "expected a function at 'extra_losses:NUMBER', got 3"),
        ("extra_losses:squares", "to return a real scalar, got shape (8, 12) of float32"),
        ("extra_losses:count", "to return a real scalar, got shape () of int32"),
        ("extra_losses:nothing", "to return a real scalar, got None"),
        ("extra_losses:in_numpy", "cannot be computed and differentiated by JAX on latents of"),
        ("extra_losses:needs_more", "(TypeError: needs_more() missing 1 required positional"),
    ],
)
def test_wrong_functions_are_reported_before_training(extra, message):
    config = with_extra("td7", "", extra=extra)
    with pytest.raises(UserError) as error:
        check_extra_loss(config, SPEC)
    sentence = str(error.value)
    assert sentence.startswith(f"{FIELD}: ")
    assert message in sentence
    assert "\n" not in sentence
    # With a weight of 0 the function is not needed, and an agent without encoder has none.
    check_extra_loss(with_extra("td7", "", extra=extra, lambda_extra=0.0), SPEC)
    check_extra_loss(small("simbav2"), SPEC)


@pytest.mark.parametrize("text", ["loss", ":loss", "module:", ":", " : "])
def test_values_of_another_form_are_reported(text):
    with pytest.raises(UserError, match="expected module:function or an empty string"):
        resolve({"env": "Pendulum-v1", "extra": text})


def test_weight_without_a_function_is_reported():
    message = "lambda_extra: has no effect without agent.representation.extra"
    with pytest.raises(UserError, match=message):
        resolve({"env": "Pendulum-v1", "lambda_extra": 0.5})
    resolve({"env": "Pendulum-v1", "lambda_extra": 0})


def test_field_is_an_option_a_toml_key_and_a_changed_setting():
    arguments = "--env Pendulum-v1 --extra extra_losses:size --lambda-extra 0.5".split()
    config = parse_train(arguments).config
    assert resolve(parse_toml(to_toml(config))) == config
    changed = changed_fields(config, default_config("td7+r2r2"))
    assert changed[FIELD] == "extra_losses:size"
    assert changed["agent.representation.lambda_extra"] == 0.5
    assert run_name(config) != run_name(resolve({"env": "Pendulum-v1"}))


TINY = [
    *("--env", "Pendulum-v1", "--action-repeat", "20", "--seeds", "2", "--steps", "24"),
    *("--warmup", "10", "--log-every", "4", "--eval-every", "24", "--eval-episodes", "1"),
    *("--width", "8", "--latent", "8", "--batch-size", "8", "--workers", "0"),
]


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A working folder with a module of the user's."""
    (tmp_path / "my_losses.py").write_text("def loss(z):\n    return abs(z).mean()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.slow
def test_fleet_is_trained_from_the_command_line(own_module, monkeypatch, capsys):
    out = own_module / "run"
    assert main(["train", *TINY, "--extra", "my_losses:loss", "--out", str(out)]) == 0
    metrics = [x for x in read_events(out / "events.jsonl") if "representation/extra" in x]
    assert len({x["member"] for x in metrics}) == 2
    assert all(np.isfinite(x["representation/extra"]) for x in metrics)
    capsys.readouterr()
    assert main(["report", str(out), "--out", str(own_module / "report")]) == 0
    assert "my_losses:loss" in (own_module / "report" / "index.html").read_text()
    # Evaluation does not need the module.
    (own_module / "my_losses.py").unlink()
    monkeypatch.delitem(sys.modules, "my_losses")
    assert main(["eval", str(out), "--episodes", "1", "--workers", "0"]) == 0


def test_nothing_is_written_for_a_wrong_function(own_module, capsys):
    out = own_module / "run"
    arguments = ["train", *TINY, "--extra", "my_losses:lost", "--out", str(out)]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    sentence = "--agent.representation.extra: 'my_losses' has no attribute 'lost'; did you mean"
    assert sentence in error
    assert not out.exists()
