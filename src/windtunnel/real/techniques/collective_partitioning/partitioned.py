"""Collectives cut by primitive, by group and by workload, in PyTorch.

    primitive  all-reduce = reduce-scatter, then all-gather: the same additions
    group      reduce-scatter inside the node, all-reduce of the shard across nodes, all-gather inside: another order of
               additions, so equal on integers and close on floats; all ranks hold the same bits
    workload   gather then matmul, and matmul then scatter, in pieces of rows: a piece's transfer behind the next one's
               compute. Each output row is the same dot products, so results are bit-equal as long as the library's
               kernel does not depend on the number of rows

The two of the last kind are differentiable; the backward of one is the other's forward, in pieces too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from windtunnel.errors import SpecError

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _gather(
    output: torch.Tensor, shard: torch.Tensor, group: dist.ProcessGroup | None, *, async_op: bool = False
) -> dist.Work:
    """all_gather into one tensor; PyTorch 2.13 renamed it, and warns of the old name."""
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return call(output, shard, group=group, async_op=async_op)


def _scatter(
    output: torch.Tensor, whole: torch.Tensor, group: dist.ProcessGroup | None, *, async_op: bool = False
) -> dist.Work:
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return call(output, whole, group=group, async_op=async_op)


def two_levels(local: int, world: int | None = None) -> tuple[object, object]:
    """(inside, across) of this rank, nodes of `local` neighbouring ranks. A collective of all ranks."""
    world = dist.get_world_size() if world is None else world
    if local < 1 or world % local:
        raise SpecError("local", local, f"give a divisor of the {world} ranks")
    inside = [dist.new_group(list(range(at, at + local))) for at in range(0, world, local)]
    across = [dist.new_group(list(range(place, world, local))) for place in range(local)]
    rank = dist.get_rank()
    return inside[rank // local], across[rank % local]


def _padded(x: torch.Tensor, parts: int) -> torch.Tensor:
    return torch.nn.functional.pad(x.reshape(-1), (0, -x.numel() % parts))


def all_reduce_by_group(x: torch.Tensor, inside: object = None, across: object = None) -> torch.Tensor:
    """The sum over all ranks: 2 (n - 1) / n b on the links inside a node, 2 (m - 1) / m b / n on those across.

    `across`: None where `inside` has all ranks: by primitive, a reduce-scatter and an all-gather.
    """
    size = dist.get_world_size(inside)
    flat = _padded(x, size)
    shard = flat.new_empty(flat.numel() // size)
    _scatter(shard, flat, inside)
    if across is not None:
        dist.all_reduce(shard, group=across)
    out = torch.empty_like(flat)
    _gather(out, shard, inside)
    return out[: x.numel()].view_as(x)


def gather_then_matmul(
    shard: torch.Tensor, weight: torch.Tensor, group: dist.ProcessGroup | None = None, pieces: int = 1
) -> torch.Tensor:  # fmt: skip
    """The rows of all ranks, in rank order, times `weight`. shard: [rows, k]; weight: [k, n]; out: [world rows, n]."""
    return _GatherMatmul.apply(shard, weight, group, _divides(shard.shape[0], pieces))


def matmul_then_scatter(
    x: torch.Tensor, weight: torch.Tensor, group: dist.ProcessGroup | None = None, pieces: int = 1
) -> torch.Tensor:  # fmt: skip
    """This rank's rows of the sum over ranks of `x` times `weight`. x: [world rows, k]; out: [rows, n]."""
    world = dist.get_world_size(group)
    if x.shape[0] % world:
        raise SpecError("rows", x.shape[0], f"give a multiple of the {world} ranks")
    return _MatmulScatter.apply(x, weight, group, _divides(x.shape[0] // world, pieces))


def _divides(rows: int, pieces: int) -> int:
    if pieces < 1 or rows % pieces:
        raise SpecError("pieces", pieces, f"give a divisor of the {rows} rows of a rank")
    return pieces


def gathered_product(
    shard: torch.Tensor,
    weight: torch.Tensor,
    group: dist.ProcessGroup | None,
    pieces: int,
    multiply: Multiply = torch.matmul,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Product, and the gathered rows that went into it; `multiply` is what runs on each piece."""
    world, rows = dist.get_world_size(group), shard.shape[0] // pieces
    parts = [shard.new_empty(world * rows, shard.shape[1]) for _ in range(pieces)]
    works = [
        _gather(part, shard[i * rows : (i + 1) * rows].contiguous(), group, async_op=True)
        for i, part in enumerate(parts)
    ]
    out = shard.new_empty(world, pieces, rows, weight.shape[1])
    whole = shard.new_empty(world, pieces, rows, shard.shape[1])
    for i, (work, part) in enumerate(zip(works, parts, strict=True)):
        work.wait()
        out[:, i] = multiply(part, weight).view(world, rows, -1)
        whole[:, i] = part.view(world, rows, -1)
    return out.view(world * pieces * rows, -1), whole.view(world * pieces * rows, -1)


def scattered_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    group: dist.ProcessGroup | None,
    pieces: int,
    multiply: Multiply = torch.matmul,
) -> torch.Tensor:
    """This rank's rows of the summed product; `multiply` is what runs on each piece."""
    world = dist.get_world_size(group)
    rows = x.shape[0] // world // pieces
    view = x.view(world, pieces, rows, -1)
    out = x.new_empty(pieces, rows, weight.shape[1])
    works = []
    for i in range(pieces):  # piece i holds the i-th part of every rank's rows, else results land on wrong ranks
        partial = multiply(view[:, i].reshape(world * rows, -1), weight)
        works.append((_scatter(out[i], partial, group, async_op=True), partial))
    for work, _ in works:
        work.wait()
    return out.view(pieces * rows, -1)


class _GatherMatmul(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        shard: torch.Tensor,
        weight: torch.Tensor,
        group: dist.ProcessGroup | None,
        pieces: int,
    ) -> torch.Tensor:
        out, whole = gathered_product(shard.detach(), weight.detach(), group, pieces)
        ctx.save_for_backward(whole, weight)
        ctx.group, ctx.pieces = group, pieces
        return out

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        whole, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        return scattered_product(gradient, weight.t(), ctx.group, ctx.pieces), whole.t() @ gradient, None, None


class _MatmulScatter(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        x: torch.Tensor,
        weight: torch.Tensor,
        group: dist.ProcessGroup | None,
        pieces: int,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.pieces = group, pieces
        return scattered_product(x.detach().contiguous(), weight.detach(), group, pieces)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        x, weight = ctx.saved_tensors
        back, whole = gathered_product(gradients[0].contiguous(), weight.t().contiguous(), ctx.group, ctx.pieces)
        return back, x.t() @ whole, None, None
