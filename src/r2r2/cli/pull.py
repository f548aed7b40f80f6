"""`r2r2 pull`: fetch a published policy."""

from pathlib import Path

from r2r2.cli.argparser import ArgumentParser, field_table
from r2r2.config.fields import ANY
from r2r2.export.hub import pull_policy

PARSER = ArgumentParser(
    "pull",
    "SRC DIR [--overwrite]",
    """\
Fetch a policy that 'r2r2 push' published, from a folder or from hf:owner/name
(pip install 'r2r2[hub]'), into a new folder. The checksum of every file is
verified, and nothing that was fetched is executed. Read policy.py before you
run it, as you would any program from somebody else.
""",
    """\
  r2r2 pull published/hopper hopper
  r2r2 pull hf:owner/hopper hopper
""",
    field_table(("overwrite", bool, False, "replace an earlier one in DIR", ANY)),
    positional=True,
)


def run(argv: list[str]) -> int:
    """Run `r2r2 pull` and return its exit code."""
    given = PARSER.parse(argv)
    source, out = PARSER.pop_arguments(given, "a source and a folder: r2r2 pull SRC DIR")
    folder = pull_policy(source, Path(out), given.get("overwrite", False))
    files = sorted(path.name for path in folder.iterdir())
    print(f"{folder}: {', '.join(files)}")
    return 0
