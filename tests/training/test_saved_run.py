import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from runs import SMALL, run

from r2r2 import Trainer, UserError, load
from r2r2.envs.spec import Spec
from r2r2.training.evaluation import load_policies, normalize_obs

NORMALIZED = {"agent.normalize": True, "agent.policy_checkpoints": False}


@pytest.fixture(scope="module", params=["plain", "normalized"])
def trained(request, tmp_path_factory):
    """A finished run of two seeds."""
    changes = NORMALIZED if request.param == "normalized" else {}
    path = tmp_path_factory.mktemp("runs") / "run"
    return run(path, seeds=2, **changes)[0].folder


@pytest.mark.parametrize("weights", ["last", "best"])
def test_policies_act_as_those_of_an_evaluation(trained, weights):
    saved = load(str(trained.path))
    policy = saved.policy(seed=1, weights=weights)
    spaces = policy.parts.spaces
    spec = Spec(spaces.obs_dim, spaces.action_dim)
    loaded = load_policies(trained, saved.config, spec, saved.members[1:], weights)
    obs = np.random.default_rng(0).normal(size=(8, spaces.obs_dim))
    seen = normalize_obs(loaded.policies.scales, 0, obs).astype(np.float32)
    one = jax.tree.map(lambda leaf: leaf[0], loaded.policies.policies)
    unit = np.asarray(jax.vmap(loaded.agent.greedy, (None, 0))(one, seen))
    low, high = spaces.action_low, spaces.action_high
    np.testing.assert_allclose(policy(obs), low + (unit + 1) / 2 * (high - low), atol=1e-5)
    assert policy.info["step"] == loaded.steps[0]


def test_what_a_run_holds(trained):
    saved = load(trained.path)
    assert (saved.status, len(saved.members), saved.stopped) == ("finished", 2, {})
    curve = saved.curve()
    assert curve.decision_steps.tolist() == [20, 40, 60]
    assert curve.returns.shape == (2, 3)
    rows = saved.evaluations()
    assert rows.columns == ["exp_name", "env_name", "seed", "metric", "env_step", "value"]
    np.testing.assert_array_equal(rows.where(seed=1)["value"], curve.returns[1])
    frame = curve.to_pandas()
    assert frame["return"].tolist() == curve.returns.ravel().tolist()
    assert len(rows.to_pandas()) == 6
    assert saved.diagnostics()["effective_rank"].shape == (6,)
    assert saved.events("losses").columns[:2] == ["time", "member"]
    info = saved.policy(seed=0).info
    assert info["return"]["mean"] == curve.returns[0, -1]
    assert info["versions"]["r2r2"]
    assert set(saved.policies()) == set(saved.members)


def test_loading_and_acting_imports_neither_jax_nor_gymnasium(trained):
    code = f"""
import sys, r2r2
policy = r2r2.load({str(trained.path)!r}).policy(seed=1)
policy([0.0] * policy.parts.spaces.obs_dim)
heavy = {{"jax", "gymnasium", "mujoco", "dm_control", "matplotlib", "rich"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=trained.path.parent)


def test_an_unfinished_run_acts_with_its_checkpoint(tmp_path):
    trainer = Trainer(config=SMALL, out=tmp_path / "run", workers=0, progress=False)
    trainer.train(steps=30)
    saved = load(tmp_path / "run")
    assert saved.status == "interrupted"
    policy = saved.policy()
    assert policy.info["step"] == trainer.step_count == 30
    assert np.isfinite(policy(np.zeros(policy.parts.spaces.obs_dim))).all()
    assert saved.resume(workers=0, progress=False).step_count == 60


def test_a_run_of_an_earlier_version_is_read_with_jax(tmp_path):
    folder = run(tmp_path / "run")[0].folder
    obs = np.zeros(load(folder.path).policy().parts.spaces.obs_dim)
    expected = load(folder.path).policy()(obs)
    (folder.path / "policy.json").unlink()
    manifest = json.loads((folder.path / "manifest.json").read_text())
    old = {k: manifest[k] for k in ("kind", "format", "status", "members")}
    (folder.path / "manifest.json").write_text(json.dumps(old))
    np.testing.assert_allclose(load(folder.path).policy()(obs), expected, atol=1e-6)


def test_errors_name_what_is_wrong(tmp_path, trained):
    saved = load(trained.path)
    with pytest.raises(UserError, match=r"^seed: expected one member of .*, got 7"):
        saved.policy(seed=7)
    with pytest.raises(UserError, match=r"^seed: expected one member of .*, got None"):
        saved.policy()
    with pytest.raises(UserError, match=r"^task: expected one member of .*, got 'Hopper-v5'"):
        saved.policy("Hopper-v5", 0)
    with pytest.raises(UserError, match=r"^weights: expected last or best, got 'worst'"):
        saved.policy(seed=0, weights="worst")
    with pytest.raises(UserError, match=r"^task: expected one of"):
        saved.curve("Hopper-v5")
    with pytest.raises(UserError, match="does not exist"):
        load(tmp_path / "nothing")
    with pytest.raises(KeyError, match="no column 'reward'"):
        saved.evaluations()["reward"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spaces", "toys:Story-v0"), None),
        (("spaces", "toys:Story-v0", "action", "low"), [-1.0, -1.0]),
        (("dtype",), "O"),
        (("program", "operations", -1, 1), [0.5]),
        (("program", "operations", -1, 3), {"colour": 3}),
        (("program", "output"), 0),
    ],
)
def test_a_damaged_description_is_an_error(tmp_path, trained, path, value):
    run = tmp_path / "run"
    shutil.copytree(trained.path, run)
    manifest = json.loads((run / "manifest.json").read_text())
    document = inner = json.loads(manifest["copies"]["policy.json"])
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    old = {k: manifest[k] for k in ("kind", "format", "status", "members")}
    (run / "manifest.json").write_text(json.dumps(old))
    (run / "policy.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match=r"policy.json: damaged: "):
        load(run).policy(seed=1)
