"""The memory that a fleet needs, and fleets that do not fit."""

import jax
import jax.numpy as jnp
import pytest

from r2r2.agents.registry import build_agent
from r2r2.compute.compiled import ProgramKey
from r2r2.compute.update import RunLengths
from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve
from r2r2.envs.spec import Spec
from r2r2.replay import buffer
from r2r2.training.fleet import Fleet
from r2r2.training.memory import check_fits, device_bytes, replay_rows, row_bytes
from r2r2.training.run_config import finalize_config

SPEC = Spec(obs_dim=348, action_dim=17)


def config(**changes):
    return finalize_config(resolve({"env": "Humanoid-v5", "seeds": 5, "warmup": 0, **changes}))


def test_row_bytes_are_those_of_the_replay_buffer():
    rows = 128 * 128
    make = jax.jit(lambda obs: buffer.init(rows, SPEC, obs))
    arrays = jax.tree.leaves(make(jnp.zeros((1, SPEC.obs_dim))))
    expected = pytest.approx(rows * row_bytes(SPEC), rel=1e-3)
    assert sum(leaf.nbytes for leaf in arrays) == expected
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
def test_replay_rows_depend_on_the_length_of_the_run(steps, rows):
    assert replay_rows(config(steps=steps)) == rows
    assert replay_rows(config(steps=steps, replay_size=10_000)) == 10_000


def lowered(seeds, steps):
    """Return the update program of a run."""
    agent = {"agent": "small_agent:SLOPE", "env": "Pendulum-v1"}
    run = finalize_config(resolve(agent, {"seeds": seeds, "steps": steps}))
    agent, spec = build_agent(run.agent, Spec(3, 1), run.utd), Spec(3, 1)
    lengths = RunLengths(replay_rows(run), run.steps * run.utd)
    fleet = Fleet(agent, spec, run.seeds, lengths)
    return fleet._updates.traced(ProgramKey(len(seeds), True, 1)).lower().as_text()


def test_other_seeds_and_steps_use_the_same_program():
    first = lowered((0, 1), 500)
    assert lowered((7, 3), 30_000) == first
    assert lowered((0, 1, 2), 500) != first


def test_fleet_that_does_not_fit_is_refused():
    check_fits(config(), SPEC, free=10**10)
    with pytest.raises(UserError) as error:
        check_fits(config(), SPEC, free=5 * 10**9)
    text = str(error.value)
    for part in ("replay_size: ", "5 members", "1000000 rows", "4.0 GB", "instead of"):
        assert part in text
    smaller = int(text.split("--replay-size ")[1].split()[0])
    check_fits(config(replay_size=smaller), SPEC, free=5 * 10**9)
    with pytest.raises(UserError):
        check_fits(config(replay_size=smaller + 20_000), SPEC, free=5 * 10**9)


def test_networks_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="smaller networks"):
        check_fits(config(width=1_000_000), SPEC, free=10**10)


def test_second_moment_of_a_large_latent_does_not_fit():
    """L_RR needs all pairs of features; without it the same latent fits."""
    check_fits(config(latent=2**20, seeds=1, agent="td7"), SPEC, free=10**11)
    with pytest.raises(UserError, match=r"^agent: an update needs about 18\d{3}\.\d GB"):
        check_fits(config(latent=2**20, seeds=1), SPEC, free=10**11)


def test_batch_that_does_not_fit_is_refused():
    with pytest.raises(UserError) as error:
        check_fits(config(batch_size=1_000_000), SPEC, free=10**10)
    text = str(error.value)
    assert text.startswith("agent.batch_size: an update needs about ")
    smaller = int(text.rpartition(" ")[2])
    check_fits(config(batch_size=smaller), SPEC, free=10**10)
    with pytest.raises(UserError):
        check_fits(config(batch_size=2 * smaller), SPEC, free=10**10)


def test_device_memory_is_measured():
    assert 10**8 < device_bytes() < 10**15
    with pytest.raises(UserError, match="GB"):
        check_fits(config(seeds=1000), SPEC)
