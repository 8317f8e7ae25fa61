"""Communicators of a layout made family by family: O(n) arrivals at barriers and not O(n^2) (MegaScale).

torchrun --nproc-per-node 4 examples/techniques/ordered_groups.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from windtunnel.real.techniques.megascale.groups import make_groups


def main() -> None:
    """Groups of two by tensor and of the rest by data parallelism, and a sum in each."""
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    tensor = [[at, at + 1] for at in range(0, world, 2)]
    data = [list(range(at, world, 2)) for at in range(2)]
    inside, across = make_groups([tensor, data])
    sums = []
    for group in (inside, across):
        one = torch.tensor([float(rank)])
        dist.all_reduce(one, group=group)
        sums.append(int(one))
    if rank == 0:
        by_family, by_all = 2 * world, (len(tensor) + len(data)) * world
        print(f"sums inside and across: {sums}; arrivals at barriers: {by_family}, made by all ranks {by_all}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
