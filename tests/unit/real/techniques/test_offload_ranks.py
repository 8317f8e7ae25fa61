"""Offload on several ranks is DistributedDataParallel, bit by bit; what would read missing parameters is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from windtunnel.errors import SpecError  # noqa: E402
from windtunnel.real.techniques import offload  # noqa: E402

pytestmark = pytest.mark.extras
STEPS, WIDTH, LAYERS = 50, 16, 5


class Net(nn.Module):
    """Layers, a frozen one among them, and a rest."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.layers[1].requires_grad_(False)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-3)


def batches(micro: int):
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        yield [torch.randn(4, WIDTH, generator=generator) for _ in range(micro)]


def with_ddp(micro: int):
    model = DistributedDataParallel(Net(dist.get_rank()))  # takes rank 0's parameters
    optimizer = adam([p for p in model.parameters() if p.requires_grad])
    for parts in batches(micro):
        with model.no_sync():
            for part in parts[:-1]:
                model(part).square().mean().backward()
        model(parts[-1]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.module.named_parameters())


def with_offload(micro: int, window: int):
    model = Net(dist.get_rank())
    run = offload.apply(model, adam, window=window, process_group=dist.group.WORLD)
    for parts in batches(micro):
        with run.accumulate():
            for part in parts[:-1]:
                model(part).square().mean().backward()
        model(parts[-1]).square().mean().backward()
        run.step()
    found = run.whole_parameters()
    run.close()
    return found


def both(micro: int, window: int):
    plain, windowed = with_ddp(micro), with_offload(micro, window)
    return [name for name, parameter in plain.items() if not torch.equal(parameter.detach(), windowed[name])]


@pytest.mark.parametrize(("micro", "window"), [(1, 1), (3, 2)])
def test_two_ranks_are_bit_equal_to_distributed_data_parallel(on_ranks, micro: int, window: int) -> None:
    assert on_ranks(2, both, micro, window) == [[], []]


def refused():
    from torch.distributed.fsdp import fully_shard

    said = []
    model = Net(0)
    run = offload.apply(model, adam, window=1)
    try:
        DistributedDataParallel(model)
    except RuntimeError as error:
        said.append(str(error))
    run.close()
    said.append(type(DistributedDataParallel(model)).__name__)  # it is whole again
    sharded = Net(0)
    fully_shard(sharded)
    for taken in (DistributedDataParallel(Net(0)), sharded):
        try:
            offload.apply(taken, adam, window=1)
        except SpecError as error:
            said.append(str(error))
    unused = Net(0)
    unused.first.register_parameter("idle", nn.Parameter(torch.ones(3)))
    run = offload.apply(unused, adam, window=1, process_group=dist.group.WORLD)
    unused(torch.ones(1, WIDTH)).sum().backward()
    try:
        run.step()
    except RuntimeError as error:
        said.append(str(error))
    return said


def test_what_reads_parameters_that_are_away_is_one_error(on_ranks) -> None:
    said = on_ranks(1, refused)[0]
    assert len(said) == 5
    assert "as process_group in place of DistributedDataParallel" in said[0]
    assert said[1] == "DistributedDataParallel"
    assert "give the module inside" in said[2]
    assert "a DTensor" in said[3]
    assert "got no gradient" in said[4]
