"""A gradient's all-reduce in parts, as a hook of DistributedDataParallel: bit-equal to plain training on two ranks.

torchrun --nproc-per-node 2 examples/techniques/collective_partitioning.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from windtunnel.real.techniques import collective_partitioning as partitioning
from windtunnel.studies.techniques.parameters import PartitionPlan

STEPS = 50


def trained(hooked: bool) -> tuple[float, list[torch.Tensor]]:
    """The last loss and the parameters, with whole all-reduces or with reduce-scatters and all-gathers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.1)
    if hooked:
        parts = partitioning.PartitionState.from_plan(PartitionPlan(group=False), local=dist.get_world_size())
        ddp.register_comm_hook(parts, partitioning.partitioned_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        x = torch.randn(16, 32, generator=generator)
        loss = (ddp(x) - x[:, :8].sin()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item(), [parameter.detach() for parameter in ddp.parameters()]


def main() -> None:
    """Train both ways and compare the bits."""
    dist.init_process_group("gloo")
    (loss, plain), (_, parts) = trained(hooked=False), trained(hooked=True)
    same = all(torch.equal(a, b) for a, b in zip(plain, parts, strict=True))
    if dist.get_rank() == 0:
        print(f"loss {loss:.4f} after {STEPS} steps, parameters bit-equal to plain training: {same}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
