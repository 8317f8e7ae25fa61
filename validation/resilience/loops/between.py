"""Micro-batches in the step; between the calls a gathered loss, clipping, the optimizer and an evaluation on all ranks.

STRIKE="6:1:before 6:0:after" ends rank 1, once, before it gathers the loss of call 6, and rank 0 after that.
"""

import os
import signal
import time

import torch
import torch.distributed as dist
from common import asked, finish, offloaded, start, survivable
from net import Net, batch, cross_entropy
from torch.nn.parallel import DistributedDataParallel

rank, world = start()
model = DistributedDataParallel(offloaded(Net()))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
strikes = os.environ.get("STRIKE", "").split()


def strike(*where) -> None:
    name = ":".join(map(str, where))
    if name in strikes and not (asked.out / name).exists():
        (asked.out / name).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def step(tokens, targets):
    time.sleep(asked.pause)
    loss = cross_entropy(model(tokens), targets)
    loss.backward()
    return loss.item()


step = survivable(step, model, optimizer)
losses = []
for at in range(asked.steps):
    mine = step(*batch(at, rank))
    strike(at, rank, "before")
    every: list[float] = [0.0] * world
    dist.all_gather_object(every, mine)
    losses += every
    strike(at, rank, "after")
    if at % 2:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    if at % 4 == 3:
        model.eval()
        with torch.no_grad():
            mean = cross_entropy(model(batch(at + 1000, rank)[0]), batch(at + 1000, rank)[1])
        model.train()
        strike(at, rank, "evaluated")
        dist.all_reduce(mean)
        losses.append(float(mean))
finish(losses, model)
