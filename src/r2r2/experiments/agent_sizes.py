"""Memory and work of an agent's update, computed by JAX in a process of its own.

The process of a sweep must not start JAX, which would reserve the memory of a GPU. So JAX traces
agents in a subprocess on the CPU, a fraction of a second each, and the results are kept in the
user's cache folder.

    python -m r2r2.experiments.agent_sizes < QUERIES > SIZES
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, cast

from r2r2.config.common import AgentConfig
from r2r2.config.resolve import resolve_toml
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import to_toml
from r2r2.envs.spec import Spec
from r2r2.experiments.machine import available_cores
from r2r2.storage.files import atomic_write, cache_folder, is_number, read_json_object

TRACE_SECONDS = 600.0  # limit of the subprocess
CACHE_FILE = "sizes.json"
CACHE_FORMAT = 1  # to be raised when agents change
MAX_CACHED = 2000
MAX_PROCESSES = 8


class AgentSizes(NamedTuple):
    """What one member's update needs, of an agent on a task of some sizes."""

    state: float  # bytes of networks, targets and moments
    update: float  # bytes of activations
    flops: float  # of the matrix products of an update
    row: float  # bytes of a transition in the replay
    min_rows: float  # least rows of a replay


class SizeQuery(NamedTuple):
    """An agent on a task of some sizes."""

    agent: AgentConfig
    spec: Spec

    @property
    def key(self) -> str:
        """A digest of the query."""
        text = json.dumps([CACHE_FORMAT, self.toml, *self.spec])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def toml(self) -> str:
        """The agent as the TOML of a run."""
        return to_toml(RunConfig(agent=self.agent, env=("task",)))


def find_sizes(queries: Iterable[SizeQuery]) -> dict[str, AgentSizes]:
    """Return the sizes of agents by the key of the query, from the cache or from JAX.

    An agent that cannot be built, such as one whose module is missing, is left out.
    """
    wanted = {query.key: query for query in queries}
    known = _read_cache()
    if missing := [query for key, query in wanted.items() if key not in known]:
        traced = _trace(missing)
        known = dict(list({**known, **traced}.items())[-MAX_CACHED:])
        if traced:
            _write_cache(known)
    return {key: known[key] for key in wanted if key in known}


def _read_cache() -> dict[str, AgentSizes]:
    return _parse(read_json_object(cache_folder() / CACHE_FILE) or {})


def _write_cache(sizes: Mapping[str, AgentSizes]) -> None:
    path = cache_folder() / CACHE_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(sizes) + "\n")
    except OSError:
        pass  # a cache only


def _parse(table: Mapping[str, object]) -> dict[str, AgentSizes]:
    """Return the sizes in JSON; whatever else it contains is left out."""
    sizes: dict[str, AgentSizes] = {}
    for key, value in table.items():
        values = cast("list[object]", value) if isinstance(value, list) else []
        numbers = [float(x) for x in values if is_number(x)]
        if len(values) == len(numbers) == len(AgentSizes._fields):
            sizes[key] = AgentSizes(*numbers)
    return sizes


def _trace(queries: Sequence[SizeQuery]) -> dict[str, AgentSizes]:
    """Trace agents in several processes at a time."""
    count = max(1, min(available_cores(), MAX_PROCESSES, len(queries) // 4))
    chunks = [queries[n::count] for n in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return {k: v for sizes in pool.map(_trace_in_subprocess, chunks) for k, v in sizes.items()}


def _trace_in_subprocess(queries: Sequence[SizeQuery]) -> dict[str, AgentSizes]:
    text = json.dumps([[query.key, query.toml, *query.spec] for query in queries])
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "r2r2.experiments.agent_sizes"]
    try:
        result = subprocess.run(
            command, input=text, capture_output=True, text=True, env=env, timeout=TRACE_SECONDS
        )
        table: object = json.loads(result.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return _parse(cast("dict[str, object]", table)) if isinstance(table, dict) else {}


def main() -> None:
    """Trace the agents that standard input lists and print their sizes; imports JAX."""
    if "" not in sys.path:
        sys.path.insert(0, "")  # modules of the user's agents are in the working folder
    sizes: dict[str, AgentSizes] = {}
    for key, toml, obs_dim, action_dim in json.load(sys.stdin):
        try:
            sizes[key] = trace_sizes(SizeQuery(resolve_toml(toml).agent, Spec(obs_dim, action_dim)))
        except Exception as error:
            print(f"{key}: {error}", file=sys.stderr)
    print(json.dumps(sizes))


def trace_sizes(query: SizeQuery) -> AgentSizes:
    """Return the sizes of an agent, traced by JAX in this process."""
    from r2r2.agents.registry import build_agent
    from r2r2.compute.compiled import flops_of
    from r2r2.training import memory

    sizes = query.agent, query.spec, 1  # updates per step do not matter
    state = memory.agent_bytes(build_agent(*sizes))
    flops = flops_of(memory.update_program(*sizes))
    row = memory.row_bytes(query.spec)
    return AgentSizes(state, memory.update_bytes(*sizes), flops, row, memory.MIN_ROWS)


if __name__ == "__main__":
    main()
