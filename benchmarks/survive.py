"""What 1,000 runs of a job on 131,072 GPUs for 54 days cost, and the array path against the plain event loop.

    python benchmarks/survive.py

CPU seconds of one process. The event loop is timed on a few runs and scaled.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from windtunnel.studies.resilience import published
from windtunnel.studies.resilience.failures import draw, read_failures
from windtunnel.studies.resilience.policies import POLICIES, Job, policy_named
from windtunnel.studies.resilience.run import SaveTimes, run_many

sys.path.append(str(Path(__file__).parents[1] / "tests" / "laws"))
from failures_one_by_one import run_one

GPUS, DAYS, SEEDS, FEW = 131_072, 54, 1000, 3


def main() -> None:
    began = time.process_time()
    trace = draw(read_failures("rsc-1"), GPUS, 8, DAYS * 86_400.0, SEEDS)
    drawn = time.process_time() - began
    events = int((trace.time_ns < trace.horizon_ns).sum())
    print(f"{SEEDS:,} runs of {DAYS} days on {GPUS:,} GPUs: {events:,} failures, drawn in {drawn:.1f} s")
    job = Job(GPUS, 8, 1024, 16, 9.2, published(), lambda left: left / 1024)
    saving = SaveTimes(20_000_000_000, 30_000_000, 2_000_000_000)
    total = drawn
    for name in POLICIES:
        policy = policy_named(name, job)
        began = time.process_time()
        run_many(trace, policy, saving, 9.2, 8)
        fast = time.process_time() - began
        began = time.process_time()
        for seed in range(FEW):
            run_one(trace, seed, policy, saving, 9.2, 8)
        slow = (time.process_time() - began) / FEW * SEEDS
        total += fast
        print(f"  {name:10} {fast:5.1f} s; event loop {slow:7.0f} s, {slow / fast:4.0f} x")
    print(f"all {len(POLICIES)} policies: {total:.1f} s of CPU")


if __name__ == "__main__":
    main()
