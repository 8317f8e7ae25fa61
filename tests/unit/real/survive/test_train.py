"""`train` alone is the plain loop, to the same bits; a step that does not count leaves nothing behind."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from windtunnel.real.survive import train  # noqa: E402
from windtunnel.real.survive.live.progress import Progress  # noqa: E402
from windtunnel.real.survive.live.train import _commit, _local  # noqa: E402

pytestmark = pytest.mark.extras


def parts(dtype: torch.dtype) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1)).to(dtype)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def drawn(model: torch.nn.Module, step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return model(torch.randn(8, 6, generator=generator, dtype=torch.float64).to(next(model.parameters()).dtype)).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_alone_it_is_the_plain_loop(dtype: torch.dtype) -> None:
    model, optimizer = parts(dtype)
    losses = train(model, optimizer, lambda step, rank, _: drawn(model, step, rank), 3)
    plain, its = parts(dtype)
    expected = []
    for step in range(3):
        its.zero_grad()
        value = drawn(plain, step, 0)
        value.backward()
        its.step()
        expected.append(value.item())
    assert losses == expected
    for name, tensor in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_a_step_that_does_not_count_moves_no_running_average() -> None:
    model, optimizer = parts(torch.float32)
    progress = Progress(model, optimizer, {})
    before = {name: one.clone() for name, one in model.state_dict().items()}
    lost = _local(progress, lambda step, rank, _: drawn(model, step, rank), 0, 1, 0)
    assert all(torch.equal(model.state_dict()[name], one) for name, one in before.items())
    again = _local(progress, lambda step, rank, _: drawn(model, step, rank), 0, 1, 0)
    assert torch.equal(torch.cat(lost), torch.cat(again))
    _commit(progress, again, 1)
    assert model[1].num_batches_tracked == 1


def test_all_ranks_commit_the_running_averages_of_rank_0() -> None:
    (one, its), (other, others) = parts(torch.float32), parts(torch.float32)
    pieces = [
        _local(Progress(model, optimizer, {}), lambda step, rank, _, model=model: drawn(model, step, rank), rank, 2, 0)
        for rank, (model, optimizer) in enumerate([(one, its), (other, others)])
    ]
    whole = [sum(parts) for parts in zip(*pieces, strict=True)]
    _commit(Progress(one, its, {}), whole, 2)
    _commit(Progress(other, others, {}), whole, 2)
    assert not torch.equal(one[1].running_mean, torch.zeros(5))
    for name, tensor in one.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


def test_everything_of_a_step_stays_on_the_device_of_the_model() -> None:
    model, optimizer = parts(torch.float32)
    model.to("meta")
    pieces = _local(Progress(model, optimizer, {}), lambda *_: model(torch.ones(8, 6, device="meta")).sum(), 0, 1, 0)
    assert {piece.device.type for piece in pieces} == {"meta"}
