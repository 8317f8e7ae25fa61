"""Hold what `calibrate --collectives` says of gloo against two processes at sizes that it does not measure.

    python validation/one_device/gloo.py --device my-device.yaml [--repetitions 300]

Sizes are 3 * 2^k bytes from 6 KiB to 48 MiB, the measured ones 2^k. Each call follows a barrier; the slower process
counts, and the median of the repetitions. Both are measured twice: what one measurement says of the other is the
least that any prediction can be off by.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from windtunnel.physics.cost.communication.collectives import Group, collective
from windtunnel.physics.hardware import parse_cluster

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
SIZES = tuple(3 << exponent for exponent in range(11, 25))
LARGE_BYTES = 4e6  # from here a fifth of the repetitions


def worker(rank: int, folder: str, repetitions: int) -> None:
    """One of the two processes."""
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found: dict[str, dict[int, list[float]]] = {}
    for kind in KINDS:
        for size in SIZES:
            whole, part = torch.randn(size // 4), torch.randn(size // 8)
            other = torch.empty_like(whole)
            call = {
                "all_reduce": lambda whole=whole: dist.all_reduce(whole),
                "all_gather": lambda whole=whole, part=part: dist.all_gather_into_tensor(whole, part),
                "reduce_scatter": lambda whole=whole, part=part: dist.reduce_scatter_tensor(part, whole),
                "all_to_all": lambda whole=whole, other=other: dist.all_to_all_single(other, whole),
                "broadcast": lambda whole=whole: dist.broadcast(whole, 0),
                "send_recv": lambda whole=whole: dist.recv(whole, 0) if rank else dist.send(whole, 1),
            }[kind]
            seconds = []
            for _ in range(2 + (repetitions if size < LARGE_BYTES else max(10, repetitions // 5))):
                dist.barrier()
                begun = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - begun)
            found.setdefault(kind, {})[size] = seconds[2:]
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def measured(repetitions: int) -> dict[str, list[float]]:
    """Median seconds by kind, one for each size."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(worker, (folder, repetitions), nprocs=2)
        ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2)]
    return {
        kind: [statistics.median(map(max, *(rank[kind][str(size)] for rank in ranks))) for size in SIZES]
        for kind in KINDS
    }


def main() -> None:
    """Print errors by kind, and their mean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True)
    parser.add_argument("--repetitions", type=int, default=300)
    given = parser.parse_args()
    cluster = parse_cluster(given.device)
    says = {kind: [collective(kind, size, Group(2, 2), cluster).seconds for size in SIZES] for kind in KINDS}
    first, second = measured(given.repetitions), measured(given.repetitions)
    print(f"{'':15s} {'off by':>7s}  {'worst':>7s}  {'again':>7s}  {'measured twice':>14s}")
    means = []
    for kind in KINDS:
        pairs = ((says, first), (says, second), (first, second))
        off, again, twice = ([abs(a / b - 1) for a, b in zip(x[kind], y[kind], strict=True)] for x, y in pairs)
        means.append([statistics.mean(one) for one in (off, again, twice)])
        print(f"{kind:15s} {means[-1][0]:7.1%}  {max(off):7.1%}  {means[-1][1]:7.1%}  {means[-1][2]:14.1%}")
    off, again, twice = (statistics.mean(column) for column in zip(*means, strict=True))
    print(f"{'all':15s} {off:7.1%}  {'':>7s}  {again:7.1%}  {twice:14.1%}")


if __name__ == "__main__":
    main()
