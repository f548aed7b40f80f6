"""Write a policy in one or all formats to a folder, completely or not at all."""

import importlib
import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from r2r2.config.errors import UserError, did_you_mean
from r2r2.config.fields import one_of
from r2r2.export.card import model_card
from r2r2.export.layout import observation_layout
from r2r2.policy.policy import Policy, PolicyParts
from r2r2.policy.spaces import spaces_to_json
from r2r2.storage.files import (
    atomic_write,
    file_entry,
    output_entries,
    read_json_object,
    replace_dir,
)

# The files of each format.
FORMATS = {
    "numpy": ("policy.npz", "policy.py"),
    "onnx": ("policy.onnx",),
    "stablehlo": ("policy.stablehlo",),
    "c": ("policy.h",),
}
FORMAT = one_of(*FORMATS, "all")
CARD_FILE, EXPORT_FILE = "README.md", "export.json"
EXPORT_KIND, EXPORT_FORMAT = "r2r2 export", 1


def export_policy(
    policy: Policy | PolicyParts,
    format: str,  # noqa: A002
    out: Path | str,
    overwrite: bool = False,
) -> Path:
    """Write a policy as a folder of files that run without r2r2, with a model card.

    Args:
        policy: a policy, as `load(run).policy()` returns it, or its parts.
        format: 'numpy', 'onnx', 'stablehlo', 'c', or 'all'.
        out: the folder; it must be new or empty.
        overwrite: replace an earlier export in that folder.

    Returns:
        The folder.

    Raises:
        UserError: The format is unknown or not possible, or the folder is in use; nothing has
            been written then.

    Example:
        >>> import tempfile, numpy as np
        >>> from r2r2.policy.program import Operation, Program
        >>> from r2r2.policy.spaces import ObservationPart, TaskSpaces
        >>> spaces = TaskSpaces((ObservationPart((), (2,)),), -np.ones(2), np.ones(2))
        >>> program = Program(0, 1, (), (Operation("tanh", (0,), 1),), 1)
        >>> parts = PolicyParts(program, (), "float32", spaces)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     out = export_policy(parts, "c", f"{folder}/policy")
        ...     sorted(path.name for path in out.iterdir())
        ['README.md', 'export.json', 'policy.h']
    """
    if not FORMAT.is_valid(format):
        near = did_you_mean(format, FORMAT.choices)
        raise UserError(f"expected {FORMAT.description}, got {format!r}{near}", "format")
    parts = policy.parts if isinstance(policy, Policy) else policy
    out, names = Path(out), list(FORMATS) if format == "all" else [format]
    check = partial(check_export_dir, out, overwrite)
    check()
    files: dict[str, bytes] = {}
    for name in names:
        files |= policy_files(parts, name)
    files[CARD_FILE] = model_card(parts, names).encode()
    with replace_dir(out, check) as folder:
        for name, content in files.items():
            atomic_write(folder / name, content)
        write_record(folder, parts, {"formats": names}, files)
    return out


def policy_files(parts: PolicyParts, name: str) -> dict[str, bytes]:
    """Return the files of one format by name."""
    module = importlib.import_module(f"r2r2.export.{name}_format")
    try:
        files: dict[str, bytes] = getattr(module, f"{name}_files")(parts)
    except NotImplementedError as error:
        raise UserError(f"format {name!r}: {error}") from None
    return files


def write_record(
    folder: Path, parts: PolicyParts, facts: Mapping[str, Any], names: Mapping[str, Any]
) -> None:
    """Write what an export contains, with the checksums of the files `names`."""
    record = {
        "kind": EXPORT_KIND,
        "format": EXPORT_FORMAT,
        **facts,
        "policy": dict(parts.info),
        "spaces": spaces_to_json(parts.spaces),
        "inputs": [
            {"name": x.name, "path": list(x.part.path), "start": x.start, "stop": x.stop}
            for x in observation_layout(parts)
        ],
        "files": {name: file_entry(folder / name)._asdict() for name in names},
    }
    atomic_write(folder / EXPORT_FILE, json.dumps(_finite(record), indent=2) + "\n")


def _finite(value: Any) -> Any:
    """Return JSON values with None in place of numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_export_dir(path: Path, overwrite: bool) -> None:
    """Check that a folder is missing or empty or, with `overwrite`, an earlier export alone."""
    if Path.cwd().is_relative_to(path.resolve()):
        raise UserError(
            f"{path}: is the working folder or contains it, and cannot be replaced; "
            "choose another folder"
        )
    entries = output_entries(path)
    record = read_json_object(path / EXPORT_FILE) or {}
    if entries and record.get("kind") != EXPORT_KIND:
        raise UserError(f"{path}: not empty and not an export; choose another --out")
    if entries and not overwrite:
        raise UserError(f"{path}: contains an export; add --overwrite or choose another --out")
    files = record.get("files")
    known = {*files, EXPORT_FILE} if isinstance(files, dict) else {EXPORT_FILE}
    if others := [name for name in entries if name not in known and name != "__pycache__"]:
        raise UserError(
            f"{path}: this export also contains {others[0]!r}, which would be deleted; "
            "move that file or choose another --out"
        )
