"""Speed of Slurm's policy, jobs per CPU-second on one core: its compiled loops beside the same policy on the clock.

python benchmarks/fleet_slurm.py [jobs]
"""

import sys
import time

import numpy as np

from windtunnel.studies.fleet.clock.clock import Clock
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.clock.work import Rigid
from windtunnel.studies.fleet.policies.slurm.policy import Slurm
from windtunnel.studies.fleet.policies.slurm.whole import run_whole

PER_NODE = 8


def jobs_of(count: int, load: float, nodes: int) -> list[Running]:
    random = np.random.default_rng(1)
    gpus = random.choice([1, 2, 4, 8, 16, 32, 64], count, p=[0.5, 0.15, 0.15, 0.12, 0.04, 0.02, 0.02])
    lasts_s = random.lognormal(7, 1.5, count) + 1
    limit_s = lasts_s * random.uniform(1, 4, count)
    submit_s = np.sort(random.uniform(0, float((gpus * lasts_s).sum()) / (nodes * PER_NODE) / load, count))
    rows = zip(submit_s.tolist(), gpus.tolist(), lasts_s.tolist(), limit_s.tolist(), strict=True)
    return [
        Running(at, round(submit * NS), wide, Rigid(lasts), limit_s=limit)
        for at, (submit, wide, lasts, limit) in enumerate(rows)
    ]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3_000
    policy = Slurm(PER_NODE)
    run_whole(policy, jobs_of(200, 0.9, 64), 64)  # compiled
    for load, nodes in ((0.92, 64), (1.1, 64), (0.9, 1250)):
        jobs, plain = jobs_of(count, load, nodes), jobs_of(count, load, nodes)
        began = time.process_time()
        run_whole(policy, jobs, nodes)
        fast = time.process_time()
        Clock(plain, [PER_NODE] * nodes, policy).run()
        slow = time.process_time() - fast
        fast -= began
        assert [job.start_ns for job in jobs] == [job.start_ns for job in plain]
        print(f"load {load}, {nodes} nodes: {count / fast:9,.0f} jobs/s, {slow / fast:4.0f} x the policy on the clock")


if __name__ == "__main__":
    main()
