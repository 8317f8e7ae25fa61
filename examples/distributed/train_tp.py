"""Tensor parallel with sequence parallel: each weight matrix is split over a few ranks, and so are the activations.

    torchrun --nproc-per-node 2 examples/distributed/train_tp.py --tp 2 --steps 3

Ranks beyond --tp are data-parallel replicas, sharded by FSDP2.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from common import Progress, arguments, batches, clip_gradients, cross_entropy, job, micro_batches
from model import CONFIGS, Llama, materialize
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from train_fsdp2 import shard


def split(model: Llama, mesh: DeviceMesh, split_loss: bool) -> None:
    """Split a model, or a stage of one, over `mesh`. Between the matrices, activations are split along the sequence."""
    ends = {}
    if model.embedding is not None:
        ends["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    if model.output is not None:
        ends["norm"] = SequenceParallel()
        ends["output"] = ColwiseParallel(
            input_layouts=Shard(1),
            output_layouts=Shard(-1) if split_loss else Replicate(),
            use_local_output=not split_loss,
        )
    parallelize_module(model, mesh, ends)
    for layer in model.layers.values():
        parallelize_module(
            layer,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
                ),
                "attention.wq": ColwiseParallel(),
                "attention.wk": ColwiseParallel(),
                "attention.wv": ColwiseParallel(),
                "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                "ffn_norm": SequenceParallel(),
                "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                "feed_forward.w1": ColwiseParallel(),
                "feed_forward.w3": ColwiseParallel(),
                "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            },
        )


def main() -> None:
    """Train for a few steps."""
    parser = arguments(__doc__)
    parser.add_argument("--tp", type=int, default=2, help="ranks that split each matrix")
    parser.add_argument("--loss-parallel", action="store_true", help="keep the logits split over the vocabulary")
    args = parser.parse_args()
    config = CONFIGS[args.config]
    with job() as here:
        replicas = here.world_size // args.tp
        mesh = init_device_mesh(here.device.type, (replicas, args.tp), mesh_dim_names=("dp", "tp"))
        with torch.device("meta"):
            model = Llama(config, args.seq or config.seq)
        split(model, mesh["tp"], args.loss_parallel)
        shard(model, mesh["dp"], args.precision)
        materialize(model, here.device, args.seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        progress = Progress(args, here)
        for step, tokens, targets in batches(args, here, mesh["dp"].get_local_rank(), replicas):
            loss = torch.zeros((), device=here.device)
            for is_last, x, y in micro_batches(args, tokens, targets):
                model.set_requires_gradient_sync(is_last)
                with loss_parallel() if args.loss_parallel else nullcontext():
                    part = cross_entropy(model(x), y) / args.micro_batches
                    part.backward()
                loss += part.detach().full_tensor() if args.loss_parallel else part.detach()
            norm = clip_gradients((list(model.parameters()), None))
            optimizer.step()
            optimizer.zero_grad()
            progress.step(step, loss, norm, parts=here.world_size)


if __name__ == "__main__":
    main()
