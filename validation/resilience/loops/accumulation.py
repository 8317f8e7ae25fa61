"""Gradients of four calls are added up under no_sync; every fourth call steps."""

import time
from contextlib import nullcontext

import torch
from common import asked, finish, offloaded, start, survivable
from net import Net, batch, cross_entropy
from torch.nn.parallel import DistributedDataParallel

rank, world = start()
model = DistributedDataParallel(offloaded(Net()))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(tokens, targets):
    time.sleep(asked.pause)
    number = step_number[0]
    with nullcontext() if number % 4 == 3 else model.no_sync():
        loss = cross_entropy(model(tokens), targets) / 4
        loss.backward()
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


step = survivable(step, model, optimizer)
losses = []
for at in range(asked.steps):
    step_number = [at]
    losses.append(step(*batch(at, rank)))
finish(losses, model)
