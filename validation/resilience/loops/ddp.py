"""DistributedDataParallel with BatchNorm and dropout, a DistributedSampler over epochs, a scheduler in the loop."""

import time

import torch
from common import asked, finish, offloaded, start, survivable
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rank, world = start()
data = TensorDataset(torch.randn(256, 16), torch.randn(256, 4))
sampler = DistributedSampler(data, world, rank, seed=3)
loader = DataLoader(data, 8, sampler=sampler)
net = nn.Sequential(
    nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.Linear(64, 4)
)
model = DistributedDataParallel(offloaded(net), bucket_cap_mb=0.01)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, asked.steps)


def step(x, y):
    time.sleep(asked.pause)
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


step = survivable(step, model, optimizer)
losses, epoch = [], 0
while len(losses) < asked.steps:
    sampler.set_epoch(epoch)
    for x, y in loader:
        losses.append(step(x, y))
        scheduler.step()
        if len(losses) == asked.steps:
            break
    epoch += 1
finish(losses, model)
