"""A moving average of the weights, updated in the loop and not in the step."""

import time

import torch
from common import asked, finish, offloaded, start, survivable
from net import Net, batch, cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

rank, world = start()
model = DistributedDataParallel(offloaded(Net()))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ema = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def step(tokens, targets):
    time.sleep(asked.pause)
    optimizer.zero_grad()
    loss = cross_entropy(model(tokens), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


step = survivable(step, model, optimizer, ema=ema)
losses = []
for at in range(asked.steps):
    losses.append(step(*batch(at, rank)))
    ema.update_parameters(model.module)
finish(losses, model, ema)
