"""A trace in a published simulator's clock: `simulate`.

    adaptdl      AdaptDL's simulator: 60 s ticks, whole seconds, 30 s restarts (tiresias, optimus, pollux)
    elasticflow  ElasticFlow's simulator: slots, ends rounded up, overheads (edf, tiresias, gandiva, elasticflow)

In the clock elasticflow, `elasticflow` is the released artifact's reading, since that made the published figures.
"""

from __future__ import annotations

import math

import numpy as np

from oracles.adaptdl import clock, pollux
from oracles.elasticflow import edf, elasticflow, gandiva, tiresias
from oracles.elasticflow.jobs import ef_jobs
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.measured.jobs import works
from windtunnel.studies.fleet.outcome import COMPLETED, REJECTED, STATES, UNFINISHED, Outcome
from windtunnel.studies.fleet.policies.elastic.optimus import Optimus
from windtunnel.studies.fleet.policies.rigid.tiresias import Tiresias
from windtunnel.studies.fleet.site import Site
from windtunnel.studies.fleet.speeds.scaling import slot_of
from windtunnel.studies.fleet.speeds.tables import Tables


def in_adaptdl(jobs: Jobs, site: Site, policy: str, tables: Tables) -> Outcome:
    """What becomes of each job in AdaptDL's clock."""
    work = works(jobs, site, tables, learns=policy == "pollux")
    nodes = [site.per_node] * site.nodes
    if policy == "pollux":
        found = pollux.run(work, jobs.submit_s, nodes, None)
        start_s, end_s, restarts, gpu_seconds = (
            found[name] for name in ("start_s", "end_s", "restarts", "gpu_seconds")
        )
    else:
        running = [
            clock.Running(index, float(jobs.submit_s[index]), int(jobs.gpus[index]), work[index])
            for index in range(len(jobs))
        ]
        clock.run(running, nodes, Tiresias() if policy == "tiresias" else Optimus())
        never = math.nan
        times = ((job.start_s, job.end_s) for job in running)
        start_s, end_s = np.array([[never if at is None else at for at in pair] for pair in times]).T
        restarts, gpu_seconds = (
            np.array([getattr(job, name) for job in running]) for name in ("restarts", "gpu_seconds")
        )
    state = np.where(np.isnan(end_s), STATES.index(UNFINISHED), STATES.index(COMPLETED)).astype(np.int8)
    return Outcome(jobs, policy, "adaptdl", start_s, end_s, np.maximum(restarts, 0), gpu_seconds, state)


def in_elasticflow(jobs: Jobs, site: Site, policy: str, tables: Tables) -> Outcome:
    """What becomes of each job in ElasticFlow's clock; `scored_on_time` as its authors score."""
    slot_s = slot_of(site.gpu)
    made = ef_jobs(jobs, site, tables, policy)
    if policy == "edf":
        edf.run(made, site.gpus, slot_s)
    elif policy == "tiresias":
        tiresias.run(made, site.gpus, slot_s)
    elif policy == "gandiva":
        gandiva.run(made, site.nodes, site.per_node, slot_s)
    else:
        elasticflow.run(made, site.nodes, site.per_node, slot_s, together=policy != "elasticflow-paper")
    done = [job.state == "completed" for job in made]
    index = {"completed": COMPLETED, "rejected": REJECTED}
    scored = np.array([ok and not job.scored_late for ok, job in zip(done, made, strict=True)])
    if not policy.startswith("elasticflow"):
        scored = np.array([ok and job.end_s <= job.deadline_s for ok, job in zip(done, made, strict=True)])
    return Outcome(
        jobs,
        policy,
        "elasticflow",
        np.array([job.start_s if math.isfinite(job.start_s) else math.nan for job in made]),
        np.array([job.end_s if ok else math.nan for ok, job in zip(done, made, strict=True)], float),
        np.array([job.restarts for job in made], np.int64),
        np.array([job.gpu_seconds for job in made], float),
        np.array([STATES.index(index.get(job.state, UNFINISHED)) for job in made], np.int8),
        scored_on_time=scored,
    )
