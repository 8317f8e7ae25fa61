"""Sweeps: predictions per second over two processes, and Ray beside them.

    python benchmarks/sweep.py [--points 2000] [--of small|405b|deepseek] [--ray [ADDRESS]] [--turns 3]

Points differ in batch and plan; none is run twice. `--of`: 8B on 64 GPUs, 405B on 8,192, or DeepSeek-V3 on
2,048. With `--ray` (extra `ray`) the same points go through both, one after the other, and a line says the ratio of
their times; `--turns`: so many times, and the median of the ratios.
Ray's own start and end on this machine are part of its time, and measured alone too; not so with the ADDRESS of a
cluster that is there, e.g. 127.0.0.1:6379 behind `ray start --head --num-cpus 2`.
`CPU` is what this process and its children used: it hardly depends on what else the machine does (of Ray's workers,
which are nobody's children, it is not seen).
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from windtunnel.studies.sweeps import sweep
from windtunnel.studies.sweeps.ray_cluster import RayCluster, wait_for_ends

RECOMPUTED = {"plan.recompute": ["none", "selective:core_attention", "full"]}
STUDIES: dict[str, tuple[str, str, int, range, dict[str, Any]]] = {  # model, cluster, length, batches, 24 layouts
    "small": (
        *("llama-3-8b", "h100-sxm:64", 4096, range(256, 1 << 20, 32)),
        {"plan.tp": [1, 2, 4, 8], "plan.pp": [1, 2], **RECOMPUTED},
    ),
    "405b": (
        *("llama-3.1-405b", "h100-sxm:8192", 8192, range(1024, 1 << 20, 512)),
        {"plan.tp": [8], "plan.pp": [8, 16], "plan.virtual_stages": [1, 2], "plan.cp": [1, 2], **RECOMPUTED},
    ),
    "deepseek": (
        *("deepseek-v3", "h800:2048", 4096, range(4096, 1 << 20, 2048)),
        {"plan.tp": [1, 2], "plan.ep": [16, 32, 64], "plan.pp": [8, 16], "plan.recompute": ["none", "full"]},
    ),
}


def study(points: int, of: str) -> dict[str, Any]:
    """So many layouts of one model: a grid of 24 at each of several batches."""
    model, cluster, length, batches, layouts = STUDIES[of]
    return {
        "fixed": {"model": model, "cluster": cluster, "plan.seq_len": length},
        "grid": {"plan.global_batch": list(batches[: -(-points // 24)]), **layouts},
    }


def cpu_s() -> float:
    """Of this process and its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--of", choices=STUDIES, default="small")
    parser.add_argument("--ray", nargs="?", const="", metavar="ADDRESS")
    parser.add_argument("--turns", type=int, default=1)
    arguments = parser.parse_args()
    ratios = []
    if arguments.ray == "":
        ray_alone()
    for turn in range(arguments.turns):
        with tempfile.TemporaryDirectory() as folder:
            seconds = {one: run(one, arguments, Path(folder)) for one in order(arguments.ray is not None, turn)}
            if arguments.ray is not None:
                same = Path(folder, "ray.parquet").read_bytes() == Path(folder, "processes.parquet").read_bytes()
                ratios.append(seconds["ray"] / seconds["processes"])
                print(f"ray / processes {ratios[-1]:.3f}; equal bytes: {same}")
    if len(ratios) > 1:
        print(f"median of {len(ratios)} turns: ray / processes {median(ratios):.3f}")


def order(ray: bool, turn: int) -> tuple[str, ...]:
    """Who goes first changes from turn to turn: what the machine does besides changes too."""
    both = ("processes", "ray") if ray else ("processes",)
    return both if turn % 2 == 0 else both[::-1]


def ray_alone() -> None:
    """Start and end of Ray's cluster with nothing beside, and one task on each worker."""
    begun = time.perf_counter()
    with RayCluster("os:getpid", 2) as cluster:
        while not cluster.is_there():
            time.sleep(0.01)
        there = time.perf_counter()
        list(cluster.rows([[(place, {})] for place in range(2)]))
        worked = time.perf_counter()
    wait_for_ends()
    ended = time.perf_counter()
    print(f"Ray alone: there in {there - begun:.1f} s, first tasks {worked - there:.1f} s, end {ended - worked:.1f} s")


def run(executor: str, arguments: argparse.Namespace, folder: Path) -> float:
    """Seconds of one sweep, its workers' start among them."""
    named = f"ray:{arguments.ray}" if executor == "ray" and arguments.ray else executor
    begun, used = time.perf_counter(), cpu_s()
    done = sweep(study(arguments.points, arguments.of), out=folder / f"{executor}.parquet", jobs=2, executor=named)
    seconds, used = time.perf_counter() - begun, cpu_s() - used
    print(
        f"{executor}: {done.points} points in {seconds:.1f} s, {done.points / seconds:.0f}/s;"
        f" {1e3 * used / done.points:.1f} ms of CPU a point"
    )
    return seconds


if __name__ == "__main__":
    main()
