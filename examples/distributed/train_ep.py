"""Expert parallel: a mixture of experts whose experts live on different ranks; tokens travel to them and back.

    torchrun --nproc-per-node 2 examples/distributed/train_ep.py --ep 2 --steps 3

How many tokens each rank sends to each other depends on the data: the ranks first tell each other the counts, and then
exchange the tokens by an all-to-all with uneven splits. All else is sharded over all ranks by FSDP2; experts, which are
on several ranks where there are more of those than --ep, over the ranks that hold the same ones.
"""
# mypy: allow-subclassing-any

from __future__ import annotations

import torch
import torch.distributed as dist
from common import Progress, arguments, batches, clip_gradients, cross_entropy, job, micro_batches
from model import CONFIGS, Config, FeedForward, Llama, materialize
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from train_fsdp2 import mixed_precision, shard


class Experts(nn.Module):
    """The experts of this rank, under their numbers in the whole model."""

    def __init__(self, config: Config, mine: range) -> None:
        super().__init__()
        self.by_number = nn.ModuleDict({str(number): FeedForward(config) for number in mine})

    def forward(self, rows: Tensor, rows_of_each: list[int]) -> Tensor:
        """Tokens [rows, dim], sorted by expert, to the same."""
        parts = rows.split(rows_of_each)
        return torch.cat([expert(part) for expert, part in zip(self.by_number.values(), parts, strict=True)])


class MixtureOfExperts(nn.Module):
    """Each token goes to the `top_k` experts with the highest scores."""

    def __init__(self, config: Config, experts: int, top_k: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.count, self.top_k, self.group = experts, top_k, group
        self.ranks = dist.get_world_size(group)
        self.local = experts // self.ranks
        mine = dist.get_rank(group) * self.local
        self.router = nn.Linear(config.dim, experts, bias=False)
        self.experts = Experts(config, range(mine, mine + self.local))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, dim] to the same."""
        tokens = x.flatten(0, 1)
        weights, choice = functional.softmax(self.router(tokens).float(), dim=-1).topk(self.top_k)
        weights = (weights / weights.sum(-1, keepdim=True)).type_as(x)
        choice = choice.flatten()
        sent = torch.zeros(self.count, dtype=torch.int64, device=x.device)
        sent.scatter_add_(0, choice, torch.ones_like(choice))  # tokens to each expert; bincount would wait for the GPU

        received = torch.empty_like(sent)  # of each rank, for each of my experts
        dist.all_to_all_single(received, sent, group=self.group)
        # Here, and once only, Python waits for the device and reads what it counted: [rank, expert of that rank], and
        # [rank, expert of mine].
        to, of = torch.stack((sent, received)).view(2, self.ranks, self.local).tolist()
        to_ranks, from_ranks = [sum(counts) for counts in to], [sum(counts) for counts in of]
        rows_of_each = [sum(counts) for counts in zip(*of, strict=True)]

        by_expert = choice.argsort(stable=True)
        rows = all_to_all_single_autograd(tokens[by_expert // self.top_k], from_ranks, to_ranks, self.group)
        expert_of_row = torch.arange(self.count, device=x.device).remainder(self.local)
        expert_of_row = expert_of_row.repeat_interleave(received, output_size=sum(from_ranks))
        order = expert_of_row.argsort(stable=True)  # they come rank by rank
        rows = self.experts(rows[order], rows_of_each)
        rows = all_to_all_single_autograd(rows[order.argsort()], to_ranks, from_ranks, self.group)

        rows = rows[by_expert.argsort()].unflatten(0, (-1, self.top_k))
        return (rows * weights[..., None]).sum(1).view_as(x)


def main() -> None:
    """Train for a few steps."""
    parser = arguments(__doc__)
    parser.add_argument("--ep", type=int, default=2, help="ranks that share the experts")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=2, help="experts of a token")
    args = parser.parse_args()
    if args.experts % args.ep:
        raise SystemExit(f"--experts {args.experts}: must be a multiple of --ep {args.ep}")
    config = CONFIGS[args.config]
    with job() as here:
        world = here.world_size
        mesh = init_device_mesh(here.device.type, (world // args.ep, args.ep), mesh_dim_names=("dp", "ep"))
        everyone = init_device_mesh(here.device.type, (world,), mesh_dim_names=("all",))
        with torch.device("meta"):
            model = Llama(config, args.seq or config.seq)
            for layer in model.layers.values():
                layer.feed_forward = MixtureOfExperts(config, args.experts, args.top_k, mesh["ep"].get_group())
        for layer in model.layers.values():
            fully_shard(layer.feed_forward.experts, mesh=mesh["dp"], mp_policy=mixed_precision(args.precision))
        shard(model, everyone, args.precision)
        materialize(model, here.device, args.seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        split = [parameter for name, parameter in model.named_parameters() if ".experts." in name]
        common = [parameter for name, parameter in model.named_parameters() if ".experts." not in name]
        progress = Progress(args, here)
        for step, tokens, targets in batches(args, here, here.rank, world):
            loss = torch.zeros((), device=here.device)
            for is_last, x, y in micro_batches(args, tokens, targets):
                model.set_requires_gradient_sync(is_last)
                part = cross_entropy(model(x), y) / args.micro_batches
                part.backward()
                loss += part.detach()
            for parameter in split:  # summed over the tokens of --ep ranks, and averaged only over those that hold it
                parameter.grad.div_(args.ep)
            norm = clip_gradients((common, None), (split, mesh["ep"].get_group()))
            optimizer.step()
            optimizer.zero_grad()
            progress.step(step, loss, norm, parts=world)


if __name__ == "__main__":
    main()
