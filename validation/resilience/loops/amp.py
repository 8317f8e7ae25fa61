"""Mixed precision: autocast and a GradScaler that overflows now and then."""

import time

import torch
from common import asked, finish, offloaded, start, survivable
from net import Net, batch, cross_entropy
from torch.nn.parallel import DistributedDataParallel

rank, world = start()
model = DistributedDataParallel(offloaded(Net()))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=5)


def step(tokens, targets):
    time.sleep(asked.pause)
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(model(tokens).float(), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


step = survivable(step, model, optimizer, scaler=scaler)
finish([step(*batch(at, rank)) for at in range(asked.steps)], model)
