"""Fully sharded data parallel: each layer's weights are gathered just before use, its gradients scattered just after.

    torchrun --nproc-per-node 2 examples/distributed/train_fsdp2.py --steps 3
    torchrun --nproc-per-node 4 examples/distributed/train_fsdp2.py --replicas 2 --ac
    torchrun --nproc-per-node 2 examples/distributed/train_fsdp2.py --checkpoint saved --steps 6

The second is hybrid: two replicas of two shards each. The third saves at the end, and run again goes on from there, on
any number of ranks.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from common import Progress, arguments, batches, clip_gradients, cross_entropy, job, micro_batches
from model import CONFIGS, Llama, materialize
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def mixed_precision(precision: str) -> MixedPrecisionPolicy:
    """bf16: layers compute in bf16; the optimizer's weights, and the sums of gradients, stay in fp32."""
    if precision == "fp32":
        return MixedPrecisionPolicy()
    # Inputs are not cast: activations are in bf16 already, and the tables of rotary positions shall stay in fp32.
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)


def shard(model: Llama, mesh: DeviceMesh, precision: str, reshard_after_forward: bool = True) -> None:
    """Shard each layer, and then what is left: embedding, norm and output."""
    policy = mixed_precision(precision)
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    # The output matrix is used last in the forward pass and first in the backward pass.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def save(folder: Path, model: Llama, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Every rank writes its shards, in a folder of their own for each number of steps done."""
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "steps": steps}, checkpoint_id=folder / f"step-{steps}")


def resume(folder: Path, model: Llama, optimizer: torch.optim.Optimizer) -> int:
    """Load what was saved, from any number of ranks; gives the steps that were done by then."""
    saved = [int(path.parent.name.removeprefix("step-")) for path in folder.glob("step-*/.metadata")]
    if not saved:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "steps": 0}
    dcp.load(state, checkpoint_id=folder / f"step-{max(saved)}")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(state["steps"])


def main() -> None:
    """Train for a few steps."""
    parser = arguments(__doc__)
    parser.add_argument("--ac", action="store_true", help="activation checkpointing: recompute each layer")
    parser.add_argument("--replicas", type=int, default=1, help="hybrid sharding: this many sharded replicas")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="save there at the end; go on from there")
    args = parser.parse_args()
    config = CONFIGS[args.config]
    with job() as here:
        if args.replicas == 1:
            mesh = init_device_mesh(here.device.type, (here.world_size,), mesh_dim_names=("shard",))
        else:
            sizes = (args.replicas, here.world_size // args.replicas)
            mesh = init_device_mesh(here.device.type, sizes, mesh_dim_names=("replicate", "shard"))
        with torch.device("meta"):
            model = Llama(config, args.seq or config.seq, recompute=args.ac)
        shard(model, mesh, args.precision)
        materialize(model, here.device, args.seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        done = resume(args.checkpoint, model, optimizer) if args.checkpoint else 0
        progress = Progress(args, here)
        for step, tokens, targets in batches(args, here, here.rank, here.world_size, first_step=done):
            loss = torch.zeros((), device=here.device)
            for is_last, x, y in micro_batches(args, tokens, targets):
                model.set_requires_gradient_sync(is_last)
                part = cross_entropy(model(x), y) / args.micro_batches
                part.backward()
                loss += part.detach()
            norm = clip_gradients((list(model.parameters()), None))
            optimizer.step()
            optimizer.zero_grad()
            progress.step(step, loss, norm, parts=here.world_size)
        if args.checkpoint and done < args.steps:
            save(args.checkpoint, model, optimizer, args.steps)


if __name__ == "__main__":
    main()
