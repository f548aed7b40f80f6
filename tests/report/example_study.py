"""A synthetic study with data for every chart."""

import numpy as np

from r2r2.report.study import MemberData, RunData, RunTiming, Series, Spectrum, make_study
from r2r2.stats.paper import find_suite
from r2r2.stats.scores import ACTION_REPEAT, Method, Override, Results
from r2r2.storage.evaluations import Row

AGENTS = ("td7", "td7+r2r2", "minphi", "minphi+r2r2")
TASKS = ("Hopper-v5", "dog-trot", "humanoid-run")
HOSTILE = '<script>alert("x")</script >&\'"</td>'


def example_study(agents=AGENTS, tasks=TASKS, utds=(1, 10, 20), seeds=5, points=10):
    """Return a study of agents on tasks, including an ablation."""
    methods = [Method(agent, utd) for agent in agents for utd in utds]
    if "td7+r2r2" in agents:
        methods.append(Method("td7+r2r2", utds[-1], (Override("lambda_var", "0.0", "0.01"),)))
    return make_study([example_run(m, tasks, seeds, points) for m in methods])


def example_run(method, tasks=TASKS, seeds=5, points=10, name=None):
    """Return a run whose numbers depend only on the arguments."""
    rng = np.random.default_rng([len(str(method)), method.utd or 0, seeds])
    members = [(task, seed) for task in tasks for seed in range(seeds)]
    results = [_member(rng, method, *member, points) for member in members]
    rows = [row for _, member_rows in results for row in member_rows]
    decisions = 500_000 * len(members)
    rate = 2000 / ((method.utd or 1) + 3)
    timing = RunTiming(
        decisions / rate,
        len(members),
        decisions,
        decisions * (method.utd or 1),
        rate * (method.utd or 1),
        rate,
    )
    name = name or str(method)
    return RunData(
        name,
        f"runs/{name}",
        "finished",
        Results(method, rows, tuple(members)),
        tuple(member for member, _ in results),
        timing,
    )


def _member(rng, method, task, seed, points):
    """Return a member and its evaluations: R2R2 learns faster and keeps its rank."""
    repeat = ACTION_REPEAT.get(find_suite(task), 1)
    steps = np.linspace(0, 500_000 * repeat, points + 1)[1:]
    part = np.linspace(0, 1, points + 1)[1:]
    r2r2, utd = "+r2r2" in method.agent, method.utd or 1
    speed = 2 + (2 if r2r2 else 1) * np.log(utd + 1) + rng.normal(0, 0.3)
    top = 900 * (1 + (0.25 if r2r2 else 0.05) * np.log10(utd)) * rng.uniform(0.85, 1.1)
    values = top * (1 - np.exp(-speed * part)) + rng.normal(0, 25, points)
    if method.overrides:
        values = values * 0.8
    rows = [
        Row("example", task, seed, "return", int(step), float(value))
        for step, value in zip(steps, values, strict=True)
    ]
    decay = (18 if r2r2 else 10) * rng.uniform(0.9, 1.1)
    spectrum = 60 * np.exp(-np.arange(64) / decay)
    rank = (50 if r2r2 else 50 - 25 * part) + rng.normal(0, 1.5, points)
    member = MemberData(
        f"{task}-{seed}",
        task,
        seed,
        int(steps[-1]),
        500_000 * utd,
        {"effective_rank": Series(steps, rank * np.ones(points))},
        (Spectrum(int(steps[-1]), spectrum),),
        (),
        "",
    )
    return member, rows
