"""Imports between the packages of r2r2, checked against a table."""

import ast
from pathlib import Path

import r2r2

PACKAGE = Path(r2r2.__file__).parent

# What each package may import, from the lowest to the highest.
ALLOWED = {
    "config": set(),
    "policy": set(),  # in workers, which must not import JAX
    "envs": {"config", "policy"},
    "agents": {"config", "envs"},
    "replay": {"config", "envs", "agents"},
    "compute": {"config", "policy", "envs", "agents", "replay"},
    "diagnostics": {"config", "envs", "agents", "replay", "compute"},
    "storage": {"config"},
    "export": {"config", "policy", "storage"},  # JAX is imported for stablehlo only
    "stats": {"config", "storage"},
    "report": {"config", "storage", "stats"},
    # `diagnostics` for the effective rank, which is NumPy.
    "theory": {"config", "diagnostics", "storage", "stats", "report"},
    "training": {
        *("config", "policy", "envs", "agents", "replay", "compute", "diagnostics", "storage")
    },
    # `compute` for the device that the user chose.
    "api": {"config", "policy", "envs", "agents", "compute", "storage", "report", "training"},
    "trainer": {
        *("config", "envs", "policy", "compute", "storage", "training"),
        *("api", "saved_run", "progress"),
    },
    "bench": {"config", "envs", "agents", "replay", "compute", "storage", "training", "api"},
    "saved_run": {"config", "policy", "envs", "storage", "training"},  # without JAX, for robots
    "saved_results": {"config", "envs", "storage", "saved_run"},  # without JAX
    "progress": {"training", "compute"},
    "torch": {"config"},  # without JAX
    # `agents` in a subprocess that computes their sizes; `saved_run` and `export` for the policies
    # in folders of results.
    "experiments": {
        *("config", "envs", "agents", "compute", "storage", "stats", "report", "training"),
        *("bench", "api", "saved_run", "export"),
    },
    # `experiments` for the GPUs that NVIDIA's driver knows; never JAX itself.
    "doctor": {"envs", "storage", "training", "experiments"},
    "cli": {
        *("doctor", "config", "policy", "envs", "compute", "storage", "export", "stats", "report"),
        *("theory", "training", "bench", "api", "saved_run", "progress", "experiments"),
    },
    "__init__": {
        *("agents", "api", "config", "diagnostics", "experiments", "export", "policy", "saved_run"),
        *("saved_results", "stats", "storage", "trainer", "training"),
    },
    "__main__": {"cli"},
}


def imported_names(source: Path) -> set[str]:
    """Return the dotted names that a file imports, in whichever form."""
    names = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{source} uses a relative import"
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def package_of(name: str) -> str | None:
    """Return the package of r2r2 that a dotted name belongs to, if any."""
    parts = name.split(".")
    return parts[1] if parts[0] == "r2r2" and parts[1:2] and parts[1] in ALLOWED else None


def test_packages_import_only_what_the_table_allows():
    checked = 0
    for source in sorted(PACKAGE.rglob("*.py")):
        package = source.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for name in imported_names(source):
            target = package_of(name)
            if target is not None and target != package:
                checked += 1
                assert target in ALLOWED[package], f"{source} imports {name}"
    assert checked > 50


def test_the_table_lists_every_package():
    packages = {path.stem for path in PACKAGE.iterdir() if not path.stem.startswith(".")}
    assert packages - {"__pycache__", "py"} == set(ALLOWED)


def test_config_policy_envs_stats_report_and_theory_never_import_jax():
    for package in ("config", "policy", "envs", "stats", "report", "theory"):
        for source in (PACKAGE / package).rglob("*.py"):
            roots = {name.split(".")[0] for name in imported_names(source)}
            assert "jax" not in roots, source


def test_no_fixed_float_type_where_it_must_follow_the_parameters():
    for package in ("agents", "compute", "replay"):
        for source in (PACKAGE / package).rglob("*.py"):
            assert "np.float32" not in source.read_text(), source
