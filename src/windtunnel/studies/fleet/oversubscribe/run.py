"""A trace of jobs as tasks beside services: `requested`, `rose` and `rose-qos` on equal machines.

A node of the site is a machine, a job's GPUs are its request; jobs larger than what services leave are left out and
named.

machine_use             mean share of the machines' time in use, first to last submission
machine_requested       mean share that is sold
service_p95_ratio       95th percentile of the services' latency over that of `requested` on the same trace and seed
evictions, moves, memory_kills, lost_gpu_hours
"""

from __future__ import annotations

import math

import numpy as np

from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import COMPLETED, STATES, UNFINISHED, Outcome
from windtunnel.studies.fleet.oversubscribe.clock import Machines, Tally, Task
from windtunnel.studies.fleet.oversubscribe.machines import Beside
from windtunnel.studies.fleet.policies.beyond.oversubscribe import RULES, Rules
from windtunnel.studies.fleet.site import Site


def run_oversubscribed(jobs: Jobs, site: Site, name: str, options: Options) -> Outcome:
    """Outcome of all jobs."""
    world = Beside()
    tasks, tally = simulated(jobs, site, RULES[name], world, options.seed)
    plain = tally if name == "requested" else simulated(jobs, site, RULES["requested"], world, options.seed)[1]
    return Outcome(
        jobs,
        name,
        "exact",
        np.array([math.nan if task.start_s is None else task.start_s for task in tasks]),
        np.array([math.nan if task.end_s is None else task.end_s for task in tasks]),
        np.array([task.retries + task.moves for task in tasks], np.int64),
        np.array([task.held_s * task.request * site.per_node for task in tasks]),
        np.array([STATES.index(UNFINISHED if task.end_s is None else COMPLETED) for task in tasks], np.int8),
        extra={
            "machine_use": round(tally.used / max(tally.steps, 1), 6),
            "machine_requested": round(tally.requested / max(tally.steps, 1), 6),
            "service_p95_ratio": round(tally.p95() / plain.p95(), 6),
            "evictions": tally.evicted,
            "moves": tally.moved,
            "memory_kills": tally.killed,
            "lost_gpu_hours": round(tally.lost_s * site.per_node / 3600, 6),
        },
    )


def simulated(jobs: Jobs, site: Site, rules: Rules, beside: Beside, seed: int) -> tuple[list[Task], Tally]:
    """Tasks as they ended, and the machines' tally."""
    tasks = [
        Task(index, float(jobs.submit_s[index]), int(jobs.gpus[index]) / site.per_node, float(jobs.duration_s[index]))
        for index in range(len(jobs))
    ]
    return tasks, Machines(tasks, site.nodes, rules, beside, seed=seed).run()
