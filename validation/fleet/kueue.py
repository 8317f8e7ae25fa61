"""Kueue's three performance scenarios under its policy here, at the speed of Kueue's API client, against its own runs.

    python validation/fleet/kueue.py                 wall, use of quota, waits; then who is stopped without that limit

Facts of test/performance/scheduler/configs (Kueue ff69552): cohorts, queues of a nominal quota of 20 and a borrowing
limit of 100, workloads by class. Its runner lets Kueue write 50 Workloads a second after a burst of 100; the generator
writes 1,000 (envtest) and sends the next of a set once the last was taken. A wait is of the last admission, up to its
write, as the runner measured it when these means were published. No constant here is fitted. Published: means of 5
(baseline), 19 and 10 runs, of releases without (baseline of 2024, tas of February 2026) and with hashing; the topology
of tas has room for a hundred times its quota.
"""

from __future__ import annotations

import heapq
import itertools
import time

from windtunnel.studies.fleet.clock.clock import Clock
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.clock.work import Rigid
from windtunnel.studies.fleet.jobs.trace import Quota
from windtunnel.studies.fleet.policies.kueue.policy import Kueue
from windtunnel.studies.fleet.policies.kueue.state import Pace

Set = tuple[int, int, str, int, int, int]  # workloads, ms between two, class, ms that each runs, priority, CPUs
BASELINE: tuple[Set, ...] = (
    (350, 100, "small", 200, 50, 1), (100, 500, "medium", 500, 100, 5), (50, 1200, "large", 1000, 200, 20),
)  # fmt: skip
LARGE_SCALE: tuple[Set, ...] = (
    (35, 60, "small", 150, 50, 1), (11, 300, "medium", 350, 100, 5), (4, 700, "large", 700, 200, 20),
)  # fmt: skip
TAS: tuple[Set, ...] = tuple(
    (count, *row[1:])
    for row, counts in zip(BASELINE, ((120, 120, 110), (34, 33, 33), (17, 17, 16)), strict=True)
    for count in counts
)
# cohorts, queues of each, sets, hashing, then published: seconds, use of nominal quota, waits
SCENARIOS = {
    "baseline": (5, 6, BASELINE, True, 351.1, 0.559, {"large": 16.5, "medium": 76.8, "small": 215.5}),
    "baseline, no hashing": (5, 6, BASELINE, False, 351.1, 0.587, {"large": 6.67, "medium": 76.8, "small": 215.5}),
    "large-scale": (10, 100, LARGE_SCALE, True, 1179.4, 0.3864, {"large": 105.6, "medium": 256.4, "small": 700.4}),
    "tas": (5, 6, TAS, False, 401.5, 0.6241, {"large": 39.0, "medium": 106.6, "small": 243.6}),
}


def jobs_of(cohorts: int, queues: int, sets: tuple[Set, ...]) -> tuple[list[Running], list[str], dict[str, Quota]]:
    """Workloads by creation, their classes, and the queues."""
    quotas = {
        name: Quota(name, 20, f"c{cohort}", borrowing_limit=100, within="LowerPriority", reclaim="Any")
        for cohort in range(cohorts)
        for name in (f"c{cohort}q{queue}" for queue in range(queues))
    }
    order = itertools.count()
    line = [(each[1] / 1000, next(order), 0, name, each) for name in quotas for each in sets]
    heapq.heapify(line)
    server = Pace(NS // 1000, 2 * NS)
    jobs, classes = [], []
    while line:
        at_s, _, done, name, each = heapq.heappop(line)
        count, apart, label, lasts, priority, cpus = each
        made_ns = server.write(round(at_s * NS))
        work = Rigid(lasts / 1000)
        jobs.append(Running(len(jobs), made_ns, cpus, work, queue=name, priority=float(priority)))
        classes.append(label)
        if done + 1 < count:
            heapq.heappush(line, (made_ns / NS + apart / 1000, next(order), done + 1, name, each))
    return jobs, classes, quotas


def main() -> None:
    for scenario, (cohorts, queues, sets, hashing, wall_s, use, waits) in SCENARIOS.items():
        jobs, classes, quotas = jobs_of(cohorts, queues, sets)
        gpus = 20 * len(quotas)
        began = time.process_time()
        Clock(jobs, [gpus], Kueue(0, quotas, qps=50, burst=100, hashing=hashing)).run()
        took_s = time.process_time() - began
        end_s = max(job.end_ns or 0 for job in jobs) / NS
        held = sum(job.gpu_ns for job in jobs) / NS / gpus / end_s
        print(f"{scenario}: {len(jobs):,} workloads, {took_s:.1f} CPU-s, stopped {sum(job.restarts for job in jobs)}")
        rows = [("wall", end_s, wall_s), ("use", held, use)]
        for label, published in waits.items():
            those = [job for job, found in zip(jobs, classes, strict=True) if found == label]
            rows.append((label, sum(job.begin_ns - job.submit_ns for job in those) / len(those) / NS, published))
        for name, value, published in rows:
            print(f"  {name:8} {value:8.3g} (published {published:6.4g}) {value / published - 1:+.1%}")
    jobs, classes, quotas = jobs_of(5, 6, BASELINE)
    Clock(jobs, [600], Kueue(0, quotas)).run()
    stopped = {name: sum(job.restarts for job, of in zip(jobs, classes, strict=True) if of == name) for name in waits}
    print(f"baseline without a limit: {max(job.end_ns or 0 for job in jobs) / NS:.1f} s, stopped {stopped}")


if __name__ == "__main__":
    main()
