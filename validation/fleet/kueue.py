"""Kueue's performance scenario of 15,000 workloads under its policy here: waits, and who is stopped how often.

    python validation/fleet/kueue.py

Facts of test/performance/scheduler/configs/baseline (Kueue ff69552): 5 cohorts of 6 queues, nominal quota 20, borrowing
limit 100. A large workload is a whole quota and has the highest priority, so each that comes stops what its own queue
runs. Published waits (16.5, 76.8, 215.5 s; 351 s in all) are of Kueue's own speed, some 43 admissions a second, which
is not modelled: the work itself is 66 s.
"""

from __future__ import annotations

import time

from windtunnel.studies.fleet.clock import Clock
from windtunnel.studies.fleet.jobs.trace import Quota
from windtunnel.studies.fleet.policies.kueue.policy import Kueue
from windtunnel.studies.fleet.running import NS, Running
from windtunnel.studies.fleet.work import Rigid

CLASSES = {  # workloads of a queue, ms between two, ms that each runs, priority, CPUs
    "large": (50, 1200, 1000, 200, 20), "medium": (100, 500, 500, 100, 5), "small": (350, 100, 200, 50, 1),
}  # fmt: skip
PUBLISHED_WAIT_S = {"large": 16.5, "medium": 76.8, "small": 215.5}


def main() -> None:
    queues = [(f"c{cohort}", f"c{cohort}q{queue}") for cohort in range(5) for queue in range(6)]
    rows = sorted(
        ((n + 1) * apart * NS // 1000, queue, name, n)
        for _, queue in queues
        for name, (count, apart, *_) in CLASSES.items()
        for n in range(count)
    )
    for within, reclaim in (("LowerPriority", "Any"), ("LowerPriority", "Never"), ("Never", "Any")):
        jobs = []
        for at, (submit, queue, name, _) in enumerate(rows):
            _, _, lasts, priority, wide = CLASSES[name]
            work = Rigid(lasts / 1000)
            jobs.append(Running(at, submit, wide, work, queue=queue, priority=float(priority)))
        quotas = {
            queue: Quota(queue, 20, cohort, borrowing_limit=100, within=within, reclaim=reclaim)
            for cohort, queue in queues
        }
        began = time.process_time()
        Clock(jobs, [600], Kueue(0, quotas)).run()
        took = time.process_time() - began
        print(
            f"within {within}, reclaim {reclaim}: {max(job.end_ns or 0 for job in jobs) / NS:.1f} s, {took:.2f} CPU-s"
        )
        for name in CLASSES:
            those = [job for job, row in zip(jobs, rows, strict=True) if row[2] == name]
            wait = sum((job.start_ns or 0) - job.submit_ns for job in those) / len(those) / NS
            stopped = sum(job.restarts for job in those)
            published = PUBLISHED_WAIT_S[name]
            print(f"  {name:6} first start after {wait:6.2f} s (published {published:5.1f}), stopped {stopped}")


if __name__ == "__main__":
    main()
