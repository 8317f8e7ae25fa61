"""A pipeline of half as many stages as ranks, 1F1B, each stage under data parallelism of two."""

import time

import torch
import torch.distributed as dist
from common import asked, finish, offloaded, start, survivable
from net import WIDTH
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

rank, world = start()
mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "pp"))
stages, at_stage = world // 2, mesh.get_local_rank("pp")
torch.manual_seed(at_stage)
part = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
part = offloaded(part)
stage = PipelineStage(part, at_stage, stages, torch.device("cpu"), group=mesh.get_group("pp"))
schedule = Schedule1F1B(stage, 4, loss_fn=lambda out, target: (out - target).square().mean())
optimizer = torch.optim.Adam(part.parameters(), lr=1e-3)


def step(x):
    time.sleep(asked.pause)
    optimizer.zero_grad()
    losses = []
    first, last = at_stage == 0, at_stage == stages - 1
    schedule.step(*([x] if first else []), target=x.sin() if last else None, losses=losses if last else None)
    for one in part.parameters():
        dist.all_reduce(one.grad, group=mesh.get_group("dp"))
    optimizer.step()
    return float(sum(losses)) if last else 0.0


step = survivable(step, part, optimizer)
replica = mesh.get_local_rank("dp")
losses = [
    step(torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(at * 1009 + replica)))
    for at in range(asked.steps)
]
finish(losses, part)
