"""Waits under the policy `slurm` against those of a real Slurm: folders of `slurm_box.py`.

    python validation/fleet/slurm_judge.py FOLDER/SEED ... [--policies slurm,easy,fifo] [--completing 0.4] [--tenths]

The configuration is Slurm's own (slurm.conf, qos.txt, assoc.txt), the jobs are sacct's. A job that was preempted for
good has the run time that was submitted. For each workload and policy: mean wait and its error, the median error of a
job's wait in seconds and as a share of the mean wait, and jobs within 3 s. `--jitter 5` (with `--tenths`): the same
of the simulation against itself where what a job's launch takes is drawn, exponential around the mean that is known.
`--told`: when jobs came and ended and when both loops ran, to the millisecond, as slurmctld wrote it (ctld.log), so
that what is held against Slurm is the rules alone.
"""

from __future__ import annotations

import argparse
import bisect
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path

import numpy as np

from windtunnel.studies.fleet.clock.running import NS
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.policies.own import Own
from windtunnel.studies.fleet.policies.slurm.nodes import Units
from windtunnel.studies.fleet.policies.slurm.policy import POLICY, Slurm
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import Site, parse_site

LAUNCH_S = 0.1  # from Slurm's start of a job to its own, and from its end: mean of 990 jobs


@dataclass(frozen=True)
class Told(Slurm):
    """Slurm's policy whose loops run when those of a real one did."""

    loops: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # of the main loop and of backfill, in ns

    def _turns(self, now_ns: int) -> tuple[int, int]:
        main_ns, backfill_ns = (
            times[at] if (at := bisect.bisect_left(times, now_ns)) < len(times) else now_ns + -now_ns % NS
            for times in self.loops
        )
        return main_ns, backfill_ns

    def back_after(self, units: Units, completing_s: float) -> Iterator[tuple[float, Units]]:
        """Of a job that was stopped only its first node has a process to end: a batch script starts no other."""
        yield completing_s, units[:1]
        if units[1:]:
            yield self.completing_s, units[1:]


@dataclass
class Log:
    """What slurmctld wrote, in seconds from a zero on; by job the last start and the first end after it."""

    submitted: dict[str, float] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    main: list[float] = field(default_factory=list)
    backfill: list[float] = field(default_factory=list)


def told(folder: Path, zero: float) -> Log:
    """The log of slurmctld at `debug`, read."""
    log = Log()
    for line in (folder / "ctld.log").read_text().splitlines():
        match = re.match(r"\[(\S+)\] (.*)", line)
        if match is None:
            continue
        at_s, text = datetime.fromisoformat(match[1]).timestamp() - zero, match[2]
        job = match_job[1] if (match_job := re.search(r"JobId=(\d+)", text)) else ""
        if "submit_batch_job: JobId" in text:
            log.submitted[job] = at_s
        elif "Allocate JobId" in text or "Started JobId" in text:
            log.started[job] = at_s
            log.ended.pop(job, None)
        elif "_job_complete: JobId" in text and job in log.started:
            log.ended.setdefault(job, at_s)
        elif "Running job scheduler" in text:
            log.main.append(at_s)
        elif "backfill: beginning" in text:
            log.backfill.append(at_s)
    return log


