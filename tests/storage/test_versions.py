import importlib.metadata
import platform
import shutil
import subprocess

import jax
import pytest

from r2r2.storage.versions import PACKAGES, package_version, source_commit, versions

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def checkout(tmp_path):
    """A repository with one commit, and that commit."""
    (tmp_path / "src" / "r2r2").mkdir(parents=True)
    (tmp_path / "src" / "r2r2" / "core.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path, git(tmp_path, "rev-parse", "HEAD")


def git(folder, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *who, *arguments]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return answer.stdout.strip()


def test_versions_are_complete_and_text():
    result = versions()
    assert set(result) == {
        *PACKAGES,
        *("commit", "python", "device", "device_index", "platform", "device_count"),
        *("matmul_precision", "machine", "cpu_count", "xla_flags"),
    }
    assert all(isinstance(value, str) for value in result.values())
    assert result["python"] == platform.python_version()
    assert result["jax"] == jax.__version__
    assert result["r2r2"] == importlib.metadata.version("r2r2")
    assert result["platform"] == jax.devices()[0].platform
    assert result["device_count"] == str(jax.device_count())
    assert result["machine"] == platform.machine()


def test_matmul_precision_is_recorded():
    assert versions()["matmul_precision"] == "default"
    with jax.default_matmul_precision("highest"):
        assert versions()["matmul_precision"] == "highest"


@pytest.mark.parametrize("flags", ["", "--xla_cpu_multi_thread_eigen=false"])
def test_xla_flags_are_recorded(monkeypatch, flags):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert versions()["xla_flags"] == flags


def test_missing_package_is_absent():
    assert package_version("no-such-package") == "absent"


@needs_git
def test_checkout_has_its_commit(checkout):
    root, commit = checkout
    assert source_commit(root / "src" / "r2r2") == commit


@needs_git
@pytest.mark.parametrize("name", ["core.py", "new.py"])
def test_changed_or_new_source_is_dirty(checkout, name):
    root, commit = checkout
    (root / "src" / "r2r2" / name).write_text("changed")
    assert source_commit(root / "src" / "r2r2") == f"{commit}+dirty"


@needs_git
def test_other_files_do_not_make_it_dirty(checkout):
    root, commit = checkout
    (root / "notes.txt").write_text("")
    assert source_commit(root / "src" / "r2r2") == commit


@needs_git
def test_package_installed_inside_a_repository_has_no_commit(checkout):
    root, _ = checkout
    package = root / ".venv" / "lib" / "python3.12" / "site-packages" / "r2r2"
    shutil.copytree(root / "src" / "r2r2", package)
    assert source_commit(package) == "unknown"


@needs_git
def test_repository_of_a_git_hook_is_ignored(checkout, monkeypatch):
    root, commit = checkout
    monkeypatch.setenv("GIT_DIR", str(root / "absent"))
    assert source_commit(root / "src" / "r2r2") == commit


@needs_git
def test_checkout_without_commits_is_unknown(tmp_path):
    (tmp_path / "src" / "r2r2").mkdir(parents=True)
    git(tmp_path, "init", "-q")
    assert source_commit(tmp_path / "src" / "r2r2") == "unknown"


def test_outside_a_repository_is_unknown(tmp_path):
    (tmp_path / "src" / "r2r2").mkdir(parents=True)
    assert source_commit(tmp_path / "src" / "r2r2") == "unknown"


@needs_git
def test_without_git_is_unknown(checkout, monkeypatch):
    root, _ = checkout
    monkeypatch.setenv("PATH", str(root))
    assert source_commit(root / "src" / "r2r2") == "unknown"
