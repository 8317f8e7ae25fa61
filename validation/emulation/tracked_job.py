"""A small model trained in one of four ways, with a tracker of storages around its last steps.

    windtunnel run --ranks 0,1 --world-size 8 --cluster h100-sxm:8 tracked_job.py ddp|fsdp2|tp|pp OUT-{rank}.json

The tracker sees every op through a dispatch mode, holds each storage by a weak reference and asks it for its size after
every op: it shares nothing with the profiler's log, from which `run` takes what it prints. What C++ allocates out of
its sight is asked for once: all tensors that Python can reach count when it begins.
"""

from __future__ import annotations

import gc
import json
import sys
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

TRACKED = (8, 9)  # after the two steps that `run` profiles


class Tracker(TorchDispatchMode):
    """Bytes of live storages, and the most at once."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, weakref.ref[Any]] = {}
        self.peak = 0

    def take(self, tensor: Any) -> None:
        local = getattr(tensor, "_local_tensor", tensor)
        if isinstance(local, torch.Tensor) and local.device.type == "cpu":
            storage = local.untyped_storage()
            self.live.setdefault(storage._cdata, weakref.ref(storage, self.dropped(storage._cdata)))

    def dropped(self, address: int) -> Any:
        return lambda _: self.live.pop(address, None)

    def count(self) -> None:
        """All storages are asked anew: FSDP2 frees and grows them without an op."""
        sizes = [storage.nbytes() for reference in tuple(self.live.values()) if (storage := reference()) is not None]
        self.peak = max(self.peak, sum(sizes))

    def everything(self) -> None:
        for thing in gc.get_objects():
            if type(thing) in (torch.Tensor, nn.Parameter, nn.Buffer):
                self.take(thing)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, out)):
            if isinstance(tensor, torch.Tensor):
                self.take(tensor)
        self.count()
        return out


class Block(nn.Module):
    def __init__(self, dim: int, again: bool) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.again = again

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.body, x, use_reentrant=False) if self.again else self.body(x)


def main() -> None:
    kind, out = sys.argv[1:3]
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dim, layers = 256, 4
    step: Any
    if kind == "pp":
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        stages = world
        blocks: nn.Module = nn.Sequential(*(Block(dim, False) for _ in range(2)))
        stage = PipelineStage(blocks, rank, stages, torch.device("cpu"))
        schedule = Schedule1F1B(stage, 4, loss_fn=lambda y, t: (y - t).square().mean())
        x = torch.randn(16, 64, dim)

        def step() -> None:
            schedule.step(x) if rank == 0 else schedule.step(target=x) if rank == stages - 1 else schedule.step()
    else:
        blocks = nn.Sequential(*(Block(dim, kind == "fsdp2") for _ in range(layers)))
        x = torch.randn(8, 64, dim)
        if kind == "ddp":
            blocks = nn.parallel.DistributedDataParallel(blocks)
        elif kind == "fsdp2":
            from torch.distributed.fsdp import fully_shard

            for block in blocks:  # type: ignore[attr-defined]
                fully_shard(block)
            fully_shard(blocks)
        else:
            from torch.distributed.tensor import Shard
            from torch.distributed.tensor import parallel as tp

            mesh = init_device_mesh("cpu", (world,))
            plan = {
                "norm": tp.SequenceParallel(),
                "up": tp.ColwiseParallel(input_layouts=Shard(1)),
                "down": tp.RowwiseParallel(output_layouts=Shard(1)),
            }
            for block in blocks:  # type: ignore[attr-defined]
                tp.parallelize_module(block, mesh, plan)
            x = torch.randn(8, 64 // world, dim)

        def step() -> None:
            blocks(x).square().mean().backward()

    optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-4)
    peaks = []
    for number in range(TRACKED[1] + 1):
        if number in TRACKED:
            tracker = Tracker()
            tracker.everything()
            with tracker:
                step()
                optimizer.step()
                optimizer.zero_grad()
            peaks.append(tracker.peak)
        else:
            step()
            optimizer.step()
            optimizer.zero_grad()
    with open(out.replace("{rank}", str(rank)), "w") as file:
        json.dump(peaks, file)


if __name__ == "__main__":
    main()
