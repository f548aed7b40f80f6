import os
import subprocess
import sys

from r2r2.cli.progress import on_device, resident

HOLDS = """
import os, subprocess, sys
held = bytearray(os.urandom(1)) * 50_000_000
if sys.argv[1] != "0":
    subprocess.run([sys.executable, "-c", sys.argv[2], "0"], stdin=sys.stdin)
else:
    print("held", flush=True)
    sys.stdin.read()
"""


def test_processes_below_this_one_count_however_deep():
    before = resident()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", HOLDS, "1", HOLDS]
    with subprocess.Popen(command, **pipes) as child:
        assert child.stdout.readline() == b"held\n"
        during = resident()
        child.stdin.close()
    # Two of 50 MB and what Python itself takes.
    assert 100e6 < during - before < 200e6
    assert resident() < before + 20e6


def test_a_machine_that_does_not_tell_gives_nothing(tmp_path):
    assert resident(tmp_path) is None


def test_a_process_that_ends_meanwhile_counts_as_nothing(tmp_path):
    own = tmp_path / str(os.getpid())
    (own / "task" / "7").mkdir(parents=True)
    (own / "statm").write_text("900 30 20 1 0 9 0\n")
    (own / "task" / "7" / "children").write_text("41 42")
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "statm").write_text("900 12 20 1 0 9 0\n")
    assert resident(tmp_path) == 42 * os.sysconf("SC_PAGE_SIZE")


def test_a_cpu_has_no_memory_of_its_own():
    assert on_device() is None