def judge(
    folder: Path, policies: list[str], parameters: dict[str, float], tenths: bool, jitter: int = 0, by_log: bool = False
) -> list[tuple[str, float, float, float]]:
    """(policy, error of the mean wait, median error over the mean wait, share within 3 s) of a workload."""
    submitted = json.loads((folder / "jobs.json").read_text())
    jobs = read_jobs(folder / "log.txt")
    lasts = {str(at + 1): each["lasts_s"] for at, each in enumerate(submitted["jobs"])}
    cut = [state == "PREEMPTED" for state in jobs.columns["log_state"]]
    known = [lasts[name] for name in jobs.name]
    duration = np.where(cut, np.array(known) + 0.5, np.maximum(jobs.duration_s, 0.5))
    zero = submitted["zero"] // 1 - 3  # so that slurmctld was started at whole minutes of this clock
    shift = {name: jobs.columns[name] for name in jobs.columns}
    for name in ("eligible_s", "end_s"):
        shift[name] = [repr(float(text) - zero) if text else "" for text in shift[name]]
    real = jobs.start_s - jobs.submit_s
    jobs = replace(jobs, duration_s=duration, submit_s=jobs.submit_s - zero, start_s=jobs.start_s - zero, columns=shift)
    if tenths:
        begins = {str(at + 1): each["submit_s"] for at, each in enumerate(submitted["jobs"])}
        submit = np.array([begins[name] for name in jobs.name]) + submitted["zero"] - zero
        jobs = replace(
            jobs, duration_s=np.array(known) + LAUNCH_S, submit_s=submit, columns={**shift, "eligible_s": []}
        )
        del jobs.columns["eligible_s"]
    log = told(folder, zero) if by_log else Log()
    if by_log:
        lasted = {name: log.ended[name] - log.started[name] for name in log.ended}
        lasted |= {name: lasts[name] + LAUNCH_S for name, stop in zip(jobs.name, cut, strict=True) if stop}
        submit = np.array([log.submitted[name] for name in jobs.name])
        jobs = replace(jobs, submit_s=submit, duration_s=np.array([lasted[name] for name in jobs.name]))
    with tempfile.TemporaryDirectory() as place:
        site_file = Path(place, "site.yaml")
        names = ", ".join(str(folder.resolve() / name) for name in ("slurm.conf", "qos.txt", "assoc.txt"))
        site_file.write_text(f"slurm: [{names}]\n")
        site = parse_site(str(site_file))
    found = []
    parameters = {**parameters, "epoch_s": zero}
    for name in policies:
        asked: Own | str = Own("slurm", "slurm", parameters) if name == "slurm" else name
        if name == "slurm" and by_log:
            own = POLICY.make_policy(site, Options())
            assert isinstance(own, Slurm)
            loops = tuple(tuple(round(at_s * NS) for at_s in times) for times in (log.main, log.backfill))
            settings = {each.name: getattr(own, each.name) for each in fields(Slurm)} | parameters
            asked = Own("slurm", "slurm", decider=Told(**settings, loops=loops))
        outcome = simulate(jobs, site, asked, Options())
        wait = np.floor(outcome.start_s) - np.floor(jobs.submit_s)  # as Slurm's log has it
        error = np.abs(wait - real)
        off, median = float(np.nanmean(wait) / real.mean() - 1), float(np.nanmedian(error))
        within = float(np.mean(error <= 3))
        print(
            f"{folder.name:>3s} {submitted['kind']:10s} {name:6s} {len(jobs)} jobs, real mean {real.mean():5.1f} s: "
            f"{off:+5.1%}; a job's error: median {median:4.1f} s ({median / real.mean():.1%}); within 3 s {within:.0%}"
        )
        found.append((name, off, median / float(real.mean()), within))
        if jitter:
            found.append(_jittered(jobs, site, asked, jitter, float(real.mean())))
    return found


def _jittered(jobs: Jobs, site: Site, asked: Own | str, draws: int, real_s: float) -> tuple[str, float, float, float]:
    """The same figures of draws of a simulation against each other: means over all pairs."""
    draw, waits = np.random.default_rng(7), []
    for _ in range(draws + 1):
        drawn = jobs.duration_s - LAUNCH_S + draw.exponential(LAUNCH_S, len(jobs))
        waits.append(np.floor(simulate(replace(jobs, duration_s=drawn), site, asked, Options()).start_s))
    pairs = [(one, other) for at, one in enumerate(waits) for other in waits[:at]]
    errors = [np.abs(one - other) for one, other in pairs]
    off = float(np.mean([abs(np.nanmean(one) - np.nanmean(other)) for one, other in pairs])) / real_s
    median = float(np.mean([np.nanmedian(error) for error in errors])) / real_s
    return "against itself", off, median, float(np.mean([np.mean(error <= 3) for error in errors]))


def main() -> None:
    """A line for each workload and policy, and means over workloads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--policies", default="slurm")
    parser.add_argument("--completing", type=float, default=0.05)
    parser.add_argument("--stopped", type=float, default=0.0, help="the same after a job was stopped for another")
    parser.add_argument(
        "--main", type=float, default=1.0, help="seconds between looks of the main loop; 0: at each event"
    )
    parser.add_argument("--phases", default="0.75,0.25", help="of the main loop and of backfill, within a second")
    parser.add_argument("--tenths", action="store_true", help="times as submitted, not by the log's whole seconds")
    parser.add_argument("--jitter", type=int, default=0, help="draws of launches, held against each other")
    parser.add_argument("--told", action="store_true", help="submissions, ends and loops from slurmctld's own log")
    given = parser.parse_args()
    parameters = {"completing_s": given.completing, "stopped_completing_s": given.stopped}
    if given.main:
        phases = [float(word) for word in given.phases.split(",")]
        parameters |= {"main_interval_s": given.main, "main_phase_s": phases[0], "backfill_phase_s": phases[1]}
    rows = []
    for folder in given.folders:
        if (folder / "log.txt").exists():
            rows += judge(
                folder, given.policies.split(","), parameters, given.tenths or given.told, given.jitter, given.told
            )
    for name in dict.fromkeys(row[0] for row in rows):
        mine = np.array([row[1:] for row in rows if row[0] == name])
        print(
            f"{name}: {len(mine)} workloads; mean wait off {np.abs(mine[:, 0]).mean():.1%} "
            f"({np.sum(np.abs(mine[:, 0]) <= 0.1)} within 10 %); median error over mean wait {mine[:, 1].mean():.1%} "
            f"({np.sum(mine[:, 1] <= 0.05)} within 5 %); within 3 s {mine[:, 2].mean():.0%} "
            f"({np.sum(mine[:, 2] >= 0.7)} of 70 % or more)"
        )


if __name__ == "__main__":
    main()
