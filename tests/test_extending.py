"""The examples, and the code in docs/extending.md."""

import importlib
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from r2r2 import AGENTS, Batch, make_agent, register_agent, resolve, train
from r2r2.agents.registry import check_extra_loss
from r2r2.api import RunOptions
from r2r2.envs.spec import Spec

pytestmark = pytest.mark.optimized

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def examples(monkeypatch):
    """A function that imports an example anew."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))

    def example(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return example


def test_page_shows_the_examples_as_they_are():
    shown = re.findall(r"<!-- file: (.*?) -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in shown] == ["examples/custom_loop.py", "examples/ddpg.py"]
    for name, code in shown:
        assert code == (ROOT / name).read_text(), name


def test_links_of_the_page_exist():
    headings = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\(#(.*?)\)", PAGE)) == anchors
    for name in re.findall(r"`((?:examples|tests)/.*?)`", PAGE):
        assert (ROOT / name).exists(), name


def test_blocks_about_losses_run(capsys):
    jax_block, torch_block = (x for x in BLOCKS if "representation_loss" in x)
    exec(jax_block, {})
    assert capsys.readouterr().out == "['redundancy', 'spl', 'variance']\n"
    namespace = {}
    exec(torch_block, namespace)
    assert namespace["encoder"].weight.grad.any()


def test_terms_of_the_page_can_be_used(tmp_path, monkeypatch):
    (module,) = (x for x in BLOCKS if x.startswith("# my_losses.py"))
    (tmp_path / "page_losses.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("sparsity", "bisimulation"):
        config = resolve({"env": "Pendulum-v1", "extra": f"page_losses:{name}"}).agent
        check_extra_loss(config, Spec(3, 1))


def test_custom_loop_runs(examples):
    returns = examples("custom_loop").train(steps=210, warmup=200)
    assert len(returns) == 1


@pytest.mark.slow
def test_custom_loop_learns(examples):
    returns = examples("custom_loop").train()
    # A random policy reaches about -1200, a swing-up policy about -150.
    assert np.mean(returns[:2]) < -900
    assert np.mean(returns[-8:]) > -400


def test_own_agent_is_made_and_updated(examples):
    agent = make_agent("ddpg:DDPG", 3, 1, width=8, batch_size=4)
    examples("ddpg")
    state = jax.jit(agent.init)(jax.random.key(0))
    obs, zeros = np.ones((4, 3)), np.zeros(4)
    batch = Batch(obs, np.ones((4, 1)), zeros, next_obs=obs, terminated=zeros)
    after, out = jax.jit(agent.update)(state, batch, agent.update_noise(jax.random.key(1)), 1)
    assert set(out.metrics) == {"loss/critic", "loss/actor"}
    changed = jax.tree.map(lambda x, y: bool((x != y).any()), state.critic, after.critic)
    assert any(jax.tree.leaves(changed))


@pytest.mark.slow
def test_own_agent_learns_in_a_run(examples, tmp_path):
    register_agent(examples("ddpg").DDPG)
    try:
        config = resolve(
            {"agent": "ddpg", "env": "Pendulum-v1", "steps": 6_000, "eval_every": 6_000},
            {"width": 64, "batch_size": 128},
        )
        result = train(config, tmp_path / "ddpg", options=RunOptions(workers=0))
    finally:
        del AGENTS["ddpg"]
    assert result.returns.mean() > -400
