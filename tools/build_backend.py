"""PEP 517 backend: hatchling, which also puts the documentation site into wheels.

Only a wheel needs MkDocs. An editable install does not build the site, so it needs nothing new.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling import build as hatchling
from hatchling.build import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
)
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what builds a wheel: the extra `docs`, in the versions of constraints.txt."""
    return [*hatchling.get_requires_for_build_wheel(config_settings), *site_requirements()]


def site_requirements() -> list[str]:
    """Return the extra `docs` and its dependencies, in the versions of constraints.txt."""
    extra = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split("[<>=]", requirement)[0] for requirement in extra["docs"]}
    pins, section = [], ""
    for line in Path("constraints.txt").read_text().splitlines():
        section = line if line.startswith("#") else section
        is_pin = "==" in line
        if is_pin and (section.startswith("# Documentation") or line.split("==")[0] in names):
            pins.append(line)
    return pins


class SiteHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the site when hatchling makes a wheel, and adds it as r2r2/site."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the site in a temporary folder, unless the install is editable."""
        if version == "editable":
            return
        self.folder = tempfile.TemporaryDirectory(prefix="r2r2-site-")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
        environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
        folder = ["--site-dir", self.folder.name]
        subprocess.run([*command, *folder], cwd=self.root, env=environment, check=True)
        build_data["force_include"][self.folder.name] = "r2r2/site"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if version != "editable":
            self.folder.cleanup()
