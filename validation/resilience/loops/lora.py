"""LoRA: frozen weights, low-rank ones beside them, FSDP2 with replicas (HSDP)."""

import time

import torch
from common import asked, finish, offloaded, start, survivable
from net import Net, batch, cross_entropy
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

rank, world = start()


class Lora(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, 4, bias=False)
        self.b = nn.Linear(4, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


model = Net()
for block in model.blocks:
    block.up, block.down = Lora(block.up), Lora(block.down)
mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
model = offloaded(model)
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)


def step(tokens, targets):
    time.sleep(asked.pause)
    loss = cross_entropy(model(tokens), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


step = survivable(step, model, optimizer)
finish([step(*batch(at, rank)) for at in range(asked.steps)], model)
