"""What a loop's state is made of, how it is put back, and what a rank alone is answered. No process is started."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.pipelining.schedules import _PipelineSchedule
from torch.distributed.tensor import DTensor, Partial, Replicate

from windtunnel.errors import SpecError, UserError
from windtunnel.real.survive.loop import groups
from windtunnel.real.survive.loop.between import KEPT_BYTES, Tape
from windtunnel.real.survive.loop.framework import forget_step, lay_buckets, remember_wrappers, wrappers
from windtunnel.real.survive.loop.groups import GROUPS, Replaceable, is_lost_connection
from windtunnel.real.survive.loop.parts import digest, parts_of, random_numbers, unchanged
from windtunnel.survive import standby

pytestmark = pytest.mark.extras


def loop() -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean() * (1 + random.random())
        loss.backward()
        optimizer.step()
        scheduler.step()
        return float(loss)

    return model, optimizer, scheduler, step


@pytest.mark.parametrize("before", [0, 3])
def test_steps_that_are_put_back_are_done_again_to_the_same_bits(before: int) -> None:
    model, optimizer, scheduler, step = loop()
    for _ in range(before):
        step()
    parts = parts_of({"model": model, "optimizer": optimizer, "scheduler": scheduler})
    copies = [part.copied() for part in parts]
    digests = [digest(part.read()) for part in parts]
    first = [step() for _ in range(3)]
    assert [digest(part.read()) for part in parts] != digests
    for part, tree in zip(parts, copies, strict=True):
        part.put(tree)
    assert [digest(part.read()) for part in parts] == digests
    assert [step() for _ in range(3)] == first


def test_another_process_takes_the_state_of_a_loop() -> None:
    *one, step = loop()
    other_model, *others, other_step = loop()
    for _ in range(5):
        step()
    for _ in range(2):
        other_step()
    mine, theirs = (
        parts_of({str(at): each for at, each in enumerate(things)}) for things in (one, (other_model, *others))
    )
    for source, target in zip(mine, theirs, strict=True):
        target.put(source.copied())
    random_numbers = mine[-1].copied()
    expected = [step() for _ in range(3)]
    theirs[-1].put(random_numbers)
    assert [other_step() for _ in range(3)] == expected


def test_digests_differ_where_one_value_of_a_tensor_does() -> None:
    tensor = torch.randn(1001)
    changed = tensor.clone()
    changed[-1] += 1e-6
    assert digest({"a": tensor}) == digest({"a": tensor.clone()})
    assert digest({"a": tensor}) != digest({"a": changed})
    assert digest({"a": tensor}) != digest({"b": tensor})
    assert digest([1, 2]) != digest([2, 1])


def test_one_more_random_number_is_another_state() -> None:
    torch.manual_seed(1)
    torch.rand(3)
    before = digest(random_numbers())
    torch.rand(1)
    assert digest(random_numbers()) != before


def test_a_part_is_unchanged_until_one_value_of_it_is_another() -> None:
    model, optimizer, scheduler, step = loop()
    step()
    parts = parts_of({"model": model, "optimizer": optimizer, "scheduler": scheduler})
    copies = [part.copied() for part in parts]
    assert all(unchanged(part.read(), one) for part, one in zip(parts, copies, strict=True))
    assert not any(unchanged(part.read(), None) for part in parts)
    weight = model[0].weight
    with torch.no_grad():
        weight.copy_(weight.flip(0))  # the sums of a digest stay
    changed = [not unchanged(part.read(), one) for part, one in zip(parts, copies, strict=True)]
    assert changed == [part.name == "model: parameters" for part in parts]


def test_what_has_no_state_is_one_error() -> None:
    with pytest.raises(SpecError, match="ema"):
        parts_of({"ema": 3})


def test_without_the_launcher_the_step_is_the_step_itself() -> None:
    *things, step = loop()
    assert standby(step, *things) is step


def test_an_error_of_the_script_is_none_of_a_lost_peer() -> None:
    assert not is_lost_connection(RuntimeError("shapes do not match"))
    outer = RuntimeError("Failed to run stage backward")
    outer.__cause__ = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    assert is_lost_connection(outer)
    assert not is_lost_connection(UserError("gloo"))


def remember(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in (torch.nn.parallel.DistributedDataParallel, _PipelineSchedule):
        monkeypatch.setattr(one, "__init__", one.__init__)
    remember_wrappers()


@pytest.fixture
def sharded() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(3)))
    mesh = init_device_mesh("cpu", (1,))
    fully_shard(model[1], mesh=mesh)
    yield fully_shard(model, mesh=mesh)
    dist.destroy_process_group()


def gradients(model: Any, times: int) -> list[torch.Tensor]:
    for at in range(times):
        model.set_requires_gradient_sync(at == times - 1)
        model(torch.ones(2, 3)).square().sum().backward()
    return [parameter.grad.to_local().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("calls", [0, 1])
def test_gradients_of_a_backward_pass_that_failed_are_not_added_to(sharded: Any, calls: int) -> None:
    """The last layer has its gradient, unreduced, when a peer is lost; of calls before only what was there is kept."""
    expected = gradients(sharded, calls + 1)
    sharded.zero_grad()
    sharded.set_requires_gradient_sync(False)
    for _ in range(calls):
        sharded(torch.ones(2, 3)).square().sum().backward()
    parts = parts_of({"model": sharded})
    before = [part.copied() for part in parts]

    def lost(*_: object) -> None:
        raise RuntimeError("gloo: connection closed by peer")

    between = sharded[1].register_full_backward_hook(lost)
    with pytest.raises(RuntimeError, match="closed"):
        sharded(torch.ones(2, 3)).square().sum().backward()
    between.remove()
    forget_step([sharded])
    for part, tree in zip(parts, before, strict=True):
        part.put(tree)
    again = gradients(sharded, 1)
    assert all(torch.equal(one, other) for one, other in zip(again, expected, strict=True))


def test_a_gradient_is_put_back_with_the_placements_that_it_had(sharded: Any) -> None:
    """A sum over ranks may be outstanding, where the parameter is a replica."""
    mesh = init_device_mesh("cpu", (1,))
    module = torch.nn.Linear(3, 3, bias=False)
    module.weight = torch.nn.Parameter(DTensor.from_local(torch.ones(3, 3), mesh, [Replicate()]))
    outstanding = DTensor.from_local(torch.full((3, 3), 2.0), mesh, [Partial()])
    module.weight.grad = outstanding
    part = next(one for one in parts_of({"model": module}) if one.name == "model: gradients")
    copy = part.copied()
    for now in (None, DTensor.from_local(torch.zeros(3, 3), mesh, [Replicate()])):
        module.weight.grad = now
        part.put(copy)
        assert module.weight.grad.placements == outstanding.placements
        assert torch.equal(module.weight.grad.to_local(), outstanding.to_local())


@pytest.fixture
def ddp() -> Iterator[torch.nn.parallel.DistributedDataParallel]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 3) for _ in range(2)]
    yield torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    dist.destroy_process_group()


def backward(model: torch.nn.Module) -> list[torch.Tensor]:
    model.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_the_layout_of_buckets_is_state(ddp: torch.nn.parallel.DistributedDataParallel) -> None:
    """A rank that replaces another in the midst of accumulated steps has never reduced: its layout is the first one."""
    calls: list[int] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch wants its own classes, not their names
        calls.append(bucket.index())
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    ddp.register_comm_hook(None, hook)
    layout = next(part for part in parts_of({"model": ddp}) if part.name == "buckets 0")
    first = layout.copied()
    expected = backward(ddp)
    assert layout.copied() == first == [[0, 1, 2, 3]]
    lay_buckets([ddp])
    assert layout.copied() == [[3, 2, 1, 0]]
    layout.put(first)
    assert layout.copied() == first
    layout.put([[3, 2], [1, 0]])
    calls.clear()
    assert layout.copied() == [[3, 2], [1, 0]]
    assert all(torch.equal(one, other) for one, other in zip(backward(ddp), expected, strict=True))
    assert calls == [0, 1]  # the hook is in the new reducer, once


def test_a_wrapper_is_known_where_the_module_inside_is_named(
    ddp: torch.nn.parallel.DistributedDataParallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = torch.nn.parallel.DistributedDataParallel
    remember(monkeypatch)
    first, second = wrapper(ddp.module), wrapper(torch.nn.Linear(2, 2))
    assert wrappers([ddp.module, second]) == [second, first]
    assert "buckets 1" in [part.name for part in parts_of({"model": ddp.module, "other": second})]


def test_a_pipeline_forgets_the_micro_batches_of_a_step_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else their losses, whose graphs are gone, are those of the next step's first micro-batches."""
    remember(monkeypatch)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        layer = torch.nn.Linear(3, 3)
        stage = PipelineStage(layer, 0, 1, torch.device("cpu"))
        schedule = Schedule1F1B(stage, 2, loss_fn=lambda out, target: (out - target).square().mean())
        losses: list[torch.Tensor] = []
        schedule.step(torch.ones(4, 3), target=torch.zeros(4, 3), losses=losses)
        expected = [loss.clone() for loss in losses]

        def lost(*_: object) -> None:
            raise RuntimeError("gloo: connection closed by peer")

        between = layer.register_full_backward_hook(lost)
        with pytest.raises(RuntimeError, match="backward"):
            schedule.step(torch.zeros(4, 3), target=torch.ones(4, 3), losses=losses)
        between.remove()
        forget_step([layer])
        schedule.step(torch.ones(4, 3), target=torch.zeros(4, 3), losses=losses)
        assert all(torch.equal(one, other) for one, other in zip(losses, expected, strict=True))
    finally:
        dist.destroy_process_group()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Replaceable:
    monkeypatch.setattr(GROUPS, "alone", True)
    monkeypatch.setattr(GROUPS, "groups", [])
    monkeypatch.setattr(GROUPS, "tape", None)
    return Replaceable(dist.HashStore(), 1, 3, groups.timedelta(seconds=1))


