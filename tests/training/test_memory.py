import jax
import jax.numpy as jnp
import pytest

from r2r2.agents.registry import make_agent
from r2r2.compute.update import RunLengths
from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve
from r2r2.envs.spec import Spec
from r2r2.replay import buffer as ring
from r2r2.training.fleet import Fleet
from r2r2.training.memory import check_fits, device_bytes, replay_rows, row_bytes

SPEC = Spec(obs_dim=348, action_dim=17)


def config(**changes):
    return resolve({"env": "Humanoid-v5", "seeds": 5, **changes})


def test_a_row_takes_what_is_said_of_it():
    rows = 128 * 128
    make = jax.jit(lambda obs: ring.init(rows, SPEC, obs))
    held = jax.tree.leaves(make(jnp.zeros((1, SPEC.obs_dim))))
    assert sum(leaf.nbytes for leaf in held) == pytest.approx(
        rows * row_bytes(SPEC), rel=1e-3
    )


def test_a_million_humanoid_transitions_stay_within_their_bound():
    assert 1e6 * row_bytes(SPEC) < 1.6e9


@pytest.mark.parametrize(
    ("steps", "rows"),
    [
        (100, 65_536),
        (32_767, 65_536),
        (32_768, 131_072),
        (100_000, 262_144),
        (10_000_000, 1_000_000),
    ],
)
def test_a_short_run_allocates_less_and_few_lengths_differ(steps, rows):
    assert replay_rows(config(steps=steps)) == rows
    assert replay_rows(config(steps=steps, replay_size=10_000)) == 10_000


def lowered(seeds, steps):
    """The program of updates that a run compiles."""
    values = {"env": "Pendulum-v1", "seeds": tuple(seeds), "steps": steps, "width": 8}
    run = resolve(values | {"batch_size": 4, "latent": 8})
    agent, spec = make_agent(run.agent, Spec(3, 1), run.utd), Spec(3, 1)
    lengths = RunLengths(replay_rows(run), run.steps * run.utd)
    fleet = Fleet(agent, spec, run.seeds, lengths, act_on_cpu=False)
    return fleet._updates.traced(len(seeds), True, 1).lower().as_text()


def test_other_seeds_and_other_steps_are_not_compiled_anew():
    first = lowered([0, 1], 500)
    assert lowered([7, 3], 500) == first
    assert lowered([0, 1], 30_000) == first
    assert lowered([0, 1, 2], 500) != first


def test_what_fits_is_not_refused_and_what_does_not_is_with_the_numbers():
    check_fits(config(), SPEC, free=10**10)
    with pytest.raises(UserError) as refusal:
        check_fits(config(), SPEC, free=5 * 10**9)
    sentence = str(refusal.value)
    for part in ("replay_size is 1000000", "members: 5", "4.0 GB", "instead of 5"):
        assert part in sentence
    smaller = int(sentence.split("would fit: replay_size ")[1].split()[0])
    check_fits(config(replay_size=smaller), SPEC, free=5 * 10**9)
    with pytest.raises(UserError):
        check_fits(config(replay_size=smaller + 20_000), SPEC, free=5 * 10**9)


def test_networks_alone_may_be_too_large():
    with pytest.raises(UserError, match="smaller networks"):
        check_fits(config(width=1_000_000), SPEC, free=10**10)


def test_a_batch_alone_may_be_too_large():
    with pytest.raises(UserError) as refusal:
        check_fits(config(batch_size=1_000_000), SPEC, free=10**10)
    sentence = str(refusal.value)
    assert sentence.startswith("agent.batch_size: activations need about ")
    smaller = int(sentence.rpartition(" ")[2])
    check_fits(config(batch_size=smaller), SPEC, free=10**10)
    with pytest.raises(UserError):
        check_fits(config(batch_size=2 * smaller), SPEC, free=10**10)


def test_the_device_is_measured():
    assert 10**8 < device_bytes() < 10**15
    with pytest.raises(UserError, match="GB"):
        check_fits(config(seeds=1000), SPEC)
