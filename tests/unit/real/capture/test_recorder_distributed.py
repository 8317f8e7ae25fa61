"""Ranks of a virtual world, recorded: the same calls on real and fake tensors, and the allocator's own peak."""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from small_models import Decoder, rank_of, train  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper  # noqa: E402
from torch.distributed.algorithms.join import Join  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import Replicate, Shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from windtunnel.real.capture.recorder.recorder import Recorder  # noqa: E402
from windtunnel.studies.programs.program import RankProgram  # noqa: E402
from windtunnel.studies.programs.rank_classes.equality import peak as peak_of  # noqa: E402

WORLD, RANK = 8, 3
KINDS = ("ddp", "fsdp", "fsdp checkpointed", "tensor parallel")


def job(kind: str, device: str) -> None:
    torch.manual_seed(0)
    mesh = dist.init_device_mesh(device, (WORLD,))
    with torch.device(device):
        model: nn.Module = Decoder(heads=8)
    if "checkpointed" in kind:
        for i, layer in enumerate(model.layers):
            model.layers[i] = checkpoint_wrapper(layer)
    if "fsdp" in kind:
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        parallel(model, mesh)
    train(model, 3, device)


def parallel(model: Decoder, mesh: dist.DeviceMesh) -> None:
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, ends)
    whole = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    for layer in model.layers:
        columns = {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}
        plan = {
            **columns,
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
            "attention_norm": SequenceParallel(),
            "ffn_norm": SequenceParallel(),
            "attention": PrepareModuleInput(**whole),
        }
        parallelize_module(layer, mesh, plan)


def program_of(kind: str, *, fake: str | None = None) -> RankProgram:
    with rank_of(WORLD, RANK, fake=fake) as world, Recorder(RANK, WORLD, world) as recorder:
        job(kind, fake or "cpu")
    return recorder.program


def allocators_peak(kind: str) -> int:
    with rank_of(WORLD, RANK), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        job(kind, "cpu")
    events = [event for event in log.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize("kind", KINDS)
def test_fake_and_real_ranks_make_the_same_calls_and_hold_the_allocators_peak(kind: str) -> None:
    real, fake, peak = program_of(kind), program_of(kind, fake="cpu"), allocators_peak(kind)
    assert [op.communication for op in real.ops if op.communication]
    assert real.ops == fake.ops
    for program in (real, fake):
        assert peak_of(program)[0] == pytest.approx(peak, rel=0.01)
        assert peak_of(program)[0] == program.facts["peak"]["bytes"]  # type: ignore[index]
    assert "test_recorder_distributed.py:" in " ".join(fake.facts["peak"]["stack"])  # type: ignore[index]


@pytest.mark.parametrize("kind", KINDS)
def test_pretended_gpus_run_it_too(kind: str) -> None:
    cpu, gpu = program_of(kind, fake="cpu"), program_of(kind, fake="cuda")
    calls = [[op.communication for op in program.ops if op.communication] for program in (cpu, gpu)]
    assert Counter((c.kind, c.bytes) for c in calls[0]) == Counter((c.kind, c.bytes) for c in calls[1])
    products = [sum(op.flops for op in program.ops if "mm" in op.name) for program in (cpu, gpu)]
    assert products[0] == products[1] > 0
    assert any(op.name.startswith("aten._foreach") for op in gpu.ops)  # multi-tensor, as a GPU's default is
    assert {spec.device for op in gpu.ops for spec in op.outputs} == {"device"}


def test_gathers_of_fsdp_run_on_their_own_stream_and_are_waited_for() -> None:
    ops = program_of("fsdp", fake="cuda").ops
    gathers = [(i, op) for i, op in enumerate(ops) if op.communication and op.communication.kind == "all_gather"]
    assert gathers
    assert {op.stream for _, op in gathers} != {0}
    for i, gather in gathers:
        assert ops[i - 1].name == "fsdp.all_gather_copy_in"
        assert i - 1 in gather.after
        readers = [op for op in ops[i + 1 :] if i in op.after]
        assert readers[0].kind == "wait"
        assert any(op.name == "fsdp.split_with_sizes_copy" and op.stream == 0 for op in readers)


def test_gathered_parameters_are_freed_by_resizing_and_seen_to_be() -> None:
    program = program_of("fsdp")
    gathered = [event for event in program.memory if event.category in ("communication", "parameter")]
    assert sum(event.bytes for event in gathered) == 0
    assert any(event.bytes < 0 for event in gathered)


def test_integers_that_ddp_reads_in_between_change_nothing_of_the_ops_around() -> None:
    """Uneven inputs (Join) ask all ranks before each step, beside what DDP's reducer reads by itself."""
    with rank_of(2, 0, fake="cpu") as world, Recorder(0, 2, world) as recorder:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Join([model]):
            for _ in range(4):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    made = [op for op in recorder.program.ops if op.name == "aten.ones"]
    assert {op.outputs[0].shape for op in made} == {(1,), (2, 4)}
    assert all(not op.inputs for op in made)
