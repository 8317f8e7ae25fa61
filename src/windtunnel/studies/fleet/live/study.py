"""Commands of a trace run here under one policy, and their simulation beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel.errors import SpecError, UserError
from windtunnel.questions.asked.fleet.further import FleetLive
from windtunnel.questions.header import Answer
from windtunnel.studies.fleet.asked import as_asked, refuse_files
from windtunnel.studies.fleet.clock.clock import Clock
from windtunnel.studies.fleet.clock.decision import Policy
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.clock.work import Rigid
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.live.host import hosts_of
from windtunnel.studies.fleet.live.scheduler import LiveJob, Scheduler
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.parts.part import parts_of
from windtunnel.studies.fleet.parts.profile import UNITS, Part
from windtunnel.studies.fleet.policies.table import POLICIES, names_of, on_clock
from windtunnel.studies.fleet.site import Site

Row = dict[str, str | float | None]  # of a job: its name, times, counts and state
BY_DURATION = ("sjf", "sjf-skip", "easy", "srtf")


@dataclass(frozen=True)
class LiveRun(Answer):
    """What became of each job, real and simulated. Means are of the jobs that completed."""

    policy: str
    jct_mean_s: float | None
    simulated_jct_mean_s: float | None
    jobs: tuple[Row, ...]
    warnings: Sequence[str] = ()

    JSON_LEAVES_OUT = ("warnings",)


def run_live(
    jobs: Jobs, site: Site, names: list[str], folder: Path, restart_s: float = 0.0, hosts: tuple[str, ...] = ()
) -> LiveRun:
    """Run the jobs' commands under one policy; each job's JCT, real and simulated.

    `hosts`: the words that start a command on each node (ssh b); none: all nodes are this machine.
    `restart_s`: of each `duration_s`, what a start takes; a job that is started again pays it again.
    """
    # Nobody knows how fast a command is on other GPUs, and live jobs are of no queue.
    able = names_of(lambda traits: on_clock(traits) and not traits.sizes and "quota" not in traits.needs)
    if len(names) != 1 or names[0] not in able:
        raise SpecError("--policy", ",".join(names), f"a live run has one of {', '.join(able)}")
    if site.sizes:
        raise SpecError("--cluster", site.text, "a live run has nodes of one size: give GPU:NODESxGPUS")
    if site.slurm_cluster.divided:
        remedy = "a live run cuts no GPU: give a file that names slices as `devices`, not slurm.conf"
        raise SpecError("--cluster", site.text, remedy)
    commands = jobs.columns.get("command")
    if commands is None or not all(commands):
        raise SpecError(
            "command", None, "each job of a live run needs one, such as command: python train.py", jobs.source
        )
    parts, texts = parts_of(jobs, site), jobs.columns.get("part", [""] * len(jobs))
    plain = [text.removesuffix("-me") for text in texts]  # what is without media engines may have them
    knows = POLICIES[names[0]].parts and names[0] != "slurm"
    for at, part in enumerate(parts):
        why = part
        if isinstance(part, Part):
            obstacle = "" if knows else f"{names[0]} gives live jobs whole ones"
            if part.slices and not plain[at].endswith("b"):  # one a GPU at most, which no policy knows
                obstacle = f"a live run cuts no slice with media engines: give part: {plain[at].partition('b')[0]}b"
            if part.slices and (site.gpu == "gpu" or site.devices):
                obstacle = "slices are cut of GPUs by their name: give --cluster a100:1x2, without `devices`"
            why = obstacle and f"asks for {jobs.columns['part'][at]} of a GPU, and {obstacle}"
        elif part is None and any(isinstance(other, Part) and other.slices for other in parts):
            why = "asks for whole GPUs beside jobs of slices, and MIG is on or off: give it the largest profile"
        if isinstance(why, str) and why:
            raise UserError(f"{jobs.where(at)}: {jobs.name[at]} {why}")
    unit = UNITS if any(parts) else 1
    live_jobs = [
        LiveJob(
            at,
            jobs.name[at],
            float(jobs.submit_s[at]),
            int(jobs.gpus[at]),
            commands[at],
            None if math.isnan(jobs.duration_s[at]) else float(jobs.duration_s[at]),
            part if isinstance(part, Part) else None,
            plain[at] if isinstance(part, Part) and part.slices else "",
        )
        for at, part in enumerate(parts)
    ]
    large = next((job for job in live_jobs if not 0 < job.gpus <= site.gpus), None)
    if large is not None:
        raise SpecError(f"gpus of {large.name}", large.gpus, f"give from 1 to {site.gpus}", jobs.source)
    odd = next((job for job in live_jobs if "/" in job.name or job.name in ("", ".", "..")), None)
    if odd is not None:
        raise SpecError(
            "job", odd.name, "a live job's name is a folder's: leave out slashes and dots alone", jobs.source
        )
    unsaid = next((job for job in live_jobs if job.duration_s is None), None)
    if unsaid is not None and names[0] in BY_DURATION:
        remedy = f"{names[0]} orders jobs by it: add it to each, or give --policy fifo"
        raise SpecError(f"duration_s of {unsaid.name}", None, remedy, jobs.source)
    nodes = site.node_sizes
    if hosts and len(hosts) != site.nodes:
        raise SpecError("--host", ", ".join(hosts), f"give one for each of the {site.nodes} nodes of --cluster")

    def policy() -> Policy:
        return POLICIES[names[0]].make_policy(replace(site, per_node=site.per_node * unit, unit=unit), Options())

    scheduler = Scheduler(live_jobs, nodes, policy(), folder, restart_s, hosts_of(hosts), site.devices, unit)
    scheduler.run()
    simulated: dict[int, float] = {}
    if all(job.duration_s is not None for job in live_jobs):
        running = [
            Running(
                job.index,
                round(job.submit_s * NS),
                job.units(unit),
                Rigid(max((job.duration_s or 0.0) - restart_s, 0.0), restart_s),
                part=job.part,
            )
            for job in live_jobs
        ]
        Clock(running, [gpus * unit for gpus in nodes], policy()).run()
        simulated = {job.index: ((job.end_ns or 0) - job.submit_ns) / NS for job in running}
    rows: list[Row] = [
        {
            "job": job.name,
            "jct_s": None if job.end_s is None else round(job.end_s - job.submit_s, 3),
            "simulated_jct_s": round(simulated[job.index], 3) if simulated else None,
            "preemptions": job.preemptions,
            "deaths": job.deaths,
            "starts": job.attempt,
            "state": "failed" if job.failed else "completed",
        }
        for job in live_jobs
    ]
    # Of the jobs that completed, real and simulated alike: what failed has no completion time.
    whole = [row for row in rows if row["state"] == "completed"]
    return LiveRun(names[0], _mean(whole, "jct_s"), _mean(whole, "simulated_jct_s"), tuple(rows), scheduler.warnings)


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [value for row in rows if isinstance(value := row[name], int | float)]
    return round(sum(values) / len(values), 3) if values else None


def answer_live(question: FleetLive, folder: Path) -> LiveRun:
    """The commands of a trace run here (`LiveRun`); their journal is in `folder`. Raises UserError."""
    if not question.cluster:
        raise SpecError("--cluster", None, "say on what the jobs run, such as gpu:1x4")
    names, jobs, site, _ = as_asked(question)
    refuse_files(names)
    return run_live(jobs, site, names, folder, question.restart or 0.0, question.host)
