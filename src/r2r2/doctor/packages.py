"""Which packages are installed, in which versions, and whether they work together."""

import functools
import os
import platform
import tomllib
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import r2r2
from r2r2.doctor.child import Problem, run_check
from r2r2.storage.versions import package_version

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PACKAGE = Path(r2r2.__file__).resolve().parent
CONSTRAINTS = "constraints.txt"  # versions known to work; in a wheel, inside the package
ABSENT = "absent"
# Modules to import where the name of the package does not say it; dm_control's `__init__` is empty.
MODULES = {"dm-control": "r2r2.envs.dm_control"}
TASKS = {"gymnasium": "Hopper-v5", "dm-control": "cartpole-swingup"}  # made as a test
GL_VARIABLE = "MUJOCO_GL"  # the back end that MuJoCo loads when it is imported
RENDERING = ("gymnasium", "mujoco", "dm-control")  # these load it
NOT_NEEDED = ("optax", "flax")  # named in reports, as users of JAX often have them
# Packages of extras that are extras of another package.
EXTRA_PACKAGES = {"cuda": ("jax-cuda12-plugin", "jax-cuda13-plugin")}


class Package(NamedTuple):
    """A package that r2r2 needs."""

    name: str
    version: str  # 'absent' if it is not installed
    required: str  # such as '>=0.10,<0.12'
    known: str  # the version that r2r2 is tested with; "" if none is listed
    fits: bool = True  # the version is one of the required ones
    error: str = ""  # why it cannot be imported


def checkout() -> Path | None:
    """Return the checkout that r2r2 is imported from, or None for an installed package."""
    root = PACKAGE.parents[1]
    return root if PACKAGE.parent.name == "src" and (root / "pyproject.toml").is_file() else None


def requirements() -> dict[str, "list[Requirement]"]:
    """Return what r2r2 requires by extra; "" is what it always requires.

    A checkout is asked itself, because the metadata of an editable installation are those of the
    day of its installation.

    Example:
        >>> sorted(str(x.name) for x in requirements()[""])[:3]
        ['cloudpickle', 'dm_control', 'equinox']
    """
    from packaging.requirements import Requirement

    if root := checkout():
        project = _project(root)
        texts = {"": project["dependencies"], **project["optional-dependencies"]}
        return {extra: [Requirement(text) for text in found] for extra, found in texts.items()}
    facts = metadata.metadata("r2r2")
    wanted = [Requirement(text) for text in metadata.requires("r2r2") or ()]
    return {
        extra: [x for x in wanted if _belongs(x, extra)]
        for extra in ("", *(facts.get_all("Provides-Extra") or ()))
    }


