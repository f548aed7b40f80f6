"""The model card of an exported policy."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from r2r2.export.layout import action_shape, is_nested, observation_layout
from r2r2.export.numpy_format import policy_title
from r2r2.policy.policy import PolicyParts

USAGE = {
    "numpy": """\
### NumPy

`policy.py` and `policy.npz` need NumPy only. `python policy.py` checks that the policy computes the
same on your machine.

```python
from policy import Policy

policy = Policy()
action = policy(observation)  # one observation, or a batch of them
```
""",
    "onnx": """\
### ONNX

`policy.onnx` runs in onnxruntime and other runtimes. Its inputs are float64 with a batch axis.

```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("policy.onnx")
{onnx_inputs}
(action,) = session.run(None, inputs)  # [batch, {action}]
```
""",
    "c": """\
### C

`policy.h` is C99 and C++11, allocates nothing and needs the math library only.

```c
#include "policy.h"

double observation[R2R2_OBSERVATION_SIZE], action[R2R2_ACTION_SIZE];
r2r2_policy(observation, action);
```
""",
    "stablehlo": """\
### StableHLO

`policy.stablehlo` is a program of `jax.export` for CPUs, GPUs and TPUs. Its argument is
{stablehlo}.

```python
import jax
from jax import export

jax.config.update("jax_enable_x64", True)  # observations are float64
policy = export.deserialize(bytearray(open("policy.stablehlo", "rb").read())).call
actions = policy({stablehlo_call})  # [batch, {action}]
```
""",
}

BAD_INPUT = """\
## Behaviour on bad input

- If an entry of an observation is NaN or infinite, or exceeds {dtype} after normalization, every
  entry of its action is NaN. Other observations of a batch are not affected.
- Every other action lies within the bounds of the action space. Only if numbers overflow inside
  the network, which takes observations of 1e18 and more, it may be NaN.
- Check for NaN before an action reaches a motor. Formats agree with the JAX policy within 1e-5 of
  the action range.
"""


def model_card(parts: PolicyParts, formats: Sequence[str]) -> str:
    """Return a description of an exported policy in Markdown.

    Example:
        >>> from r2r2.policy.spaces import ObservationPart, TaskSpaces
        >>> spaces = TaskSpaces((ObservationPart((), (3,)),), -np.ones(1), np.ones(1))
        >>> info = {"agent": "td7", "task": "Pendulum-v1", "seed": 0}
        >>> card = model_card(PolicyParts(None, (), "float32", spaces, info=info), ["c"])
        >>> card.splitlines()[0]
        '# td7 on Pendulum-v1, seed 0'
    """
    layout = observation_layout(parts)
    if not is_nested(parts):
        inputs = 'inputs = {"observation": np.asarray([observation], np.float64)}'
        stablehlo, call = "a batch of observations, float64", "observations"
    else:
        lines = (
            f"    {_literal(x.name)}: np.asarray([...], np.float64),  # {_code(x.part.name)}"
            for x in layout
        )
        inputs = "\n".join(["inputs = {", *lines, "}"])
        names = ", ".join(f"`{_literal(x.name)}`" for x in layout)
        stablehlo, call = f"a dict of float64 arrays with a batch axis, by name: {names}", "inputs"
    shape = ", ".join(map(str, action_shape(parts)))
    usage = "\n".join(
        USAGE[name].format(
            onnx_inputs=inputs, action=shape, stablehlo=stablehlo, stablehlo_call=call
        )
        for name in formats
    )
    return "\n".join(
        [
            f"# {policy_title(parts.info)}\n",
            "A policy for continuous control, trained with r2r2. It contains the encoder, the",
            "actor, the normalization of observations and the scaling of actions.\n",
            _table(("", ""), facts(parts)),
            _layout_text(parts),
            "## Use\n",
            usage,
            BAD_INPUT.format(dtype=parts.dtype),
        ]
    )


def facts(parts: PolicyParts) -> list[tuple[str, str]]:
    """Return what is known about a policy, as rows of a table."""
    info, versions = parts.info, parts.info.get("versions") or {}
    step = info.get("step")
    rows = {
        "Agent": info.get("agent"),
        "Task": info.get("task"),
        "Seed": info.get("seed"),
        "Trained for": f"{step:,} decision steps" if isinstance(step, int) else None,
        "Action repeat": info.get("action_repeat"),
        "Weights": {"last": "last", "best": "of the best evaluation"}.get(info.get("weights", "")),
        **return_facts(info.get("return")),
        "Commit": versions.get("commit"),
        "Versions": ", ".join(
            f"{name} {versions[name]}"
            for name in ("r2r2", "jax", "numpy", "gymnasium", "mujoco", "dm_control", "python")
            if name in versions
        ),
    }
    return [(name, _plain(value)) for name, value in rows.items() if value not in (None, "")]


def return_facts(record: Any) -> dict[str, str]:
    """Return the return of a policy, and its spread over the seeds of the run.

    Example:
        >>> facts = return_facts({"mean": 3.0, "seeds": [3.0, 1.0], "step": 50})
        >>> facts["Evaluation"], facts["All 2 seeds"][:16]
        ('return 3.0 at step 50', 'return 2.0 ± 1.4')
    """
    if not isinstance(record, dict):
        return {"Evaluation": "none"}
    rows = {"Evaluation": f"return {record['mean']:.1f} at step {record['step']:,}"}
    seeds = np.array([x for x in record["seeds"] if math.isfinite(x)])
    if len(seeds) > 1:
        spread = f"return {seeds.mean():.1f} ± {seeds.std(ddof=1):.1f} (mean and standard deviation"
        spread += f" over seeds), from {seeds.min():.1f} to {seeds.max():.1f}"
        rows[f"All {len(seeds)} seeds"] = spread
    return rows


def _layout_text(parts: PolicyParts) -> str:
    rows = [
        (f"`{_plain(x.part.name)}`", str(x.part.shape), f"{x.start} to {x.stop - 1}")
        for x in observation_layout(parts)
    ]
    text = "## Observation\n\nEach part is flattened in C order, and the parts are joined:\n\n"
    text += _table(("Part", "Shape", "Entries of the flat vector"), rows)
    spaces = parts.spaces
    bounds = zip(spaces.action_low, spaces.action_high, strict=True)
    rows = [(str(n), f"{low:g}", f"{high:g}") for n, (low, high) in enumerate(bounds)]
    shape = action_shape(parts)
    text += f"\n## Action\n\n{spaces.action_dtype} of shape {shape}, flat in C order:\n\n"
    return text + _table(("Entry", "Lowest", "Highest"), rows)


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _literal(text: str) -> str:
    """Return a text as Python source that is safe inside code of Markdown."""
    return _code(repr(text))


def _code(source: str) -> str:
    """Return Python source without backticks, which may occur only inside its texts."""
    return source.replace("`", "\\x60")


def _plain(value: object) -> str:
    """Return text that is safe inside a table of Markdown."""
    text = "".join(c if c.isprintable() else " " for c in str(value))
    return re.sub(r"([|`<>])", " ", text)
