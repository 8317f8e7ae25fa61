"""One line in a loop that is as it was: sparse gradients, partitioned and prioritised collectives, local SGD."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from windtunnel.errors import SpecError  # noqa: E402
from windtunnel.real.techniques import (  # noqa: E402
    collective_partitioning,
    local_sgd,
    prioritised_all_to_all,
    sparse_gradients,
)

pytestmark = pytest.mark.extras


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x)
        return out

    @staticmethod
    def backward(ctx, gradient):
        out = torch.empty_like(gradient)
        dist.all_to_all_single(out, gradient.contiguous())
        return out


def train(line):
    torch.manual_seed(dist.get_rank() if line == "local" else 0)
    first, last = nn.Linear(8, 16), nn.Linear(16, 8)
    model = nn.Sequential(first, nn.Tanh(), last)
    ddp = model if line == "local" else DistributedDataParallel(model, bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lane = state = None
    if line == "sparse":
        state = sparse_gradients.apply(ddp, ratio=1.0)
    elif line == "partitioned":
        collective_partitioning.apply(ddp)
    elif line == "prioritised":
        lane = prioritised_all_to_all.apply(ddp, micro_op_bytes=64)
    elif line == "local":
        state = local_sgd.apply(model, optimizer, local_steps=4)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(8):
        x = torch.randn(4, 8, generator=generator)
        y = Exchange.apply(ddp(x)) if line != "local" else ddp(x)
        (y - x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if lane is not None:
        lane.close()
        assert set(lane.executed) == {"a", "r"}
        assert dist.all_to_all_single.__module__.startswith("torch")
    if line == "sparse":
        assert state.step == 8
    if line == "local":
        assert state.rates.round == 2
    return [parameter.detach() for parameter in model.parameters()]


def every():
    return {line: train(line) for line in ("", "sparse", "partitioned", "prioritised", "local")}


def test_each_is_one_line_and_two_ranks_hold_the_same_bits(on_ranks) -> None:
    one, other = on_ranks(2, every)
    for line, found in one.items():
        assert all(torch.equal(a, b) for a, b in zip(found, other[line], strict=True)), line
        if line != "local":
            assert all(torch.equal(a, b) for a, b in zip(found, one[""], strict=True)), line


@pytest.mark.parametrize("apply", [sparse_gradients.apply, collective_partitioning.apply, prioritised_all_to_all.apply])
def test_a_model_that_reduces_nothing_is_one_error(apply) -> None:
    with pytest.raises(SpecError, match="DistributedDataParallel"):
        apply(nn.Linear(2, 2))
