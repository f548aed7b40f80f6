"""The script that compares with other programs: what is recorded if some of them fail."""

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "peers.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("peers", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_peer_that_hangs_or_is_not_timed_yet_is_listed(script):
    def hang(setup):
        script._run(["sleep", "60"], setup.process_limit)

    def fail(setup):
        script._run(["sh", "-c", "echo first; echo no memory; exit 1"], setup.process_limit)

    peers = [script.Peer(x.__name__, 1, (), x, in_worker=False) for x in (hang, fail)]
    results = script.Results()
    for peer, limit in zip(peers, (0.05, 60), strict=True):
        assert results.summary(peer) == {"status": "not timed yet"}
        results.record(peer, script.Setup(1, 10, 1.0, limit))
    assert [results.summary(peer)["status"] for peer in peers] == [
        "failed: took more than 0.05 s (--process-limit)",
        "failed: no memory",
    ]


def test_a_command_sees_the_sources_of_this_checkout(script, tmp_path):
    out = tmp_path / "out.txt"
    code = f"import os; open({str(out)!r}, 'w').write(os.environ['PYTHONPATH'])"
    script._run([sys.executable, "-I", "-c", code], 60)
    assert out.read_text().startswith(str(PATH.parents[1] / "src"))
