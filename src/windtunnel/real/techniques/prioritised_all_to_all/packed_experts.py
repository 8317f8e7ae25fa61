"""Experts packed onto devices: p experts on each rank, all-to-alls among E / p ranks, p copies of each expert.

Ranks are in blocks of E / p neighbours that exchange tokens; ranks at the same place of each block hold the same
experts, and sum their gradients. Outputs do not depend on p, bit by bit; gradients do in the order of their sums. All
groups for every p are made at the start: making them later is a collective of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from windtunnel.errors import SpecError
from windtunnel.real.techniques.collective_partitioning.partitioned import two_levels

Expert = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (tokens, weight) -> tokens


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """An all-to-all of rows, whose backward is the all-to-all back."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        x: torch.Tensor,
        arriving: list[int],
        leaving: list[int],
        group: dist.ProcessGroup | None,
    ) -> torch.Tensor:
        ctx.arriving, ctx.leaving, ctx.group = arriving, leaving, group
        return _exchanged(x, arriving, leaving, group)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor, None, None, None]:
        return _exchanged(gradients[0], ctx.leaving, ctx.arriving, ctx.group), None, None, None


def _exchanged(
    x: torch.Tensor, arriving: list[int], leaving: list[int], group: dist.ProcessGroup | None
) -> torch.Tensor:
    out = x.new_empty(sum(arriving), x.shape[1])
    dist.all_to_all_single(out, x.contiguous(), arriving, leaving, group=group)
    return out


class PackedExperts:
    """One mixture-of-experts layer of as many experts as ranks, top-1 routing given, one weight matrix an expert."""

    def __init__(self, home: torch.Tensor, expert: Expert, packing: int = 1) -> None:
        self.world, self.rank, self.expert = dist.get_world_size(), dist.get_rank(), expert
        if packing < 1 or self.world % packing or packing & (packing - 1):
            raise SpecError("packing", packing, f"give a power of two that divides the {self.world} ranks")
        self._groups: dict[int, tuple[object, object]] = {}  # those that exchange tokens, and those with its experts
        p = 1
        while p <= self.world and self.world % p == 0:
            self._groups[p] = two_levels(self.world // p)
            p *= 2
        self.packing, self.bytes_left = 1, 0
        self.weights: dict[int, torch.Tensor] = {self.rank: home.detach().clone().requires_grad_()}
        self.pack(packing)

    def pack(self, packing: int) -> None:
        """Hold `packing` experts on each rank: each weight is sent once, from a rank that holds it."""
        if packing not in self._groups:
            raise SpecError("packing", packing, f"give one of {', '.join(map(str, self._groups))}")
        size, old = self.world // packing, self.world // self.packing
        mine = range(self.rank % size * packing, (self.rank % size + 1) * packing)
        weights: dict[int, torch.Tensor] = {}
        shape = next(iter(self.weights.values()))
        for expert in range(self.world):
            source = expert // self.packing % old  # of the first block
            weight = self.weights[expert].detach().clone() if self.rank == source else torch.empty_like(shape)
            dist.broadcast(weight, source)
            if expert in mine:
                weights[expert] = weight.requires_grad_()
        self.weights, self.packing = weights, packing

    def __call__(self, x: torch.Tensor, expert_of: torch.Tensor) -> torch.Tensor:
        """Each token through its expert. x: [tokens, width]; expert_of: int[tokens]."""
        group, _ = self._groups[self.packing]
        size = self.world // self.packing
        order = torch.argsort(expert_of, stable=True)
        counts = torch.bincount(expert_of, minlength=self.world)
        leaving = counts.view(size, self.packing).sum(1).tolist()
        theirs = [torch.empty_like(counts) for _ in range(size)]
        dist.all_gather(theirs, counts, group=group)
        me = dist.get_rank(group)
        table = torch.stack(theirs).view(size, size, self.packing)[:, me]  # [sender, expert here]
        arriving = table.sum(1).tolist()
        received = _Exchange.apply(x[order], arriving, leaving, group)
        away = sum(rows for place, rows in enumerate(leaving) if place != me)
        self.bytes_left += away * x.shape[1] * x.element_size()
        label = torch.cat([torch.repeat_interleave(torch.arange(self.packing), row) for row in table])
        parts, places = [], []
        for here, (_, weight) in enumerate(sorted(self.weights.items())):
            rows = (label == here).nonzero().view(-1)
            parts.append(self.expert(received[rows], weight))
            places.append(rows)
        back = torch.cat(parts)[torch.argsort(torch.cat(places))]
        returned = _Exchange.apply(back, leaving, arriving, group)
        return returned[torch.argsort(order)]

    def reduce_gradients(self) -> None:
        """Sum each expert's gradient over its copies, which saw different tokens."""
        _, copies = self._groups[self.packing]
        for _, weight in sorted(self.weights.items()):
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            dist.all_reduce(weight.grad, group=copies)