def test_a_rank_alone_is_answered_as_if_all_held_what_it_holds(alone: Replaceable) -> None:
    mine, whole = torch.arange(2.0), torch.arange(6.0)
    parts = [torch.zeros(2) for _ in range(3)]
    alone.allgather([parts], [mine]).wait()
    assert all(torch.equal(part, mine) for part in parts)
    gathered, chunk = torch.zeros(6), torch.zeros(2)
    alone._allgather_base(gathered, mine).wait()
    assert torch.equal(gathered, mine.repeat(3))
    alone._reduce_scatter_base(chunk, whole).wait()
    assert torch.equal(chunk, whole[2:4])
    alone.barrier().wait()
    alone.send([mine], 0, 0).wait()


def test_small_answers_come_from_the_tape_in_their_order(alone: Replaceable, monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    tape = Tape(store, "tape")
    for value in (torch.tensor([7.0]), torch.zeros(KEPT_BYTES), torch.tensor([8.0])):
        tape.keep(tape.next_key(), [value])
    monkeypatch.setattr(GROUPS, "tape", Tape(store, "tape"))
    seeds = [torch.tensor([0.0]), torch.full((KEPT_BYTES,), 3.0), torch.tensor([0.0])]
    for seed in seeds:
        alone.broadcast([seed]).wait()
    assert [float(one[0]) for one in seeds] == [7.0, 3.0, 8.0]
