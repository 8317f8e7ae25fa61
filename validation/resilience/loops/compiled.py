"""A compiled model in DistributedDataParallel."""

import time

import torch
from common import asked, finish, offloaded, start, survivable
from net import Net, batch, cross_entropy
from torch.nn.parallel import DistributedDataParallel

rank, world = start()
model = DistributedDataParallel(torch.compile(offloaded(Net()), backend="aot_eager"))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def step(tokens, targets):
    time.sleep(asked.pause)
    optimizer.zero_grad()
    loss = cross_entropy(model(tokens), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


step = survivable(step, model, optimizer)
finish([step(*batch(at, rank)) for at in range(asked.steps)], model)
