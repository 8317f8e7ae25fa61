"""What a user has without a launcher that replaces ranks: torchrun and DistributedDataParallel, to the first step.

`kills.py` runs it as `python -m torch.distributed.run --nproc-per-node 4 validation/resilience/ddp.py`. Rank 0 prints
the moment at which its first step was done, in seconds since the epoch. The model is that of examples/resilience.
"""

import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
distributed.init_process_group("gloo")
layers = [nn.Linear(64, 256), nn.Tanh(), nn.Dropout(0.1), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8)]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(32, 64)
(model(x) - x[:, :8].sin()).square().mean().backward()
optimizer.step()
if distributed.get_rank() == 0:
    print(time.time())
distributed.destroy_process_group()