def _project(root: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return project


def _belongs(requirement: "Requirement", extra: str) -> bool:
    """Return whether a requirement is one of this extra and not of r2r2 itself."""
    marker = requirement.marker
    always = marker is None or marker.evaluate({"extra": ""})
    return (
        always if not extra else not always and bool(marker and marker.evaluate({"extra": extra}))
    )


@functools.cache
def known_versions() -> dict[str, str]:
    """Return the versions known to work with this Python, by package.

    They come from `constraints.txt`, of the checkout or, in a wheel, of the package.

    Example:
        >>> known_versions()["dm-control"]
        '1.0.50'
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = ((checkout() or PACKAGE) / CONSTRAINTS).read_text().splitlines()
    pins = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    return {
        canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
        for pin in pins
        if pin.marker is None or pin.marker.evaluate()
    }


def python_required() -> str:
    """Return the versions of Python that r2r2 supports.

    Example:
        >>> python_required()
        '<3.13,>=3.11'
    """
    from packaging.specifiers import SpecifierSet

    root = checkout()
    text = _project(root)["requires-python"] if root else None
    return str(SpecifierSet(text or metadata.metadata("r2r2")["Requires-Python"]))


def find_packages(wanted: "Iterable[Requirement]") -> list[Package]:
    """Return the installed versions of required packages; nothing is imported."""
    from packaging.utils import canonicalize_name

    packages: list[Package] = []
    for requirement in wanted:
        name = canonicalize_name(requirement.name)
        version = package_version(name)
        fits = version == ABSENT or requirement.specifier.contains(version, prereleases=True)
        known = known_versions().get(name, "")
        packages.append(Package(name, version, str(requirement.specifier), known, fits))
    return packages


def import_errors(packages: Iterable[Package]) -> dict[str, str]:
    """Import packages, make a task of every suite, and return the errors by package.

    An error that `MUJOCO_GL` causes, by naming a back end that cannot be loaded, names it.
    """
    names = [x.name for x in packages if x.version != ABSENT]
    errors = _import_errors(names, {})
    broken = [name for name in errors if name in RENDERING]
    if os.environ.get(GL_VARIABLE) and broken:
        others = _import_errors(["numpy", *broken], {GL_VARIABLE: "disable"})
        errors |= {x: f"{GL_VARIABLE}: {errors[x]}" for x in broken if x not in others}
    return errors


def _import_errors(names: list[str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the errors by package, in child processes with these environment variables."""
    modules = {name: MODULES.get(name, name.replace("-", "_")) for name in names}
    errors = _errors("imports", modules, variables)
    if "numpy" in errors or "numpy" not in names:
        return errors  # the tasks cannot be made either
    makeable = {x: task for x, task in TASKS.items() if x in names and x not in errors}
    return errors | _errors("tasks", makeable, variables)


def _errors(
    check: str, subjects: Mapping[str, str], variables: Mapping[str, str]
) -> dict[str, str]:
    """Return what fails of a check, by package; a crash is that of the first without an answer."""
    if not subjects:
        return {}
    answer = run_check([check, *subjects.values()], variables)
    told = {str(fact.get("name")): str(fact.get("error")) for fact in answer.facts}
    errors = {name: told.get(subject, "") for name, subject in subjects.items()}
    silent = [name for name, subject in subjects.items() if subject not in told]
    if silent and answer.failure:
        errors[silent[0]] = answer.failure
    return {name: error for name, error in errors.items() if error}


def package_problems(packages: Iterable[Package]) -> list[Problem]:
    """Return what is wrong with packages that r2r2 always needs; each one stops training."""
    packages = list(packages)
    problems = _back_end_problems(packages)
    for package in packages:
        version = f"=={package.known}" if package.known else package.required
        install = f"install it: pip install '{package.name}{version}'"
        if package.version == ABSENT:
            problems.append(Problem(package.name, "not installed", install, True))
        elif not package.fits:
            what = f"version {package.version} is not supported; expected {package.required}"
            problems.append(Problem(package.name, what, install, True))
        elif package.error and GL_VARIABLE not in package.error:
            what = f"version {package.version} does not work ({package.error})"
            advice = f"reinstall it: pip install --force-reinstall '{package.name}{version}'"
            problems.append(Problem(package.name, what, advice, True))
    return problems


def _back_end_problems(packages: Iterable[Package]) -> list[Problem]:
    """Return one problem for all packages that fail because of `MUJOCO_GL`."""
    failing = {x.name: x.error for x in packages if GL_VARIABLE in x.error}
    if not failing:
        return []
    chosen = os.environ.get(GL_VARIABLE, "")
    error = next(iter(failing.values())).removeprefix(f"{GL_VARIABLE}: ")
    what = f"{', '.join(failing)} cannot load the back end {chosen!r} ({error})"
    advice = f"unset {GL_VARIABLE}; r2r2 then looks for a back end that works"
    return [Problem(GL_VARIABLE, what, advice, True)]


def python_problems() -> list[Problem]:
    """Return a problem if this version of Python is not supported."""
    from packaging.specifiers import SpecifierSet

    required, version = python_required(), platform.python_version()
    if SpecifierSet(required).contains(version, prereleases=True):
        return []
    advice = "create the virtual environment with python3.11 or python3.12"
    what = f"version {version} is not supported; expected {required}"
    return [Problem("python", what, advice, True)]


def installation_problems() -> list[Problem]:
    """Return a problem if the metadata of the installation are not those of the code."""
    installed = package_version("r2r2")
    if installed in (r2r2.__version__, ABSENT):
        return []
    what = f"the code is {r2r2.__version__}, but version {installed} was installed"
    return [Problem("r2r2", what, "install it again: pip install -e . in the checkout")]


def find_extras(wanted: "Mapping[str, list[Requirement]]") -> dict[str, list[Package]]:
    """Return the packages of the optional extras, without those for developers."""
    extras: dict[str, list[Package]] = {}
    for extra, required in wanted.items():
        if extra in EXTRA_PACKAGES:
            found = [Package(x, package_version(x), "", "") for x in EXTRA_PACKAGES[extra]]
            extras[extra] = [x for x in found if x.version != ABSENT] or found[:1]
        elif extra not in ("", "dev"):
            extras[extra] = find_packages(required)
    return extras


def extra_problems(extras: Mapping[str, Iterable[Package]]) -> list[Problem]:
    """Return what is wrong with the packages of extras that are installed."""
    return [
        Problem(
            package.name,
            f"version {package.version} is not supported by the extra {extra}; "
            f"expected {package.required}",
            f"install another version: pip install '{package.name}{package.required}'",
        )
        for extra, packages in extras.items()
        for package in packages
        if not package.fits
    ]
