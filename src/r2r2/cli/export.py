"""`r2r2 export`: a trained policy as files that run without r2r2."""

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal as format_bytes
from rich.table import Table

from r2r2.cli.argparser import FOLDER, ArgumentParser, field_table
from r2r2.cli.main import add_working_folder_to_path
from r2r2.config.errors import UserError
from r2r2.config.fields import ANY, one_of
from r2r2.export.export import FORMAT, FORMATS, check_export_dir, export_policy
from r2r2.export.measure import MeasurementError, action_seconds
from r2r2.policy.policy import Policy
from r2r2.saved_run import WEIGHTS, SavedRun, load
from r2r2.training.saved_config import select_members

MEMBER_FIELDS = (
    ("member", str, "", "member to take; default: the first", ANY),
    ("weights", str, "last", "last, or best evaluation's", one_of(*WEIGHTS)),
)

PARSER = ArgumentParser(
    "export",
    "RUN --format NAME --out DIR [--option VALUE]...",
    """\
Write the policy of a run as files that run without r2r2: encoder and actor,
normalization of observations, and actions in the environment's own range.
numpy: policy.npz and policy.py, which need NumPy only. onnx: policy.onnx.
stablehlo: policy.stablehlo, for jax.export. c: policy.h, without allocation.
README.md in the folder describes the policy and its use. The command prints
the size of each format and its median time per action on this machine.
""",
    """\
  r2r2 export RUN --format numpy --out policy
  r2r2 export RUN --member Hopper-v5:3 --weights best --format all --out policy
""",
    field_table(
        ("format", str, "", "numpy, onnx, stablehlo, c or all", FORMAT),
        ("out", str, "", "folder to write, new or empty", FOLDER),
        *MEMBER_FIELDS,
        ("overwrite", bool, False, "replace an earlier export", ANY),
    ),
    positional=True,
)


def run(argv: list[str]) -> int:
    """Run `r2r2 export` and return its exit code."""
    given = PARSER.parse(argv)
    path = Path(PARSER.pop_argument(given, "a run folder, as in 'r2r2 export RUN'"))
    for option, expected in {"format": FORMAT.description, "out": FOLDER.description}.items():
        if option not in given:
            raise UserError(f"--{option}: value missing; expected {expected}")
    out, overwrite = Path(given["out"]), given.get("overwrite", False)
    check_export_dir(out, overwrite)
    policy = load_policy(path, given)
    export_policy(policy.parts, given["format"], out, overwrite)
    print(f"{out}: {describe_policy(policy)}")
    names = list(FORMATS) if given["format"] == "all" else [given["format"]]
    table, failures = _table(out, policy, names)
    Console(emoji=False).print(table)
    for failure in failures:
        print(f"r2r2: error: {out}: {failure}", file=sys.stderr)
    return 1 if failures else 0


def load_policy(path: Path, given: dict[str, Any]) -> Policy:
    """Return the policy that `--member` and `--weights` choose: by default, the first member's."""
    add_working_folder_to_path()
    saved = load(path)
    member = select_members(_candidates(saved), given.get("member"))[0]
    return saved.policy(*member, weights=given.get("weights", "last"))


def _candidates(saved: SavedRun) -> Any:
    """Return the members, those that were stopped last."""
    return tuple(sorted(saved.members, key=lambda member: member.name in saved.stopped))


def describe_policy(policy: Policy) -> str:
    """Return a line with the policy's agent, member and weights."""
    info, step = policy.info, policy.info.get("step")
    at = f" at step {step:,}" if isinstance(step, int) else ""
    return f"{info['agent']}, {policy.task}:{policy.seed}, {info['weights']} weights{at}"


def _table(out: Path, policy: Policy, names: list[str]) -> tuple[Table, list[str]]:
    """Return the sizes and times, and a line for every format that does not run here."""
    table, failures = Table("format", "files", "size", "time per action"), list[str]()
    for name in names:
        size = sum((out / file).stat().st_size for file in FORMATS[name])
        try:
            measured = _time_text(name, action_seconds(out, policy.parts, name))
        except MeasurementError as error:
            measured = "failed"
            failures.append(f"format {name!r} was written but does not run here: {error}")
        table.add_row(name, ", ".join(FORMATS[name]), format_bytes(size), measured)
    return table, failures


def _time_text(name: str, seconds: float | None) -> str:
    if seconds is not None:
        return f"{1e6 * seconds:.1f} us"
    return "not measured: " + {"onnx": "no onnxruntime"}.get(name, "no C compiler")
