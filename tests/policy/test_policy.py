import json
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from policy_parts import sample
from r2r2.config.agents import AGENTS
from r2r2.policy.document import PolicyDocument, program_from_json, program_to_json
from r2r2.policy.policy import ObservationPart, Policy

RNG = np.random.default_rng(0)
OBS = RNG.normal(size=(20, 11))
QUICK = ("td7+r2r2", "simbav2-spl+r2r2")
AGENT_NAMES = [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in AGENTS]


@pytest.mark.parametrize("name", AGENT_NAMES)
def test_actions_are_those_of_the_jax_policy(name):
    parts, expected = sample(name)
    policy = Policy(parts)
    np.testing.assert_allclose(policy(OBS), expected(OBS), atol=1e-5)
    np.testing.assert_allclose([policy(row) for row in OBS], expected(OBS), atol=1e-5)
    action, state = policy.predict(OBS[0], deterministic=True)
    np.testing.assert_array_equal(action, policy(OBS[0]))
    assert state is None


@pytest.mark.parametrize("name", QUICK)
def test_bad_and_extreme_observations(name):
    parts, expected = sample(name)
    obs = np.array([OBS[0]] * 6)
    obs[:5, 3] = np.nan, np.inf, -np.inf, 1e300, 1e-310
    actions = Policy(parts)(obs)
    assert np.isnan(actions[:4]).all()
    np.testing.assert_allclose(actions, expected(obs), atol=1e-5)
    np.testing.assert_array_equal(Policy(parts)(obs[0]), np.full(3, np.nan))


def test_observations_may_be_nested():
    policy, flat = Policy(sample("td7+r2r2", nested=True).parts), OBS[:4]
    nested = {"arm": (flat[:, :6].reshape(4, 2, 3), flat[:, 6]), "goal": flat[:, 7:]}
    np.testing.assert_array_equal(policy(nested), policy(flat))
    one = {"arm": (nested["arm"][0][0], nested["arm"][1][0]), "goal": flat[0, 7:]}
    np.testing.assert_array_equal(policy(one), policy(flat[0]))
    with pytest.raises(ValueError, match="'goal'"):
        policy({"arm": one["arm"]})
    with pytest.raises(ValueError, match="shape"):
        policy(np.zeros(5))


def test_policies_may_be_shared_by_threads():
    policy, expected = Policy(sample("td7+r2r2").parts), Policy(sample("td7+r2r2").parts)(OBS)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            actions = list(pool.map(policy, np.repeat(OBS, 20, axis=0)))
    finally:
        sys.setswitchinterval(before)
    np.testing.assert_allclose(actions, np.repeat(expected, 20, axis=0), atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 11), (11, 1), (11,)])
def test_a_plain_box_of_any_shape(shape):
    parts = sample("td7+r2r2").parts
    box = parts.spaces._replace(observation=(ObservationPart((), shape),))
    policy = Policy(parts._replace(spaces=box))
    one = OBS[0].reshape(shape)
    assert policy(one).shape == (3,)
    assert policy(one[None]).shape == (1, 3)
    assert policy(OBS[:5].reshape(5, *shape)).shape == (5, 3)
    assert policy(OBS[0]).shape == (3,)  # flat
    with pytest.raises(ValueError, match="observation: expected shape"):
        policy(np.zeros((2, 3, 4)))


def test_there_is_no_noise():
    with pytest.raises(ValueError, match="deterministic: expected True, got False"):
        Policy(sample("td7+r2r2").parts).predict(OBS[0], deterministic=False)


@pytest.mark.parametrize("name", QUICK)
def test_a_program_survives_json(name):
    parts = sample(name).parts
    text = json.dumps(program_to_json(parts.program), allow_nan=False)
    policy = Policy(parts._replace(program=program_from_json(json.loads(text))))
    np.testing.assert_array_equal(policy(OBS), Policy(parts)(OBS))


def changed(fields, *path, value):
    """Return JSON values with one of them changed, or removed for None."""
    copy = json.loads(json.dumps(fields))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copy


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("format",), 2, "format: expected 1, got 2"),
        (("program",), None, "KeyError"),
        (("program",), 3, "not a policy"),
        (("parameters",), [], "not those of the program"),
        (("program", "operations", 0, 0), "system", "unknown operation 'system'"),
        (("program", "operations", 0, 1), [999], "operands"),
        (("program", "operations", 1, 2), 0, "operands"),
        (("program", "operations", 0), [1], "not enough values"),
        (("program", "output"), 10**6, "output"),
        (("program", "output"), -1, "counts"),
        (("program", "constants", 0, "dtype"), "O", "constant"),
    ],
)
def test_damaged_documents_are_refused(path, value, problem):
    parts = sample("td7+r2r2").parts
    document = PolicyDocument(
        parts.program, (None,) * parts.program.parameters, "float32", False, {}
    )
    fields = document.to_json()
    assert PolicyDocument.from_json(fields).program.operations == parts.program.operations
    with pytest.raises(ValueError, match=problem):
        PolicyDocument.from_json(changed(fields, *path, value=value))
