"""Pretended GPUs: what a script sees of them, what is written down, and that nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from every_case import over  # noqa: E402
from small_models import Decoder, rank_of, recorded, train  # noqa: E402
from torch import nn  # noqa: E402

from windtunnel.real.capture.fake_tensors.fake import fake_tensors  # noqa: E402
from windtunnel.real.capture.fake_tensors.pretend_cuda import CudaGraphError  # noqa: E402
from windtunnel.real.capture.fake_tensors.pretended_gpu import PretendedGpu  # noqa: E402
from windtunnel.real.capture.recorder.recorder import Recorder  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a real GPU needs no pretended one")


def test_what_a_script_sees_of_its_gpus() -> None:
    gpu = PretendedGpu(name="Some GPU", capability=(10, 0), memory_bytes=1 << 37, sm_count=148)
    with fake_tensors("cuda", gpu=gpu, gpus=4, local_rank=2):
        assert torch.cuda.is_available()
        assert (torch.cuda.device_count(), torch.cuda.current_device()) == (4, 2)
        assert torch.cuda.get_device_properties(0).total_memory == 1 << 37
        assert torch.cuda.get_device_capability() == (10, 0)
        assert torch.cuda.get_device_name() == "Some GPU"
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch.get_device_module() is torch.cuda
        assert torch.zeros(2).to("cuda").device == torch.device("cuda", 2)
        assert torch.zeros(2).cuda().is_cuda
        assert torch.zeros(2, device="cuda:3").device.index == 3
        torch.cuda.set_device(1)
        assert torch.zeros(2).to("cuda").device.index == 1
        assert torch.zeros(2).pin_memory().device.type == "cpu"
        torch.cuda.manual_seed_all(1)
        torch.cuda.set_rng_state(torch.cuda.get_rng_state())
        assert nn.Linear(2, 2).to("cuda").weight.device.index == 1
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert (torch.zeros(2, 2, device="cuda") @ torch.zeros(2, 2, device="cuda")).dtype == torch.bfloat16


def test_nothing_is_left_behind() -> None:
    names = ("is_available", "device_count", "Stream", "Event", "current_stream", "memory_allocated", "manual_seed")
    before = [getattr(torch.cuda, name) for name in names], torch.Tensor.numpy, torch.Generator, torch.version.cuda
    with fake_tensors("cuda"), Recorder(0, 1):
        x = torch.ones(2, 2, device="cuda", requires_grad=True)
        (x @ x).sum().backward()
    assert before == (
        [getattr(torch.cuda, name) for name in names],
        *(torch.Tensor.numpy, torch.Generator, torch.version.cuda),
    )
    with pytest.raises((RuntimeError, AssertionError)):
        torch.zeros(2).to("cuda")
    x = torch.ones(2, 2, requires_grad=True)
    (x @ x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[4.0, 4.0], [4.0, 4.0]]


def test_a_thread_has_a_stream_of_its_own() -> None:
    """One that puts the next batch on the GPU: the training computes where it did, and does not wait with it."""
    entered, over = threading.Event(), threading.Event()
    with fake_tensors("cuda"), Recorder(0, 1) as recorder:
        recorder.begin_step()
        x = torch.ones(2, 2, device="cuda")

        def load() -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda.current_stream().synchronize()
                entered.set()
                over.wait(10)

        thread = threading.Thread(target=load)
        thread.start()
        assert entered.wait(10)
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        x * 2
        over.set()
        thread.join()
        with torch.cuda.stream(torch.cuda.Stream()):
            x * 2
        ops = recorder.end_step().ops
    assert [(op.stream, op.kind) for op in ops] == [(0, "compute"), (0, "compute"), (2, "compute")]


def test_streams_and_events_become_dependencies() -> None:
    with fake_tensors("cuda"), Recorder(0, 1) as recorder:
        recorder.begin_step()
        side, event = torch.cuda.Stream(), torch.cuda.Event()
        x = torch.ones(4, device="cuda")  # 0
        with torch.cuda.stream(side):
            torch.ones(4, device="cuda")  # 1: beside 0
            side.wait_stream(torch.cuda.default_stream())
            torch.ones(4, device="cuda")  # 2: after 0
            event.record()
            torch.ones(4, device="cuda")  # 3: after the event
        torch.cuda.current_stream().wait_event(event)
        torch.ones(4, device="cuda")  # 4: after 2, not after 3
        torch.cuda.synchronize()  # 5
        program = recorder.end_step()
    assert [(op.stream, op.after) for op in program.ops] == [
        (0, ()),
        (1, ()),
        (1, (0,)),
        (1, ()),
        (0, (2,)),
        (0, (3, 4)),
    ]
    assert program.ops[5].kind == "sync"
    del x


STREAMS = {  # what a script does with x, which the default stream has made: is a wait missing?
    "one stream": ("x * 2", False),
    "read on the side": ("with torch.cuda.stream(side): x * 2", True),
    "side waits": ("side.wait_stream(here)\nwith torch.cuda.stream(side): x * 2", False),
    "side waits for what was before": ("side.wait_stream(here)\nx.add_(1)\nwith torch.cuda.stream(side): x * 2", True),
    "an event": ("event.record()\nwith torch.cuda.stream(side):\n event.wait()\n x * 2", False),
    "the host waits": ("torch.cuda.synchronize()\nwith torch.cuda.stream(side): x * 2", False),
    "the host reads": ("x.sum().item()\nwith torch.cuda.stream(side): x * 2", False),
    "the host counts": ("x[x > 0]\nwith torch.cuda.stream(side): x * 2", False),
    "the device looks up": (
        "x[torch.zeros(2, dtype=torch.int64, device='cuda')]\nwith torch.cuda.stream(side): x * 2",
        True,
    ),
    "the host asks": ("event.record()\nevent.query()\nwith torch.cuda.stream(side): x * 2", False),
    "a third in between": (
        "side.wait_stream(here)\nthird = torch.cuda.Stream()\nthird.wait_stream(side)\n"
        "with torch.cuda.stream(third): x * 2",
        False,
    ),
    "written on the side": ("with torch.cuda.stream(side): y = torch.ones(4, device='cuda')\ny * 2", True),
    "and waited for": (
        "with torch.cuda.stream(side): y = torch.ones(4, device='cuda')\nhere.wait_stream(side)\ny * 2",
        False,
    ),
    "fetched on the side": ("with torch.cuda.stream(side): y = host.to('cuda', non_blocking=True)\ny * 2", True),
    "fetched while the host waits": ("with torch.cuda.stream(side): y = host.to('cuda')\ny * 2", False),
    "written into what is empty": (
        "y = torch.empty(4, device='cuda')\nwith torch.cuda.stream(side): y.copy_(torch.ones(4, device='cuda'))",
        False,
    ),
    "parts of a buffer": (
        "side.wait_stream(here)\nwith torch.cuda.stream(side): x[:2].add_(1)\nx[2:] * 2",
        False,
    ),
    "a stream by its pointer": (
        "side.wait_stream(here)\nwith torch.cuda.stream(torch.cuda.ExternalStream(side.cuda_stream)): x * 2",
        False,
    ),
    "a stream of a device by name": ("side = torch.Stream(device='cuda')\nwith side: x * 2", True),
    "exchanged on the side": ("side.wait_stream(here)\nwith torch.cuda.stream(side): dist.all_reduce(x)\nx * 2", True),
    "a handle waited for twice": (
        "handle = dist.all_reduce(x, async_op=True)\nwith torch.cuda.stream(side):\n handle.wait()\n x * 2\n"
        "with torch.cuda.stream(torch.cuda.Stream()):\n handle.wait()\n x * 2",
        False,
    ),
    "a future": (
        "side.wait_stream(here)\nwith torch.cuda.stream(side): handle = dist.all_reduce(x, async_op=True)\n"
        "handle.get_future().wait()\nx * 2",
        False,
    ),
    "a handle asked": (
        "side.wait_stream(here)\nwith torch.cuda.stream(side): handle = dist.all_reduce(x, async_op=True)\n"
        "if handle.is_completed(): x * 2",
        False,
    ),
    "a barrier": (
        "with torch.cuda.stream(side):\n y = torch.ones(4, device='cuda')\n dist.barrier()\ny * 2",
        False,
    ),
    "made for the backward pass": (
        "w = torch.ones(4, device='cuda', requires_grad=True)\nside.wait_stream(here)\n"
        "with torch.cuda.stream(side): y = (w * x).sum()\nhere.wait_stream(side)\ny.backward()\nw.grad * 2",
        False,
    ),
}


@over("name", STREAMS)
def test_what_another_stream_wrote_is_waited_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, is_missing = STREAMS[name]
    monkeypatch.setattr("windtunnel.real.capture.fake_tensors.pretend_cuda.is_script_file", lambda path: True)
    with rank_of(2, 0, fake="cuda") as world, Recorder(0, 2, world) as recorder:
        recorder.begin_step()
        side, event, here = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.current_stream()
        host, x = torch.ones(4).pin_memory(), torch.ones(4, device="cuda")
        exec(source, {"torch": torch, "dist": dist, "side": side, "event": event, "here": here, "host": host, "x": x})
        recorder.end_step()
    assert [race.kind for race in recorder.journal.races] == ["race"] * is_missing


def test_copies_and_reads_are_told_apart_from_compute() -> None:
    with fake_tensors("cuda"), Recorder(0, 1) as recorder:
        recorder.begin_step()
        x = torch.randn(4, 4).to("cuda", non_blocking=True)
        y = (x * 2).cpu()
        (x.sum()).item()
        program = recorder.end_step()
    assert [(op.name, op.kind) for op in program.ops] == [
        *(("aten.randn", "compute"), ("aten._to_copy", "copy"), ("aten.mul", "compute"), ("aten._to_copy", "copy")),
        *(("aten.sum", "compute"), ("aten._local_scalar_dense", "sync"))[:1],
        ("sync", "sync"),
    ]
    to_device, back = program.ops[1], program.ops[3]
    assert (to_device.inputs[0].device, to_device.outputs[0].device) == ("host", "device")
    assert (back.inputs[0].device, back.outputs[0].device) == ("device", "host")
    assert to_device.scalars == ("non_blocking",)
    assert y.device.type == "cpu"


def test_only_memory_of_the_gpu_counts() -> None:
    with fake_tensors("cuda"), Recorder(0, 1):
        host = torch.zeros(1 << 20)
        assert torch.cuda.memory_allocated() == 0
        device = torch.zeros(1 << 10, device="cuda")
        assert torch.cuda.memory_allocated() == 4096
        del device
        assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == (0, 4096)
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0
        assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 0
        assert host.numel()


def test_a_gradient_scaler_finds_no_infinity() -> None:
    def job(device: str) -> None:
        model = Decoder().to(device)
        optimizer, scaler = torch.optim.AdamW(model.parameters(), fused=True), torch.amp.GradScaler(device)
        for _ in range(2):
            with torch.autocast(device, dtype=torch.float16):
                loss = model(torch.zeros(2, 8, dtype=torch.long, device=device)).float().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        scales.append(scaler.get_scale())

    scales: list[float] = []
    ops = recorded(job, fake="cuda").program.ops
    assert scales == [65536.0]
    assert "aten._fused_adamw_" in {op.name for op in ops}


@pytest.mark.parametrize(
    ("how", "kernel"),
    [
        ({"dtype": torch.bfloat16}, "flash"),
        ({"dtype": torch.float32}, "efficient"),
        ({"dtype": torch.bfloat16, "mask": True}, "efficient"),
        ({"dtype": torch.float32, "kv": 2}, "math"),
        ({"dtype": torch.bfloat16, "kv": 2}, "flash"),
    ],
)
def test_attention_takes_the_kernel_that_a_gpu_would(how: dict[str, Any], kernel: str) -> None:
    with fake_tensors("cuda"), Recorder(0, 1) as recorder:
        recorder.begin_step()
        q = torch.zeros(2, 4, 16, 32, device="cuda", dtype=how["dtype"], requires_grad=True)
        kv = torch.zeros(2, how.get("kv", 4), 16, 32, device="cuda", dtype=how["dtype"], requires_grad=True)
        mask = torch.zeros(16, 16, device="cuda", dtype=how["dtype"]) if how.get("mask") else None
        out = F.scaled_dot_product_attention(q, kv, kv, mask, is_causal=mask is None, enable_gqa="kv" in how)
        out.sum().backward()
        program = recorder.end_step()
    names = [op.name for op in program.ops if "attention" in op.name]
    expected = f"aten._scaled_dot_product_{kernel}_attention"
    assert names == ([] if kernel == "math" else [expected, f"{expected}_backward"])
    assert kv.grad is not None
    assert kv.grad.shape == kv.shape
    for op in program.ops:
        if op.name.startswith(expected):
            assert op.scalars == (("is_causal", mask is None),)
            assert op.flops == 2 * 2 * 4 * 16 * 16 * 32 * (5 if "backward" in op.name else 2)


class Experts(nn.Module):
    def __init__(self, experts: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(16, experts)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, chosen = torch.topk(self.router(x), 2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, _ = torch.where(chosen == number)
            self.rows = len(rows)
            out = out.index_add(0, rows, expert(x[rows]))
        count = len(self.experts)
        self.counts = [
            torch.bincount(chosen.flatten(), minlength=count).tolist(),
            F.one_hot(chosen, count).sum((0, 1)).tolist(),
            torch.histc(chosen.float(), bins=count, min=0, max=count - 1).int().tolist(),
        ]
        return out


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_routing_is_even(device: str) -> None:
    def job(on: str) -> None:
        model = Experts().to(on)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.zeros(100, 16, device=on)).sum().backward()
        optimizer.step()
        seen.append(model)

    seen: list[Any] = []
    program = recorded(job, fake=device).program
    assert seen[0].rows == 25
    assert seen[0].counts == [[25] * 8] * 3
    assert {answer.told for answer in program.answers} >= {"25 entries", "25"}
    assert sum(op.kind == "sync" for op in program.ops) >= 8 + 3 * 8


def test_data_dependent_shapes_do_not_end_the_run() -> None:
    with fake_tensors("cuda"), Recorder(0, 1) as recorder:
        recorder.begin_step()
        x = torch.randn(10, 4, device="cuda")
        mask = x > 0
        assert x[mask].shape == (40,)
        assert torch.masked_select(x, mask).shape == (40,)
        assert torch.nonzero(mask).shape == (40, 2)
        assert torch.unique(x).shape == (40,)
        assert [t.shape for t in torch.unique(x, return_counts=True)] == [(40,), (40,)]
        assert torch.repeat_interleave(torch.tensor([1, 2, 3], device="cuda")).shape == (6,)
        program = recorder.end_step()
    assert len([op for op in program.ops if op.kind == "sync"]) == 6


def test_cuda_graphs_are_refused() -> None:
    with fake_tensors("cuda"):
        with pytest.raises(CudaGraphError, match="turn CUDA graphs off"):
            torch.cuda.CUDAGraph()
        with pytest.raises(CudaGraphError):
            torch.cuda.make_graphed_callables(nn.Linear(2, 2), ())


def test_a_model_larger_than_this_machine_is_recorded() -> None:
    def job(device: str) -> None:
        with torch.device(device):
            model = Decoder(width=1 << 14, layers=2, heads=128)
        train(model, 2, device)

    program = recorded(job, fake="cuda").program
    assert program.facts["parameters"] > 3e9  # type: ignore[operator]


def test_a_process_that_pretended_ends_cleanly() -> None:
    script = (
        "import torch; from windtunnel.real.capture.fake_tensors.fake import fake_tensors\n"
        "with fake_tensors('cuda'):\n"
        "    x = torch.ones(2, 2, device='cuda', requires_grad=True); (x @ x).sum().backward()\n"
        "print('end')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


def test_a_gpu_that_a_node_has_not_is_refused_where_it_is_asked_for() -> None:
    with fake_tensors("cuda", gpus=8, local_rank=0):
        torch.cuda.set_device(7)
        with pytest.raises(RuntimeError, match=r"invalid device ordinal: cuda:1022 on a node of 8 GPUs; take"):
            torch.cuda.set_device(1022)


@pytest.mark.parametrize("device", ["cuda:8", "cuda:1022", 8])
def test_a_tensor_is_not_put_on_a_gpu_that_the_node_has_not(device: str | int) -> None:
    with fake_tensors("cuda", gpus=8, local_rank=3):
        here = torch.ones(2, device="cuda")
        assert here.to("cuda:7").device.index == 7
        puts = (
            lambda: torch.ones(2).to(device),
            lambda: torch.ones(2).cuda(device),
            lambda: torch.empty(3, device=device),
            lambda: torch.nn.Linear(2, 2).to(device),
        )
        for put in (*puts, *puts):  # nor where it was asked for before
            with pytest.raises(RuntimeError, match=r"invalid device ordinal: cuda:(8|-2 .*) on a node of 8 GPUs"):
                put()
