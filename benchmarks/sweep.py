"""Sweeps: predictions per second over two processes, and Ray beside them.

    python benchmarks/sweep.py [--points 2000] [--ray]

Points differ in batch and plan; none is run twice. With `--ray` (extra `ray`) the same points go through both, one
after the other, and the last line is the ratio of their times. `CPU` is what this process and its children used: it
hardly depends on what else the machine does (Ray's workers are nobody's children, so theirs is not seen).
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from windtunnel.sweeps import sweep


def study(points: int) -> dict[str, Any]:
    """So many layouts of one model: a grid of 24 at each of several batches."""
    return {
        "fixed": {"model": "llama-3-8b", "cluster": "h100-sxm:64", "plan.seq_len": 4096},
        "grid": {
            "plan.global_batch": [256 + 32 * number for number in range(-(-points // 24))],
            "plan.tp": [1, 2, 4, 8],
            "plan.pp": [1, 2],
            "plan.recompute": ["none", "selective:core_attention", "full"],
        },
    }


def cpu_s() -> float:
    """Of this process and its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--ray", action="store_true")
    arguments = parser.parse_args()
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for executor in ("processes", "ray") if arguments.ray else ("processes",):
            begun, used = time.perf_counter(), cpu_s()
            done = sweep(study(arguments.points), out=Path(folder, f"{executor}.parquet"), jobs=2, executor=executor)
            seconds[executor] = time.perf_counter() - begun
            used = cpu_s() - used
            print(
                f"{executor}: {done.points} points in {seconds[executor]:.1f} s,"
                f" {done.points / seconds[executor]:.0f}/s; {1e3 * used / done.points:.1f} ms of CPU a point"
            )
        if arguments.ray:
            same = Path(folder, "ray.parquet").read_bytes() == Path(folder, "processes.parquet").read_bytes()
            print(f"ray / processes {seconds['ray'] / seconds['processes']:.3f}; equal bytes: {same}")


if __name__ == "__main__":
    main()
