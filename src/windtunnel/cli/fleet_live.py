"""`windtunnel fleet --live JOBS.yaml`: a policy over real processes, and its simulation beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.cli.output import print_answer
from windtunnel.errors import SpecError

if TYPE_CHECKING:
    from windtunnel.fleet.jobs.trace import Jobs
    from windtunnel.fleet.site import Site


def run_live(jobs: Jobs, site: Site, names: list[str], folder: Path, json: bool, restart_s: float = 0.0) -> None:
    """Run the jobs' commands under one policy, and print each job's JCT, real and simulated.

    `restart_s`: of each `duration_s`, what a start takes; a job that is started again pays it again.
    """
    import math

    from windtunnel.fleet.exact.clock import NS, Clock, Running
    from windtunnel.fleet.exact.policies import MODELLED, NAMES, policy_of
    from windtunnel.fleet.exact.work import Rigid
    from windtunnel.fleet.live.scheduler import LiveJob, Scheduler

    known = [name for name in NAMES if name not in MODELLED]  # nobody knows how fast a command is on other GPUs
    if len(names) != 1 or names[0] not in known:
        raise SpecError("--policy", ",".join(names), f"a live run has one of {', '.join(known)}")
    commands = jobs.columns.get("command")
    if commands is None or not all(commands):
        raise SpecError(
            "command", None, "each job of a live run needs one, such as command: python train.py", jobs.source
        )
    made = [
        LiveJob(
            at,
            jobs.name[at],
            float(jobs.submit_s[at]),
            int(jobs.gpus[at]),
            commands[at],
            None if math.isnan(jobs.duration_s[at]) else float(jobs.duration_s[at]),
        )
        for at in range(len(jobs))
    ]
    large = next((job for job in made if not 0 < job.gpus <= site.gpus), None)
    if large is not None:
        raise SpecError(f"gpus of {large.name}", large.gpus, f"give from 1 to {site.gpus}", jobs.source)
    odd = next((job for job in made if "/" in job.name or job.name in ("", ".", "..")), None)
    if odd is not None:
        raise SpecError(
            "job", odd.name, "a live job's name is a folder's: leave out slashes and dots alone", jobs.source
        )
    nodes = (site.per_node,) * site.nodes
    Scheduler(made, nodes, policy_of(names[0], 0), folder, restart_s).run()
    simulated: dict[int, float] = {}
    if all(job.duration_s is not None for job in made):
        running = [
            Running(
                job.index,
                round(job.submit_s * NS),
                job.gpus,
                Rigid(max((job.duration_s or 0.0) - restart_s, 0.0), restart_s),
            )
            for job in made
        ]
        Clock(running, nodes, policy_of(names[0], 0)).run()
        simulated = {job.index: ((job.end_ns or 0) - job.submit_ns) / NS for job in running}
    rows: list[dict[str, Any]] = [
        {
            "job": job.name,
            "jct_s": None if job.end_s is None else round(job.end_s - job.submit_s, 3),
            "simulated_jct_s": round(simulated[job.index], 3) if simulated else None,
            "preemptions": job.preemptions,
            "deaths": job.deaths,
            "starts": job.attempt,
            "state": "failed" if job.failed else "completed",
        }
        for job in made
    ]
    ended = [row["jct_s"] for row in rows if row["jct_s"] is not None]
    mean = sum(ended) / max(len(ended), 1)
    beside = sum(simulated.values()) / max(len(simulated), 1) if simulated else None
    document = {"policy": names[0], "jct_mean_s": round(mean, 3), "simulated_jct_mean_s": beside, "jobs": rows}
    if json:
        print_answer("fleet --live", document)
        return
    for row in rows:
        real, beside_s = row["jct_s"] or 0.0, row["simulated_jct_s"] or 0.0
        print(f"{row['job']:20} {row['state']:9} {real:9.2f} s real {beside_s:9.2f} s simulated")
    print(f"mean JCT {mean:.2f} s real" + (f", {beside:.2f} s simulated ({mean / beside - 1:+.1%})" if beside else ""))
