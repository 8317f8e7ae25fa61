"""Training steps among virtual peers: real tensors learn, tensors without data make the same calls."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from forked import windtunnel

torch = pytest.importorskip("torch")
dist = torch.distributed

import torch.distributed._functional_collectives as functional  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from mailboxes import serve_mailbox  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from windtunnel.real.capture.recorder.op_table import facts_of  # noqa: E402
from windtunnel.real.capture.torch_private import distributed as compat  # noqa: E402
from windtunnel.real.capture.virtual_world.world import World  # noqa: E402
from windtunnel.studies.programs.communication import Communication  # noqa: E402

VOCABULARY, WIDTH = 64, 32


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        return self.head(x + self.down(F.gelu(self.up(self.norm(x)))))


def train(model: Any, steps: int, rate: float = 1e-2, read: bool = True) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    torch.manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (8, 16))
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item() if read else 0.0)
    return losses


def replicated(_: int) -> Any:
    return torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=0.005)


def fully_sharded(size: int) -> Any:
    return sharded(Model(), dist.init_device_mesh("cpu", (size,)))


def hybrid_sharded(size: int) -> Any:
    return sharded(Model(), dist.init_device_mesh("cpu", (size // 64, 64), mesh_dim_names=("replicate", "shard")))


def sharded(model: Any, mesh: Any) -> Any:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (model.up, model.down):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def tensor_parallel(size: int) -> Any:
    mesh = dist.init_device_mesh("cpu", (size // 8, 8), mesh_dim_names=("dp", "tp"))
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return parallelize_module(Model(), mesh["tp"], plan)


def tensor_parallel_and_sharded(size: int) -> Any:
    model = tensor_parallel(size)
    return fully_shard(model, mesh=dist.init_device_mesh("cpu", (size // 8, 8), mesh_dim_names=("dp", "tp"))["dp"])


KINDS = {
    replicated: {"all_reduce", "broadcast"},
    fully_sharded: {"all_gather", "reduce_scatter"},
    hybrid_sharded: {"all_gather", "reduce_scatter", "all_reduce"},
    tensor_parallel: {"all_reduce", "all_gather", "reduce_scatter", "scatter", "broadcast"},
    tensor_parallel_and_sharded: {"all_reduce", "all_gather", "reduce_scatter", "scatter", "broadcast"},
}


def test_ddp_learns_among_63_virtual_peers_as_it_does_alone() -> None:
    with World(3, 64, devices=("cpu",)):
        dist.init_process_group("nccl")
        among = train(replicated(64), 50)
    alone = train(Model(), 50)
    assert among[-1] < among[0] / 10
    assert among == pytest.approx(alone, rel=1e-3)  # averages of equal gradients are these gradients


def test_fsdp_learns() -> None:
    with World(1, 4):
        dist.init_process_group("gloo")
        losses = train(fully_sharded(4), 60, rate=1e-2)
    assert losses[-1] < losses[0] / 2
    assert all(loss == loss and loss < 20 for loss in losses)


@pytest.mark.parametrize("make", list(KINDS), ids=lambda make: make.__name__)
def test_steps_at_8192_are_finite_and_call_what_they_should(make: Any) -> None:
    with World(77, 8192) as world:
        dist.init_process_group("gloo")
        world.calls = []
        losses = train(make(8192), 2)
    assert all(0 < loss < 100 for loss in losses)
    assert {call.kind for call in world.calls} >= KINDS[make] - {"all_reduce" if make is tensor_parallel else ""}


# ---- without data


class Ears:
    def __init__(self) -> None:
        self.begun: list[Communication] = []
        self.waits: list[Communication] = []

    def begin(self, call: Communication) -> None:
        self.begun.append(call)

    def on_wait(self, call: Communication) -> None:
        self.waits.append(call)


class Answering(TorchDispatchMode):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, (DTensor, functional.AsyncCollectiveTensor)) for kind in types):
            return NotImplemented
        if facts_of(func).communication:
            return self.world.answer(func, args, kwargs)
        return func(*args, **(kwargs or {}))


@contextmanager
def without_data(rank: int, size: int) -> Iterator[tuple[World, Ears]]:
    ears = Ears()
    with World(rank, size, listener=ears) as world, compat.ddp_outside_modes():
        world.fake = True
        with compat.real_device_meshes(world.known_value), FakeTensorMode(allow_non_fake_inputs=True), Answering(world):
            dist.init_process_group("gloo")
            yield world, ears


def test_calls_without_data_give_works_and_futures() -> None:
    with without_data(3, 64) as (_, ears):
        x = torch.ones(4)
        work = dist.all_reduce(x, async_op=True)
        assert ears.waits == []
        work.wait()
        (value,) = work.get_future().value()
        assert isinstance(value, FakeTensor)
        assert len(ears.waits) == 1
        assert (functional.all_gather_tensor(x, 0, dist.group.WORLD) + 1).shape == (256,)
        assert len(ears.waits) == 2
        functional.wait_tensor(functional.all_to_all_single(torch.ones(64, 3), None, None, dist.group.WORLD))
        functional.wait_tensor(
            functional.all_to_all_single(torch.ones(64, 3), [2] + [1] * 63, [1] * 64, dist.group.WORLD)
        )
        for tensor in functional.all_reduce_coalesced([x, x], "sum", dist.group.WORLD):
            functional.wait_tensor(tensor)
        assert ears.begun[-2].sent_bytes == (12,) * 64
        assert ears.begun[-2].received_bytes == (24,) + (12,) * 63
        dist.barrier()
    assert [call.kind for call in ears.begun] == [call.kind for call in ears.waits]
    assert [call.bytes for call in ears.begun] == [16, 1024, 768, 768, 32, 0]


def test_a_reduction_is_named_alike_however_it_is_given() -> None:
    given = ["AVG"]
    if str(torch.ops._c10d_functional.all_reduce.default._schema.arguments[1].type) == "Any":  # since 2.15
        given += [dist.ReduceOp.AVG, dist.ReduceOp(dist.ReduceOp.AVG)]
    with without_data(1, 8) as (_, ears):
        for one in given:
            functional.all_reduce(torch.ones(4), one, dist.group.WORLD)
    assert {call.reduce_op for call in ears.begun} == {"avg"}


def test_known_numbers_stay_known() -> None:
    with without_data(1, 8):
        votes = torch.tensor(3)
        dist.all_reduce(votes)
        assert votes.item() == 24
        parts = [torch.empty(1, dtype=torch.int64) for _ in range(8)]
        dist.all_gather(parts, torch.tensor([7]))
        assert parts[5].item() == 7
        things: list[Any] = [None] * 8
        dist.all_gather_object(things, torch.ones(3, 2))
        assert things[4].shape == (3, 2)
        assert isinstance(things[4], FakeTensor)


@pytest.mark.parametrize("make", list(KINDS), ids=lambda make: make.__name__)
def test_steps_without_data_make_the_calls_of_steps_with_data(make: Any) -> None:
    size = 64 if make is replicated else 8192
    with World(77 % size, size) as world:
        dist.init_process_group("gloo")
        world.calls = []
        train(make(size), 2)
    with without_data(77 % size, size) as (_, ears):
        train(make(size), 2, read=False)

    def calls(made: list[Communication]) -> Counter[Any]:
        return Counter((call.kind, len(call.members), call.bytes, call.dtype) for call in made if not call.is_control)

    assert calls(ears.begun) == calls(world.calls)


def test_the_stages_of_a_pipeline_at_1023_reach_each_other(tmp_path: Path) -> None:
    box = serve_mailbox()
    script = Path(__file__).with_name("pipeline_stage.py")
    done = windtunnel("3", "1023", str(box.port), cwd=tmp_path, env={**os.environ}, timeout=120, module=str(script))
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(done.stdout.splitlines()) == ["ok 0", "ok 1", "ok 2"]
