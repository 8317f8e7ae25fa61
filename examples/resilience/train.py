"""A small model under `python -m windtunnel.survive --nproc-per-node 4 --standby 1 examples/resilience/train.py`.

Kill any of its processes with `kill -9` while it runs: a standby takes the rank, and the losses are the same bits.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

from windtunnel.real.survive import train

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--losses", type=Path, help="write the losses here, as hexadecimal floats")
parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer than it has to")
parser.add_argument("--checkpoints", type=Path, help="save here every ten steps, and go on from what is there")
asked = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Dropout(0.1), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def loss(step: int, rank: int, world: int) -> torch.Tensor:
    """The part of the batch that belongs to this step and rank, whoever plays it."""
    if asked.pause:
        time.sleep(asked.pause)
    generator = torch.Generator().manual_seed(step * world + rank)
    x = torch.randn(32, 64, generator=generator)
    return (model(x) - x[:, :8].sin()).square().mean()


losses = train(model, optimizer, loss, asked.steps, checkpoints=asked.checkpoints, checkpoint_every=10)
if asked.losses is not None:
    partial = asked.losses.with_suffix(f".{id(losses)}")
    partial.write_text(json.dumps([one.hex() for one in losses]))
    partial.replace(asked.losses)  # every rank has the same; the last one stands
print(f"{len(losses)} steps, loss {losses[0]:.4f} -> {losses[-1]:.4f}")
