"""A stage imports only what sorts before it: the tree shows the flow of data."""

import ast
from pathlib import Path

import r2r2

PACKAGE = Path(r2r2.__file__).parent
EXEMPT = {PACKAGE / "__init__.py", PACKAGE / "__main__.py"}


def imported(source: Path) -> set[str]:
    """Every module that a file imports, in whichever form."""
    names = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{source} imports relatively"
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def stage_of(name: str) -> str | None:
    parts = name.split(".")
    known = {path.stem for path in PACKAGE.iterdir()}
    return parts[1] if parts[0] == "r2r2" and parts[1:2] and parts[1] in known else None


def test_a_stage_imports_only_stages_before_it():
    checked = 0
    for source in sorted(set(PACKAGE.rglob("*.py")) - EXEMPT):
        here = source.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for name in imported(source):
            stage = stage_of(name)
            if stage:
                checked += 1
                assert stage <= here, f"{source} imports {name}"
    assert checked > 50


def test_reports_never_import_jax():
    for source in (PACKAGE / "report").rglob("*.py"):
        assert not {n for n in imported(source) if n.split(".")[0] == "jax"}, source
        assert "r2r2.core" not in imported(source), source


def test_no_type_is_named_where_it_must_follow_the_parameters():
    for room in ("learn", "interact"):
        for source in (PACKAGE / room).rglob("*.py"):
            assert "float32" not in source.read_text(), source
