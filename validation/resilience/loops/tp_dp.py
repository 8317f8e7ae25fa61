"""Tensor parallelism of two, FSDP2 over the rest, in one DeviceMesh."""

import time

import torch
from common import asked, finish, offloaded, start, survivable
from net import WIDTH
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

rank, world = start()
mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
layers = [nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)]
model = nn.Sequential(*layers)
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["dp"])
model = offloaded(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)


def step(x):
    time.sleep(asked.pause)
    loss = (model(x) - x.sin()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


step = survivable(step, model, optimizer)
replica = rank // 2
losses = [
    step(torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(at * 1009 + replica)))
    for at in range(asked.steps)
]
finish(losses, model)
