"""Data parallel: every rank holds the whole model, gradients are averaged in buckets while the backward pass goes on.

    torchrun --nproc-per-node 2 examples/distributed/train_ddp.py --steps 3

With `--micro-batches` above 1, gradients add up on each rank, and only the last pass averages them.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from common import Progress, arguments, batches, clip_gradients, cross_entropy, job, micro_batches
from model import CONFIGS, Llama, materialize
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train for a few steps."""
    args = arguments(__doc__).parse_args()
    config = CONFIGS[args.config]
    with job() as here:
        with torch.device("meta"):
            model = Llama(config, args.seq or config.seq)
        materialize(model, here.device, args.seed)
        replica = DistributedDataParallel(model, device_ids=[here.device] if here.device.type == "cuda" else None)
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        progress = Progress(args, here)
        for step, tokens, targets in batches(args, here, here.rank, here.world_size):
            loss = torch.zeros((), device=here.device)
            for is_last, x, y in micro_batches(args, tokens, targets):
                with nullcontext() if is_last else replica.no_sync():
                    part = cross_entropy(replica(x), y) / args.micro_batches
                    part.backward()
                loss += part.detach()
            norm = clip_gradients((list(model.parameters()), None))
            optimizer.step()
            optimizer.zero_grad()
            progress.step(step, loss, norm, parts=here.world_size)


if __name__ == "__main__":
    main()
