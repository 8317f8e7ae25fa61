"""Speed of the queues: a million gangs on 1,250 nodes, compiled, beside plain Python on a sample.

python benchmarks/fleet.py [jobs]
"""

import resource
import sys
import time

import numpy as np

from windtunnel.physics.engine.compiled.fleet import queue_kernels
from windtunnel.studies.fleet.policies.rigid.queues import NAMES, run_queue

NODES, PER_NODE = 1250, 8
SAMPLE = 2_000  # jobs of the uncompiled twin
NS = 10**9


def trace(jobs: int, load: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    gpus = random.choice([1, 2, 4, 8, 16, 32, 64], jobs, p=[0.5, 0.15, 0.15, 0.12, 0.04, 0.02, 0.02])
    duration = (random.lognormal(7, 1.5, jobs) * NS).astype(np.int64) + NS
    horizon = float((gpus * duration.astype(float)).sum()) / (NODES * PER_NODE) / load
    return np.sort(random.uniform(0, horizon, jobs)).astype(np.int64), duration, gpus.astype(np.int64)


def timed(name: str, jobs: tuple[np.ndarray, np.ndarray, np.ndarray], kernel: object = None) -> float:
    began = time.process_time()
    run_queue(name, *jobs, nodes=NODES, per_node=PER_NODE, pool=False, kernel=kernel)  # type: ignore[arg-type]
    return time.process_time() - began


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    for name in NAMES:
        timed(name, trace(100, 0.9))  # compiled
    for load, jobs in ((0.9, count), (1.1, count // 10)):
        for name in NAMES:
            seconds = timed(name, trace(jobs, load))
            plain = timed(name, trace(SAMPLE, load), queue_kernels.run.py_func) / SAMPLE
            print(
                f"load {load} {name:10} {jobs:9,} jobs {seconds:6.2f} CPU-s {jobs / seconds:12,.0f} jobs/s,"
                f" {plain * jobs / seconds:5.0f} x the same code uncompiled",
                flush=True,
            )
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB at most")


if __name__ == "__main__":
    main()
