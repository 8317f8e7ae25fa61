"""Sparse gradients in one's own script: the hook on DistributedDataParallel, and what it sends.

torchrun --nproc-per-node 2 examples/techniques/sparse_gradients.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from windtunnel.real.techniques import sparse_gradients


def main() -> None:
    """Train a small model on a teacher's outputs, once with whole gradients and once with a tenth of the chunks."""
    dist.init_process_group("gloo")
    for ratio in (1.0, 0.1):
        torch.manual_seed(0)
        teacher = nn.Linear(32, 8)
        ddp = DistributedDataParallel(nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 8)))
        state = sparse_gradients.State(ddp.module, ratio=ratio, chunk=64)
        ddp.register_comm_hook(state, sparse_gradients.hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(200):
            x = torch.randn(32, 32, generator=generator)
            loss = (ddp(x) - teacher(x).detach()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"ratio {ratio}: loss {loss.item():.4f}, {state.share_sent:.1%} of the elements sent")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
