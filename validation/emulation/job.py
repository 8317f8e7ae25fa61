"""A small Transformer trained with one way of parallelism, by plain PyTorch: what both the truth and the emulation run.

    torchrun --nproc-per-node 2 job.py ddp|fsdp2|tp|pp [--dim 256 --layers 4 --steps 20 --times FILE]

`--times FILE` keeps when each step began, its seconds and its loss, as this rank saw them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Pre-norm attention and a gated feed-forward."""

    def __init__(self, dim: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(dim, ffn, bias=False), nn.Linear(dim, ffn, bias=False)
        self.down = nn.Linear(ffn, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, dim = x.shape
        h = self.norm1(x)
        head = self.head_dim = dim // self.heads
        q, k, v = (f(h).view(batch, seq, -1, head).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(batch, seq, -1))
        h = self.norm2(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    """All of it, or the part of one pipeline stage."""

    def __init__(self, args: argparse.Namespace, layers: range, first: bool = True, last: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(args.vocab, args.dim) if first else None
        self.layers = nn.ModuleDict({str(n): Block(args.dim, args.heads, args.ffn) for n in layers})
        self.norm = nn.RMSNorm(args.dim) if last else None
        self.head = nn.Linear(args.dim, args.vocab, bias=False) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return self.head(self.norm(x)) if self.head is not None and self.norm is not None else x


def loss_of(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def parallel(args: argparse.Namespace, world: int) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh

    model: nn.Module = Model(args, range(args.layers))
    if args.kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=args.bucket_mb)
    mesh = init_device_mesh("cpu", (world,))
    if args.kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers.values():  # type: ignore[operator, union-attr]
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for layer in model.layers.values():  # type: ignore[operator, union-attr]
        plan = {name: ColwiseParallel() for name in ("q", "k", "v", "gate", "up")}
        parallelize_module(layer, mesh, {**plan, "o": RowwiseParallel(), "down": RowwiseParallel()})
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("ddp", "fsdp2", "tp", "pp"))
    for name, value in {
        "dim": 256,
        "layers": 4,
        "heads": 8,
        "ffn": 704,
        "vocab": 1024,
        "seq": 128,
        "batch": 4,
        "steps": 12,
        "seed": 0,
        "micro_batches": 6,
        "bucket_mb": 2,
        "same_batch": 1,
        "extra_us": 0,
    }.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--times")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(args.seed)
    begins: list[float] = []
    seconds: list[float] = []
    losses: list[float] = []
    data = torch.Generator().manual_seed(args.seed + 1)

    def batch(size: int) -> torch.Tensor:
        return torch.randint(0, args.vocab, (size, args.seq), generator=data)

    fixed = batch(args.batch * (args.micro_batches if args.kind == "pp" else 1))
    step: Any
    if args.kind == "pp":
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        each = args.layers // world
        layers = range(rank * each, (rank + 1) * each)
        model: nn.Module = Model(args, layers, rank == 0, rank == world - 1)
        stage = PipelineStage(model, rank, world, torch.device("cpu"))
        schedule = Schedule1F1B(stage, args.micro_batches, loss_fn=loss_of)

        def step(x: torch.Tensor) -> float:
            got: list[torch.Tensor] = []
            if rank == 0:
                schedule.step(x)
            elif rank == world - 1:
                schedule.step(target=x, losses=got)
            else:
                schedule.step()
            return float(sum(got)) / len(got) if got else 0.0
    else:
        model = parallel(args, world)

        def step(x: torch.Tensor) -> float:
            loss = loss_of(model(x), x)
            loss.backward()
            return float(loss.detach())

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for _ in range(args.steps):
        x = fixed if args.same_batch else batch(len(fixed))
        begins.append(begun := time.perf_counter())
        losses.append(step(x))
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begun)
    if args.times:
        with open(args.times.replace("{rank}", str(rank)), "w") as file:
            json.dump({"begun": begins, "seconds": seconds, "losses": losses}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
