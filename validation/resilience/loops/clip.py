"""Gradient clipping, and the norm of all ranks logged from within the step."""

import time

import torch
import torch.distributed as dist
from common import asked, finish, offloaded, start, survivable
from net import Net, batch, cross_entropy
from torch.nn.parallel import DistributedDataParallel

rank, world = start()
model = DistributedDataParallel(offloaded(Net()))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(tokens, targets):
    time.sleep(asked.pause)
    optimizer.zero_grad()
    loss = cross_entropy(model(tokens), targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean / world


step = survivable(step, model, optimizer)
finish([step(*batch(at, rank)) for at in range(asked.steps)], model)
