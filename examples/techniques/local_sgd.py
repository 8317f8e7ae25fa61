"""Weights averaged once a round instead of gradients in every step, with a rate that decays over rounds and steps.

torchrun --nproc-per-node 2 examples/techniques/local_sgd.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from windtunnel.real.techniques.local_sgd import LearningRate, LocalPlan, LocalSGD

ROUNDS, LOCAL_STEPS = 10, 20


def main() -> None:
    """Two clients whose data differ, each on its own for twenty steps, then the mean of both."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rates = LearningRate(optimizer, LocalPlan(local_steps=LOCAL_STEPS, rounds="exponential", steps="exponential"))
    local = LocalSGD(model, rates)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(ROUNDS * LOCAL_STEPS):
        x = torch.randn(32, 16, generator=generator) + dist.get_rank()
        loss = (model(x) - x[:, :4].sin()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        local.after_step()
    every_step = sum(p.numel() * p.element_size() for p in model.parameters()) * ROUNDS * LOCAL_STEPS
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}, {every_step / local.bytes_sent:.0f} times less traffic than in every step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
