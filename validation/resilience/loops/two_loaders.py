"""Two shuffled loaders whose order comes from the global random numbers, with a worker process."""

import time

import torch
from common import asked, finish, offloaded, start, survivable
from net import Net, batch, cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

rank, world = start()
torch.manual_seed(rank)
sets = [TensorDataset(*batch(7 + at, rank, 24)) for at in range(2)]
loaders = [DataLoader(sets[0], 4, shuffle=True, num_workers=1), DataLoader(sets[1], 4, shuffle=True)]
model = DistributedDataParallel(offloaded(Net()))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(tokens, targets):
    time.sleep(asked.pause)
    optimizer.zero_grad()
    loss = cross_entropy(model(tokens), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


step = survivable(step, model, optimizer)
losses = []
while len(losses) < asked.steps:
    for pair in zip(*loaders, strict=True):
        both = [torch.cat([one[part] for one in pair]) for part in range(2)]
        losses.append(step(*both))
        if len(losses) == asked.steps:
            break
finish(losses, model)
