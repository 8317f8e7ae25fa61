"""Collectives as a script calls them, on data that is equal on all ranks.

Run by itself it is one of two real gloo processes: python collectives.py RANK PORT OUTPUT.pt
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

R = dist.ReduceOp
CASES: dict[str, Callable[[int, int], list[Any]]] = {}


def case(function: Callable[[int, int], list[Any]]) -> Callable[[int, int], list[Any]]:
    CASES[function.__name__] = function
    return function


def some(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(7)
    values = torch.rand(*shape) * 4 - 2
    return (values * 10).to(dtype) if not dtype.is_floating_point else values.to(dtype)


for _name, _op in (("sum", R.SUM), ("product", R.PRODUCT), ("min", R.MIN), ("max", R.MAX)):

    def _reduced(rank: int, world: int, op: Any = _op) -> list[Any]:
        outputs = []
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
            dist.all_reduce(x := some(5, 3, dtype=dtype), op=op)
            outputs.append(x)
        return outputs

    CASES[f"all_reduce_{_name}"] = _reduced

for _name, _op in (("band", R.BAND), ("bor", R.BOR), ("bxor", R.BXOR)):

    def _bits(rank: int, world: int, op: Any = _op) -> list[Any]:
        dist.all_reduce(x := some(7, dtype=torch.int32), op=op)
        return [x]

    CASES[f"all_reduce_{_name}"] = _bits


@case
def all_reduce_async_and_view(rank: int, world: int) -> list[Any]:
    x = some(4, 6)
    work = dist.all_reduce(x[:, :3].contiguous(), async_op=True)
    other = dist.all_reduce(x[2], async_op=True)
    work.wait()
    other.wait()
    dist.all_reduce(scalar := torch.tensor(2.5))
    return [x, scalar]


@case
def all_reduce_sparse(rank: int, world: int) -> list[Any]:
    x = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), some(2, 3), (4, 3)).coalesce()
    dist.all_reduce(x)
    return [x.to_dense()]


@case
def all_reduce_truths(rank: int, world: int) -> list[Any]:
    found = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
        tensor = torch.tensor([True, False])
        dist.all_reduce(tensor, op=op)
        found.append(tensor)
    return found


@case
def all_reduce_complex(rank: int, world: int) -> list[Any]:
    dist.all_reduce(x := torch.view_as_complex(some(3, 2)))
    return [x]


@case
def broadcast(rank: int, world: int) -> list[Any]:
    x, y = some(9), some(3, dtype=torch.int64)
    dist.broadcast(x, src=1)
    dist.broadcast(y, src=0, async_op=True).wait()
    return [x, y]


@case
def reduce(rank: int, world: int) -> list[Any]:
    x = some(4)
    dist.reduce(x, dst=0)
    y = some(4)
    dist.reduce(y, dst=1, op=R.MAX)
    return [x if rank == 0 else None, y]


@case
def all_gather(rank: int, world: int) -> list[Any]:
    parts = [torch.empty(3, 2) for _ in range(world)]
    dist.all_gather(parts, some(3, 2))
    whole = torch.empty(world * 3, 2)
    dist.all_gather_into_tensor(whole, some(3, 2), async_op=True).wait()
    return [*parts, whole]


@case
def all_gather_in_place(rank: int, world: int) -> list[Any]:
    whole = torch.zeros(world * 3)
    own = whole[rank * 3 : rank * 3 + 3]
    own.copy_(some(3))
    dist.all_gather_into_tensor(whole, own)
    return [whole]


@case
def reduce_scatter(rank: int, world: int) -> list[Any]:
    x, y, z = torch.empty(3), torch.empty(2, 2), torch.empty(3)
    dist.reduce_scatter_tensor(x, some(3 * world))
    dist.reduce_scatter_tensor(y, some(2 * world, 2), op=R.MAX)
    dist.reduce_scatter(z, list(some(3 * world).chunk(world)))
    return [x, y, z]


@case
def gather_and_scatter(rank: int, world: int) -> list[Any]:
    parts = [torch.empty(3) for _ in range(world)] if rank == 1 else None
    dist.gather(some(3), parts, dst=1)
    given = list(some(3 * world).chunk(world)) if rank == 0 else None
    dist.scatter(x := torch.empty(3), given, src=0)
    return [*(parts or []), x if rank == 0 else None]


@case
def all_to_all_even(rank: int, world: int) -> list[Any]:
    x, y = torch.empty(world * 2, 3), torch.empty(world, dtype=torch.int64)
    dist.all_to_all_single(x, some(world * 2, 3))
    dist.all_to_all_single(y, some(world, dtype=torch.int64))
    return [x, y]


@case
def all_to_all_uneven(rank: int, world: int) -> list[Any]:
    rows = [1 + 2 * peer for peer in range(world)]
    x = torch.empty(rows[rank] * world, 2)
    dist.all_to_all_single(x, some(sum(rows), 2), [rows[rank]] * world, rows)
    return [x]


@case
def barriers(rank: int, world: int) -> list[Any]:
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    return []


@case
def groups(rank: int, world: int) -> list[Any]:
    both, alone = dist.new_group([0, 1]), [dist.new_group([peer]) for peer in range(world)][rank]
    dist.all_reduce(x := some(3), group=both)
    dist.all_reduce(y := some(3), group=alone)
    dist.all_gather([z := torch.empty(3)], some(3), group=alone)
    ranks = torch.tensor([*dist.get_process_group_ranks(alone), dist.get_rank(both), dist.get_world_size(alone)])
    return [x, y, z, ranks]


@case
def coalesced(rank: int, world: int) -> list[Any]:
    x, y = some(3), some(2, 2)
    with dist._coalescing_manager():
        dist.all_reduce(x)
        dist.all_reduce(y)
    return [x, y]


@case
def objects(rank: int, world: int) -> list[Any]:
    thing = {"a": [1, 2], "b": "text"}
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, thing)
    at_root: list[Any] = [None] * world
    dist.gather_object(thing, at_root if rank == 1 else None, dst=1)
    given = [thing, 3, None, (4, 5)] if rank == 0 else ["-", "-", "x", "-"]
    dist.broadcast_object_list(given if rank == 0 else list(given), src=0)
    out: list[Any] = [None]
    dist.scatter_object_list(out, [thing, thing] if rank == 0 else None, src=0)
    return [gathered, at_root if rank == 1 else None, given if rank == 0 else None, out if rank == 0 else None]


@case
def functional_collectives(rank: int, world: int) -> list[Any]:
    group = dist.group.WORLD
    outputs = [
        functional.all_reduce(some(3), "sum", group),
        functional.all_gather_tensor(some(3, 2), 0, group),
        functional.all_gather_tensor(some(3, 2), 1, group),
        functional.reduce_scatter_tensor(some(2 * world), "sum", 0, group),
        functional.broadcast(some(3), 0, group),
        functional.all_to_all_single(some(2 * world), None, None, group),
        *functional.all_reduce_coalesced([some(3), some(2)], "sum", group),
        *functional.all_gather_into_tensor_coalesced([some(3), some(2)], group),
        *functional.reduce_scatter_tensor_coalesced([some(2 * world), some(world)], "sum", [0, 0], group),
    ]
    return [functional.wait_tensor(tensor) for tensor in outputs]


@case
def functional_autograd(rank: int, world: int) -> list[Any]:
    x = some(2 * world, 3).requires_grad_()
    rows = [1 + 2 * peer for peer in range(world)]
    y = functional.all_to_all_single_autograd(x, None, None, dist.group.WORLD)
    y.sum().backward()  # of a square, gradients would differ among ranks: y does
    z = some(sum(rows), 2).requires_grad_()
    t = functional.all_to_all_single_autograd(z, [rows[rank]] * world, rows, dist.group.WORLD)
    return [y.detach() + 0, x.grad, t.detach() + 0]  # the sum waits


def run(rank: int, world: int) -> dict[str, list[Any]]:
    return {name: function(rank, world) for name, function in CASES.items()}


if __name__ == "__main__":
    port, folder = int(sys.argv[1]), sys.argv[2]
    other = os.fork()
    me = int(other == 0)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=me, world_size=2, timeout=timedelta(seconds=60)
    )
    torch.save(run(me, 2), f"{folder}/{me}.pt")
    dist.barrier()
    dist.destroy_process_group()
    if other:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
