"""Speed of `explain` on a Kineto trace of a million ops: `python benchmarks/explain.py [ops]`.

Builds the traces of 8 ranks (gzipped JSON as PyTorch's profiler writes it: operators, CUDA calls, kernels, event waits
and numbered all-reduces), runs the whole command on them in a fresh process, and prints what it took. An op is what the
replay knows as one: a kernel, a collective, or a host call. Rank 5 is 10 % slower; the answer must say so.
"""

from __future__ import annotations

import gzip
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RANKS, STEPS, SLOW, FACTOR = 8, 4, 5, 1.1
KERNELS_PER_LAYER = 8  # then one all-reduce
OPS_PER_LAYER = 2 * KERNELS_PER_LAYER + 2  # each with the call that launches it
LIMIT_S = 30.0


def trace(rank: int, layers: int) -> dict[str, Any]:
    """One rank's events; the clocks of all ranks agree, and every wait in them has a cause."""
    noise = random.Random(1)  # the same work on every rank
    events: list[dict[str, Any]] = []
    host = free = 0.0
    correlation = 0

    def add(cat: str, name: str, start: float, taken: float, thread: int, **args: Any) -> None:
        events.append(
            {
                **{"ph": "X", "cat": cat, "name": name, "pid": rank, "tid": thread},
                **{"ts": 1e12 + round(start, 3), "dur": round(taken, 3), "args": args},
            }
        )

    numbers = 0
    for step in range(STEPS):
        add("user_annotation", f"ProfilerStep#{step}", host, 1.0, 1)
        for _ in range(layers):
            lasting = slowest = 0.0
            for _ in range(KERNELS_PER_LAYER):
                correlation += 1
                us = noise.uniform(20.0, 60.0)
                add("cpu_op", "aten::mm", host, 4.0, 1, **{"External id": correlation})
                add("cuda_runtime", "cudaLaunchKernel", host + 1.0, 2.0, 1, correlation=correlation)
                start = max(host + 3.0, free)
                taken = us * (FACTOR if rank == SLOW else 1.0)
                free = start + taken
                add(
                    "kernel",
                    f"sm90_xmma_gemm_bf16_{correlation % 7}",
                    start,
                    taken,
                    7,
                    **{"device": rank, "stream": 7, "correlation": correlation, "grid": [132, 1, 1]},
                )
                lasting += us
                slowest += us * FACTOR
                host += 5.0
            correlation += 1
            add("cuda_runtime", "cudaLaunchKernelExC", host, 2.0, 1, correlation=correlation)
            # Everyone waits for the slow rank; its own all-reduce is the transfer alone.
            end = free + 50.0 + (0.0 if rank == SLOW else slowest - lasting)
            add(
                "kernel",
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                free,
                end - free,
                7,
                **{"device": rank, "stream": 7, "correlation": correlation, "Collective name": "allreduce"},
                **{"Process Group Name": "0", "Process Group Ranks": str(list(range(RANKS))), "Group size": RANKS},
                **{"Seq": numbers, "In msg nelems": 1 << 24, "dtype": "BFloat16"},
            )
            numbers += 1
            free = end
            host += 5.0
    return {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS}, "traceEvents": events}


def main(n_ops: int) -> int:
    """Build, run, print; 1 if the limit is missed or the answer wrong."""
    layers = max(1, round(n_ops / (RANKS * STEPS * OPS_PER_LAYER)))
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for rank in range(RANKS):
            path = Path(folder) / f"rank{rank}.json.gz"
            with gzip.open(path, "wt", compresslevel=1) as file:
                json.dump(trace(rank, layers), file)
            paths.append(str(path))
        size = sum(Path(path).stat().st_size for path in paths)
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "windtunnel.faces.cli", "explain", *paths, "--json"],
            capture_output=True,
            check=True,
            text=True,
        )
        taken = time.perf_counter() - begin
    found = json.loads(done.stdout)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    worst = next(iter(found["by_worker"]))
    print(f"{found['n_ops']:,} ops of {RANKS} ranks in {size / 2**20:.0f} MiB of gzipped Kineto traces")
    print(
        f"explain: {taken:.1f} s, {found['n_ops'] / taken:,.0f} ops/s, {peak:.1f} GiB at the peak (limit {LIMIT_S:g} s)"
    )
    print(f"slowdown {found['slowdown']:.4f}, slowest {worst['name']} at {worst['slowdown']:.4f}")
    for note in found["notes"]:
        print(f"note: {note}")
    return int(taken > LIMIT_S or worst["name"] != f"rank {SLOW}")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
