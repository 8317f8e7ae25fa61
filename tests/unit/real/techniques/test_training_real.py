"""Sparse gradients and local SGD on gloo: what is lost, what is equal, what is sent."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from windtunnel.errors import SpecError  # noqa: E402
from windtunnel.real.techniques import local_sgd, sparse_gradients  # noqa: E402
from windtunnel.studies.techniques.parameters import LocalPlan, decay  # noqa: E402

pytestmark = pytest.mark.extras


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 8))


def _train(steps, parameters, momentum=0.0, resume_at=None, no_sync=False):
    """Parameters at the end, share sent, and the largest |all gradients - sent - residual| of this rank's view."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    target = nn.Linear(32, 8)
    ddp = DistributedDataParallel(_model(), bucket_cap_mb=0.02)
    state = None
    seen, given = {}, {}
    if parameters is not None:
        state = sparse_gradients.State(ddp.module, **parameters)

        def watched(state, bucket):
            before = {state.name_of(p): g.clone() for p, g in zip(bucket.parameters(), bucket.gradients(), strict=True)}
            for name, gradient in before.items():
                seen[name] = seen.get(name, 0) + gradient.double()

            def note(future):
                for p, g in zip(bucket.parameters(), bucket.gradients(), strict=True):
                    name = state.name_of(p)
                    given[name] = given.get(name, 0) + g.double()
                return future.value()

            return sparse_gradients.hook(state, bucket).then(note)

        watched.__annotations__ = {
            "bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]
        }  # fmt: skip
        ddp.register_comm_hook(state, watched)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=momentum)
    generator = torch.Generator().manual_seed(100 + rank)
    for step in range(steps):
        if step == resume_at:
            state.load_state_dict(state.state_dict())
        x = torch.randn(16, 32, generator=generator)
        if no_sync:
            with ddp.no_sync():
                (ddp(x) - target(x)).square().mean().backward()
        loss = (ddp(x) - target(x)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    flat = torch.cat([p.detach().reshape(-1) for p in ddp.parameters()])
    lost = 0.0
    if state is not None and not state.plan.momentum:
        for name in seen:  # over all ranks: the sum of gradients = world x the means given + the sum of residuals
            whole, residual = seen[name].clone(), state.residual[name].double().view_as(seen[name]).clone()
            dist.all_reduce(whole)
            dist.all_reduce(residual)
            lost = max(lost, float((whole - world * given[name] - residual).abs().max()))
    return flat, state.share_sent if state else 1.0, lost


def _several(settings):
    return [_train(*setting) if isinstance(setting, tuple) else _train(**setting) for setting in settings]


def test_sparse_gradients_lose_nothing_and_replicas_stay_equal(on_ranks) -> None:
    settings = [
        {"steps": 30, "parameters": None},
        {"steps": 30, "parameters": {"ratio": 1.0, "chunk": 64}},
        {"steps": 30, "parameters": {"ratio": 0.1, "chunk": 64}},
        {"steps": 30, "parameters": {"ratio": 0.1, "chunk": 64, "rule": "threshold", "warmup": 2}},
        {"steps": 30, "parameters": {"ratio": 0.1, "chunk": 64, "momentum": 0.9}},
        {"steps": 20, "parameters": {"ratio": 0.1, "chunk": 64}, "no_sync": True},
        {"steps": 30, "parameters": {"ratio": 0.1, "chunk": 64}, "resume_at": 15},
    ]
    one, two = on_ranks(2, _several, settings)
    for mine, theirs in zip(one, two, strict=True):
        assert torch.equal(mine[0], theirs[0])
        assert mine[2] < 1e-5
    plain, whole, topk, threshold, momentum, accumulated, resumed = one
    assert torch.allclose(whole[0], plain[0], atol=1e-6)
    assert not torch.equal(topk[0], plain[0])
    assert topk[1] < 0.2
    assert threshold[1] < 0.4
    assert momentum[1] < 0.2
    assert accumulated[1] < 0.2
    assert torch.equal(resumed[0], topk[0])


def _registered():
    ddp = DistributedDataParallel(_model())
    ddp.register_comm_hook(sparse_gradients.State(ddp.module, ratio=0.5), sparse_gradients.hook)
    ddp(torch.ones(2, 32)).sum().backward()
    return [p.grad.clone() for p in ddp.parameters()]


def test_the_hook_is_one_that_ddp_takes(on_ranks) -> None:
    one, two = on_ranks(2, _registered)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_local_sgd_takes_an_optimizer_and_its_rates() -> None:
    with pytest.raises(SpecError, match=r"optimizer = 1.0: give a torch.optim.Optimizer"):
        local_sgd.LearningRate(1.0, LocalPlan())
    with pytest.raises(SpecError, match="rates = 3: give a LearningRate"):
        local_sgd.LocalSGD(_model(), 3)


def test_bad_sparse_parameters_are_one_message() -> None:
    with pytest.raises(SpecError, match="above 0"):
        sparse_gradients.State(_model(), ratio=0.0)
    with pytest.raises(SpecError, match="1 or more"):
        sparse_gradients.State(_model(), chunk=0)
    with pytest.raises(SpecError, match=r"give the torch.nn.Module"):
        sparse_gradients.State(3, ratio=0.5)
    state = sparse_gradients.State(_model(), ratio=0.5)
    with pytest.raises(SpecError, match="another model"):
        state.load_state_dict({"residual": {"other": torch.ones(1)}, "velocity": {}, "log_tau": None, "step": 0})


def _local(local_steps):
    rank = dist.get_rank()
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = LocalPlan(local_steps=local_steps, rounds="inverse", round_rate=1.0, steps="exponential", step_rate=0.5)
    rates = local_sgd.LearningRate(optimizer, plan)
    local = local_sgd.LocalSGD(model, rates)
    seen, averaged = [], []
    generator = torch.Generator().manual_seed(rank)
    for _ in range(2 * local_steps):
        seen.append(optimizer.param_groups[0]["lr"])
        x = torch.randn(8, 32, generator=generator)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.append(local.after_step())
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return seen, averaged, flat, local.bytes_sent, flat.numel() * 4


def test_local_sgd_averages_once_a_round_and_its_rate_has_two_dimensions(on_ranks) -> None:
    one, two = on_ranks(2, _local, 3)
    assert one[0] == pytest.approx([0.1, 0.05, 0.025, 0.05, 0.025, 0.0125])
    assert one[1] == [False, False, True] * 2
    assert torch.equal(one[2], two[2])
    assert one[3] == 2 * one[4]


def test_decays() -> None:
    assert decay("constant", 0.5, 7) == 1.0
    assert decay("inverse", 0.5, 2) == 0.5
    assert decay("exponential", 0.5, 2) == 0.25
