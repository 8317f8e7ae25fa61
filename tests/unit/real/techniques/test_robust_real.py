"""What goes wrong in real training with a technique: ranks that die, odd parameters, resuming."""

from __future__ import annotations

import io
import os
import signal

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from windtunnel.errors import SpecError  # noqa: E402
from windtunnel.real.techniques import collective_partitioning as partitioning  # noqa: E402
from windtunnel.real.techniques import local_sgd, prioritised_all_to_all, sparse_gradients  # noqa: E402
from windtunnel.studies.techniques.parameters import LocalPlan, PartitionPlan  # noqa: E402

pytestmark = pytest.mark.extras
DIES_AT = 3


class Odd(nn.Module):
    """Two layers that share a weight, and a layer that some batches leave out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.idle = nn.Linear(48, 48), nn.Linear(48, 48), nn.Linear(48, 48)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor, leave_out: bool) -> torch.Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        return x if leave_out else x + self.idle(x)


def _hooked(kind, **named):
    ddp = DistributedDataParallel(Odd(), **named)
    if kind == "sparse":
        ddp.register_comm_hook(sparse_gradients.State(ddp.module, ratio=0.2, chunk=16), sparse_gradients.hook)
    elif kind == "whole":
        ddp.register_comm_hook(sparse_gradients.State(ddp.module, ratio=1.0, chunk=16), sparse_gradients.hook)
    elif kind == "parted":
        state = partitioning.PartitionState.from_plan(PartitionPlan(group=False), 1)
        ddp.register_comm_hook(state, partitioning.partitioned_hook)
    return ddp


def _steps_of(kind):
    """A step of each technique, to be called again and again."""
    if kind in ("sparse", "parted"):
        ddp = _hooked(kind)
        return lambda: ddp(torch.ones(2, 48), False).sum().backward()
    if kind == "lane":
        lane = prioritised_all_to_all.Communicator("leader", micro_op_bytes=4096)

        def exchanged() -> None:
            one, two = lane.all_reduce(torch.ones(20_000)), lane.all_to_all(torch.empty(8), torch.ones(8))
            one.wait(30)
            two.wait(30)

        return exchanged
    if kind == "packed":
        layer = prioritised_all_to_all.PackedExperts(torch.ones(8, 8), torch.matmul)
        return lambda: layer(torch.ones(16, 8), torch.arange(16) % 2)
    if kind == "local":
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        local = local_sgd.LocalSGD(model, local_sgd.LearningRate(optimizer, LocalPlan(local_steps=1)))
        return local.after_step
    return lambda: partitioning.gather_then_matmul(torch.ones(8, 4), torch.ones(4, 4), None, 4)


def _one_dies(kind, folder):
    """What the survivor was told, and after how many seconds; the other rank is gone in the middle of a step."""
    step, rank = _steps_of(kind), dist.get_rank()
    for number in range(100):
        if number == DIES_AT and rank == 1:
            (folder / kind).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            step()
        except RuntimeError as error:
            return kind, str(error), str(error.__cause__ or ""), number
    return kind, "never told", "", -1


DEARER = [pytest.param(kind, marks=pytest.mark.long) for kind in ("packed", "local", "pieces")]


@pytest.mark.parametrize("kind", ["sparse", "parted", "lane", *DEARER])
def test_a_rank_that_dies_is_told_to_the_other_at_once(kind: str, tmp_path, on_ranks) -> None:
    found = on_ranks(2, _one_dies, kind, tmp_path, dies=1)
    assert (tmp_path / kind).exists()
    ((_, said, cause, number),) = found
    assert number >= DIES_AT - 1
    assert "onnection" in said + cause  # gloo: "Connection closed by peer", "Connection reset by peer"
    assert "imed out" not in said + cause  # nobody waited for the group's timeout


def _odd(kind):
    ddp = _hooked(kind, find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(12):
        x = torch.randn(8, 48, generator=generator)
        ddp(x, step % 2 == 0).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().reshape(-1) for p in ddp.parameters()])


def _odd_all(kinds):
    return [_odd(kind) for kind in kinds]


def test_tied_parameters_and_some_that_a_step_leaves_out(on_ranks) -> None:
    one, two = on_ranks(2, _odd_all, ["plain", "whole", "parted", "sparse"])
    for mine, theirs in zip(one, two, strict=True):
        assert torch.equal(mine, theirs)
    plain, whole, parted, sparse = one
    assert torch.allclose(whole, plain, atol=1e-6)
    assert torch.equal(parted, plain)
    assert not torch.equal(sparse, plain)
    assert torch.isfinite(sparse).all()


def _resumed(at, rule):
    """Weights after twelve steps; with `at`, everything is written then and read into new objects."""
    rank, kept = dist.get_rank(), io.BytesIO()

    def made():
        ddp = DistributedDataParallel(Odd())
        state = sparse_gradients.State(ddp.module, ratio=0.2, chunk=16, momentum=0.9, rule=rule, warmup=2)
        ddp.register_comm_hook(state, sparse_gradients.hook)
        return ddp, state, torch.optim.SGD(ddp.parameters(), lr=0.05)

    parts = made()
    generator = torch.Generator().manual_seed(rank)
    for step in range(12):
        if step == at:
            torch.save([part.state_dict() for part in parts], kept)
            kept.seek(0)
            parts = made()
            for part, found in zip(parts, torch.load(kept, weights_only=True), strict=True):
                part.load_state_dict(found)
        ddp, _, optimizer = parts
        ddp(torch.randn(8, 48, generator=generator), False).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().reshape(-1) for p in parts[0].parameters()])


def _both(at):
    return [_resumed(when, rule) for rule in ("topk", "threshold") for when in (None, at)]


def test_sparse_gradients_go_on_from_a_checkpoint_in_new_objects(on_ranks) -> None:
    for calm, resumed, steered, steered_on in on_ranks(2, _both, 6):
        assert torch.equal(calm, resumed)
        assert torch.equal(steered, steered_on)
        assert not torch.equal(calm, steered)


def _local(at):
    """Weights after three rounds of three steps; with `at`, everything is written then and read into new objects."""
    kept = io.BytesIO()

    def made():
        model = Odd()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = LocalPlan(local_steps=3, rounds="inverse", round_rate=1.0, steps="exponential", step_rate=0.5)
        rates = local_sgd.LearningRate(optimizer, plan)
        return (model, optimizer, rates), local_sgd.LocalSGD(model, rates)

    parts, local = made()
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(9):
        if step == at:
            torch.save([part.state_dict() for part in parts], kept)
            kept.seek(0)
            parts, local = made()
            for part, found in zip(parts, torch.load(kept, weights_only=True), strict=True):
                part.load_state_dict(found)
        model, optimizer, _ = parts
        model(torch.randn(8, 48, generator=generator), step % 2 == 0).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        local.after_step()
    assert model.second.weight is model.first.weight
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def _local_both(at):
    return _local(None), _local(at)


def test_local_sgd_with_odd_parameters_goes_on_in_the_middle_of_a_round(on_ranks) -> None:
    found = [one for pair in on_ranks(2, _local_both, 4) for one in pair]
    assert all(torch.equal(one, found[0]) for one in found)


def _raises_in_the_hook():
    ddp = DistributedDataParallel(Odd())
    ddp.register_comm_hook(sparse_gradients.State(Odd(), ratio=0.2), sparse_gradients.hook)
    try:
        ddp(torch.ones(2, 48), False).sum().backward()
    except SpecError as error:
        return str(error)
    return ""


def test_what_the_hook_raises_reaches_the_script(on_ranks) -> None:
    for said in on_ranks(2, _raises_in_the_hook):
        assert "not of the module that the state was made for" in said
