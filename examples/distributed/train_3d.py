"""Three dimensions: a pipeline of stages, each of them split over tensor-parallel ranks and sharded over replicas.

    torchrun --nproc-per-node 4 examples/distributed/train_3d.py --pp 4 --tp 1 --schedule zbv
    torchrun --nproc-per-node 8 examples/distributed/train_3d.py --pp 2 --tp 2 --schedule 1f1b

With `--config 405b --tp 8 --pp 16` on 8,192 ranks it is the layout that Llama 3.1 405B was trained with.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from common import Progress, arguments, batches, clip_gradients, cross_entropy, job
from model import CONFIGS, Llama, materialize, stage_layers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor.parallel import loss_parallel
from train_fsdp2 import shard
from train_tp import split

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
}


def stages_of(position: int, pp: int, schedule: str) -> tuple[int, ...]:
    """Which stages a rank holds: one; every pp-th (interleaved); or, down and up again as a V, i and 2 pp - 1 - i."""
    if schedule == "interleaved":
        return position, position + pp
    if schedule == "zbv":
        return position, 2 * pp - 1 - position
    return (position,)


def main() -> None:
    """Train for a few steps."""
    parser = arguments(__doc__)
    parser.set_defaults(micro_batches=None)  # two for each stage of the pipeline
    parser.add_argument("--tp", type=int, default=1, help="ranks that split each matrix")
    parser.add_argument("--pp", type=int, default=2, help="ranks in a pipeline")
    parser.add_argument("--schedule", choices=sorted(SCHEDULES), default="1f1b")
    parser.add_argument("--ac", action="store_true", help="activation checkpointing: recompute each layer")
    parser.add_argument("--loss-parallel", action="store_true", help="keep the logits split over the vocabulary")
    args = parser.parse_args()
    args.micro_batches = args.micro_batches or 2 * args.pp
    config = CONFIGS[args.config]
    with job() as here:
        replicas = here.world_size // (args.pp * args.tp)
        mesh = init_device_mesh(here.device.type, (args.pp, replicas, args.tp), mesh_dim_names=("pp", "dp", "tp"))
        pipeline = mesh["pp"].get_group()
        mine = stages_of(mesh["pp"].get_local_rank(), args.pp, args.schedule)
        count = len(mine) * args.pp

        models, stages = [], []
        for index in mine:
            with torch.device("meta"):
                model = Llama(config, args.seq or config.seq, stage_layers(config, index, count), recompute=args.ac)
            if args.tp > 1:
                split(model, mesh["tp"], args.loss_parallel)
            # A layer is used by many micro-batches in turn: its weights stay gathered.
            shard(model, mesh["dp"], args.precision, reshard_after_forward=False)
            materialize(model, here.device, args.seed)
            models.append(model)
            stages.append(PipelineStage(model, index, count, here.device, group=pipeline))
        make = SCHEDULES[args.schedule]
        schedule = make(stages if len(stages) > 1 else stages[0], args.micro_batches, loss_fn=cross_entropy)
        first, last = any(stage.is_first for stage in stages), any(stage.is_last for stage in stages)

        parameters = [parameter for model in models for parameter in model.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=args.lr)
        progress = Progress(args, here)
        for step, tokens, targets in batches(args, here, mesh["dp"].get_local_rank(), replicas):
            losses: list[torch.Tensor] = []
            with loss_parallel() if args.loss_parallel else nullcontext():
                schedule.step(
                    *([tokens] if first else []),
                    target=targets if last else None,
                    losses=losses if last else None,
                    return_outputs=False,
                )
            loss = torch.zeros((), device=here.device)
            for part in losses:
                part = part.detach() / args.micro_batches
                loss += part.full_tensor() if args.loss_parallel else part
            norm = clip_gradients((parameters, pipeline))
            optimizer.step()
            optimizer.zero_grad()
            progress.step(step, loss, norm, parts=here.world_size // args.pp)


if __name__ == "__main__":
    main()
