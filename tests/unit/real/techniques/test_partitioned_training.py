"""Training with partitioned collectives is plain training: fifty steps on gloo."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from windtunnel.errors import LayoutError  # noqa: E402
from windtunnel.real.techniques import collective_partitioning as partitioning  # noqa: E402
from windtunnel.studies.techniques.parameters import PartitionPlan  # noqa: E402

pytestmark = pytest.mark.extras
STEPS = 50


def _trained(group, local, hooked):
    """Weights after fifty steps, and whether all ranks have the same bits."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    ddp = DistributedDataParallel(
        nn.Sequential(nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 7)), bucket_cap_mb=0.02
    )
    if hooked:
        state = partitioning.PartitionState.from_plan(PartitionPlan(group=group), local)
        ddp.register_comm_hook(state, partitioning.partitioned_hook)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        x = torch.randn(16, 32, generator=generator)
        with ddp.no_sync():
            ddp(x[:8]).square().mean().backward()
        ddp(x[8:]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    flat = torch.cat([p.detach().reshape(-1) for p in ddp.parameters()])
    others = [torch.empty_like(flat) for _ in range(world)]
    dist.all_gather(others, flat)
    return flat, all(torch.equal(one, flat) for one in others)


def _all(settings):
    return [_trained(*setting) for setting in settings]


def test_two_ranks_by_primitive_are_bit_equal_to_plain_training(on_ranks) -> None:
    """A sum of two has one order, so nothing may differ."""
    plain, parted = on_ranks(2, _all, [(None, 1, False), (False, 2, True)])[0]
    assert torch.equal(plain[0], parted[0])
    assert parted[1]


@pytest.mark.long
def test_four_ranks_differ_by_the_order_of_a_sum(on_ranks) -> None:
    plain, primitive, grouped = on_ranks(4, _all, [(None, 1, False), (False, 4, True), (True, 2, True)])[0]
    for found in (primitive, grouped):
        assert found[1]
        assert float((found[0] - plain[0]).abs().max()) < 1e-5


def _tensor_parallel(pieces):
    """Weights of a column- and a row-parallel linear after fifty steps; sequence shards between them."""
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    up = (torch.randn(16, 24, generator=generator) / 4).requires_grad_()
    down = (torch.randn(24, 16, generator=generator) / 5).requires_grad_()
    for _ in range(STEPS):
        shard = torch.randn(32, 16, generator=generator)
        hidden = torch.tanh(partitioning.gather_then_matmul(shard, up, None, pieces))
        out = partitioning.matmul_then_scatter(hidden, down, None, pieces)
        (out - shard.roll(1, 1)).square().mean().backward()
        with torch.no_grad():
            for weight in (up, down):
                weight -= 0.1 * weight.grad
                weight.grad = None
    return up.detach(), down.detach()


def test_linears_in_pieces_train_to_the_weights_of_those_in_one(on_ranks) -> None:
    for one, four in zip(on_ranks(2, _tensor_parallel, 1), on_ranks(2, _tensor_parallel, 4), strict=True):
        for a, b in zip(one, four, strict=True):
            assert float((a - b).abs().max()) < 1e-6


def _refused():
    said = []
    for local in (1, 2):
        try:
            partitioning.PartitionState.from_plan(PartitionPlan(group=True), local)
        except LayoutError as error:
            said.append(str(error))
    return said


def test_groups_need_several_nodes_of_several_ranks(on_ranks) -> None:
    for said in on_ranks(2, _refused):
        assert len(said) == 2
        assert all("several nodes" in one for one in said)
