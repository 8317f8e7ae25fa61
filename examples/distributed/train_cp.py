"""Context parallel: one long sequence is split over a few ranks, and attention gathers the keys and values of all.

    torchrun --nproc-per-node 2 examples/distributed/train_cp.py --cp 2 --steps 3

A causal query near the end sees more keys than one near the start. So the sequence is cut into 2 x cp chunks, and rank
i takes chunks i and 2 cp - 1 - i: all ranks then have the same work (Llama 3, arXiv:2407.21783, section 3.3.2). With
`--attention ring` it is PyTorch's own context_parallel instead, which has kernels for CUDA only.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from common import Progress, arguments, batches, clip_gradients, cross_entropy, job, micro_batches
from model import CONFIGS, Llama, materialize
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional
from train_fsdp2 import shard


class GatheredAttention:
    """Causal attention of the queries of two chunks to the keys and values of the whole sequence."""

    def __init__(self, mesh: DeviceMesh, seq: int, device: torch.device) -> None:
        self.mesh, self.ranks = mesh, mesh.size()
        self.chunk = seq // (2 * self.ranks)
        starts = [at * self.chunk for at in (mesh.get_local_rank(), 2 * self.ranks - 1 - mesh.get_local_rank())]
        self.positions = torch.cat([torch.arange(start, start + self.chunk, device=device) for start in starts])
        # For each of the two chunks: which of the keys up to its end its queries see.
        ones = [torch.ones(self.chunk, start + self.chunk, dtype=torch.bool, device=device) for start in starts]
        self.seen = [one.tril(start) for one, start in zip(ones, starts, strict=True)]

    def whole(self, x: Tensor) -> Tensor:
        """[batch, heads, seq / ranks, head_dim] of all ranks as one, in order."""
        # A gather by DTensor has a gradient: each rank has a partial sum of it, which is reduced and scattered.
        gathered = DTensor.from_local(x, self.mesh, [Shard(2)]).full_tensor(grad_placements=[Partial()])
        early, late = gathered.unflatten(2, (self.ranks, 2, self.chunk)).unbind(3)
        return torch.cat([early.flatten(2, 3), late.flip(2).flatten(2, 3)], dim=2)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[batch, heads, seq / ranks, head_dim] each, and so is what comes out."""
        k, v = self.whole(k), self.whole(v)
        out = [
            functional.scaled_dot_product_attention(
                part, k[:, :, : seen.shape[1]], v[:, :, : seen.shape[1]], attn_mask=seen, enable_gqa=True
            )
            for part, seen in zip(q.chunk(2, dim=2), self.seen, strict=True)
        ]
        return torch.cat(out, dim=2)


def main() -> None:
    """Train for a few steps."""
    parser = arguments(__doc__)
    parser.add_argument("--cp", type=int, default=2, help="ranks that share a sequence")
    parser.add_argument("--attention", choices=("gather", "ring"), default="gather")
    args = parser.parse_args()
    config = CONFIGS[args.config]
    seq = args.seq or config.seq
    with job() as here:
        if args.attention == "ring" and here.device.type != "cuda":
            raise SystemExit("--attention ring: PyTorch has it for CUDA only; --attention gather runs anywhere")
        if seq % (2 * args.cp):
            raise SystemExit(f"--seq {seq}: must be a multiple of 2 x --cp {args.cp}")
        replicas = here.world_size // args.cp
        mesh = init_device_mesh(here.device.type, (replicas, args.cp), mesh_dim_names=("dp", "cp"))
        everyone = init_device_mesh(here.device.type, (here.world_size,), mesh_dim_names=("dp_cp",))
        with torch.device("meta"):
            model = Llama(config, seq)
        shard(model, everyone, args.precision)
        materialize(model, here.device, args.seed)
        gathered = GatheredAttention(mesh["cp"], seq, here.device)
        if args.attention == "gather":
            for layer in model.layers.values():
                layer.attention.attend = gathered
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        progress = Progress(args, here)
        for step, tokens, targets in batches(args, here, mesh["dp"].get_local_rank(), replicas):
            loss = torch.zeros((), device=here.device)
            for is_last, x, y in micro_batches(args, tokens, targets):
                model.set_requires_gradient_sync(is_last)
                if args.attention == "gather":
                    x, y, positions = x[:, gathered.positions], y[:, gathered.positions], gathered.positions
                    inside = nullcontext()
                else:  # cuts the buffers to this rank's part, in place, as long as the context is open
                    x, y, positions = x.clone(), y.clone(), None
                    buffers = [x, y, model.cos, model.sin]
                    inside = context_parallel(
                        mesh["cp"], buffers=buffers, buffer_seq_dims=[1, 1, 0, 0], no_restore_buffers={x, y}
                    )
                with inside:
                    part = cross_entropy(model(x, positions), y) / args.micro_batches
                    part.backward()
                loss += part.detach()
            norm = clip_gradients((list(model.parameters()), None))
            optimizer.step()
            optimizer.zero_grad()
            progress.step(step, loss, norm, parts=here.world_size)


if __name__ == "__main__":
    main()
