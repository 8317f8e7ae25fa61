"""FSDP2 over all ranks: nobody else has a rank's shard."""

import time

import torch
from common import asked, finish, offloaded, start, survivable
from net import Net, batch, cross_entropy
from torch.distributed.fsdp import fully_shard

rank, world = start()
model = Net()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
model = offloaded(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(tokens, targets):
    time.sleep(asked.pause)
    loss = cross_entropy(model(tokens), targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


step = survivable(step, model, optimizer)
finish([step(*batch(at, rank)) for at in range(asked.steps)], model)
