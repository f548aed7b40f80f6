"""`r2r2 push`: publish a policy to a folder or the Hugging Face Hub."""

import re
from pathlib import Path

from r2r2.cli.argparser import FILE, ArgumentParser, field_table
from r2r2.cli.export import MEMBER_FIELDS, describe_policy, load_policy
from r2r2.config.fields import ANY
from r2r2.envs.spec import Member
from r2r2.export.hub import Publication, push_policy
from r2r2.policy.policy import Policy

PARSER = ArgumentParser(
    "push",
    "RUN DEST [--option VALUE]...",
    """\
Publish the policy of a run in the layout of the Hugging Face Hub: its weights
and policy.py for NumPy, a model card, the config, the learning curve, and a
video if --video names one or the run folder contains one with the name of the
member, such as Hopper-v5_s3.mp4. DEST is a folder, or hf:owner/name for a model
repository of the Hub (pip install 'r2r2[hub]').
""",
    """\
  r2r2 push RUN published/hopper --member Hopper-v5:3
  r2r2 push RUN hf:owner/hopper --video out.mp4 --private
""",
    field_table(
        *MEMBER_FIELDS,
        ("video", str, "", "mp4 file to publish", FILE),
        ("private", bool, False, "make a new repository private", ANY),
        ("overwrite", bool, False, "replace an earlier one in a folder", ANY),
    ),
    positional=True,
)


def run(argv: list[str]) -> int:
    """Run `r2r2 push` and return its exit code."""
    given = PARSER.parse(argv)
    path, dest = PARSER.pop_arguments(given, "a run folder and a destination: r2r2 push RUN DEST")
    policy = load_policy(Path(path), given)
    video = Path(given["video"]) if "video" in given else _find_video(Path(path), policy)
    options = given.get("overwrite", False), given.get("private", False)
    where = push_policy(policy.parts, Publication(Path(path), video), dest, *options)
    print(f"published {describe_policy(policy)}: {where}")
    return 0


def _find_video(run_dir: Path, policy: Policy) -> Path | None:
    """Return the newest video in a run folder that is named after the policy's member."""
    if policy.seed is None:
        return None
    member = re.escape(Member(policy.task, policy.seed).name)
    pattern = re.compile(rf"(?<![\w-]){member}(?!\d)")  # not seed 1 of seed 12
    videos = [path for path in run_dir.glob("*.mp4") if pattern.search(path.name)]
    return max(videos, key=lambda path: path.lstat().st_mtime, default=None)
