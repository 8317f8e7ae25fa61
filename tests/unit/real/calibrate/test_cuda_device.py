"""What a GPU is described as, who else uses it, and whether its allocator follows our rules; with a GPU made up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from windtunnel.errors import SpecError
from windtunnel.physics.graph.allocator import CachingAllocator
from windtunnel.real.calibrate import device
from windtunnel.real.calibrate.cuda_extras import allocator_differences, memory_before_anything


class Memory:
    """torch with the rules of the allocator; a workspace left over in a segment of its own, as cuBLAS leaves it."""

    uint8 = "uint8"

    def __init__(self, pools: bool, rounding: int = 1) -> None:
        self.default, self.rounding = CachingAllocator(), rounding
        self.workspace = self.default.allocate(8519680)
        self.pool = self.default
        self.cuda = SimpleNamespace(empty_cache=lambda: None, memory_stats=self.stats)
        self.pools = [self.default]
        if pools:
            self.cuda.MemPool, self.cuda.use_mem_pool = CachingAllocator, self.use

    @contextmanager
    def use(self, pool: CachingAllocator, device: str) -> Iterator[None]:
        before, self.pool = self.pool, pool
        self.pools.append(pool)
        yield
        self.pool = before

    def stats(self, device: str) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": sum(one.allocated_bytes for one in self.pools),
            "reserved_bytes.all.current": sum(one.reserved_bytes for one in self.pools),
        }

    def empty(self, size: int, dtype: str, device: str) -> Any:
        pool, block = self.pool, self.pool.allocate(-(-size // self.rounding) * self.rounding)
        assert block is not None

        class Tensor:
            def __del__(self) -> None:
                pool.free(block)

        return Tensor()


def test_the_allocators_rules_are_checked_in_a_pool_of_their_own() -> None:
    assert allocator_differences(Memory(pools=True), "cuda:0") == []
    (why,) = allocator_differences(Memory(pools=False), "cuda:0")
    assert "not checked" in why
    wrong = allocator_differences(Memory(pools=True, rounding=4 << 20), "cuda:0")
    assert wrong
    assert "where our rules say" in wrong[0]


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, gpu: str, apps: str) -> None:
    """An nvidia-smi that knows one GPU: utilization, memory used, power limit, driver; and the programs on it."""
    script = folder / "nvidia-smi"
    fields = "utilization.gpu,memory.used,power.limit,driver_version"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = "--id=GPU-11-22" ] || exit 6\ncase "$2" in\n'
        f'--query-gpu={fields}) echo "{gpu}";;\n--query-compute-apps=pid) echo "{apps}";;\n*) exit 2;;\nesac\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def with_gpu(monkeypatch: pytest.MonkeyPatch, free: int = 78 << 30, total: int = 80 << 30) -> Any:
    """torch as far as `describe` asks it, with one GPU."""
    properties = SimpleNamespace(
        name="Clockwork 80GB", major=9, minor=0, multi_processor_count=132, uuid="11-22", L2_cache_size=50 << 20
    )
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda index: properties,
        mem_get_info=lambda index: (free, total),
    )
    monkeypatch.setattr(device, "software", lambda torch: {"torch": "2.13.0"})
    return SimpleNamespace(cuda=cuda, get_num_threads=lambda: 8)


def test_a_quiet_gpu_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = with_gpu(monkeypatch, free=(80 << 30) - (500 << 20))
    smi(tmp_path, monkeypatch, gpu="0, 4, 700.00, 580.65.06", apps="")
    found = device.describe(torch, None, None)
    assert (found.spec, found.name, found.generation, found.units) == ("cuda:0", "Clockwork 80GB", "hopper", 132)
    assert found.context_bytes == 496 << 20
    assert found.available_bytes == (80 << 30) - (4 << 20)  # what a program has to allocate from, its context included
    assert found.tdp_w == 700.0
    assert found.software == {"torch": "2.13.0", "driver": "580.65.06"}
    assert found.notes == (device.NOT_RUN,)
    assert "not yet run on a GPU" in device.NOT_RUN


def test_a_busy_gpu_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = with_gpu(monkeypatch, free=40 << 30)
    smi(tmp_path, monkeypatch, gpu="93, 40300, [N/A], 580.65.06", apps="4711")
    notes = "\n".join(device.describe(torch, "cuda:0", None).notes)
    for words in ("busy: 93 %", "1 other program on the GPU", "of the GPU's memory is taken", "700 W assumed"):
        assert words in notes


def test_without_nvidia_smi_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = device.describe(with_gpu(monkeypatch), "cuda", None)
    assert "nvidia-smi does not say" in "\n".join(found.notes)
    assert found.context_bytes == 1 << 30


def test_a_gpu_that_cannot_be_used_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = with_gpu(monkeypatch)

    def held(index: int) -> Any:
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nmore")

    torch.cuda.mem_get_info = held
    with pytest.raises(SpecError, match=r"busy or unavailable.*nvidia-smi"):
        device.describe(torch, "cuda:0", None)
    with pytest.raises(SpecError, match="there are 1 GPUs"):
        device.describe(torch, "cuda:3", None)


def test_context_and_workspaces_are_what_is_taken_beyond_tensors_and_others() -> None:
    kept: dict[str, float] = {}
    allocated = [1 << 20]
    workspaces = 2 * 8519680  # forward and backward each have a handle

    class Tensor:
        def __init__(self) -> None:
            allocated[0] += 256 * 256 * 4

        def requires_grad_(self) -> None: ...

        def numel(self) -> int:
            return 256 * 256

        def element_size(self) -> int:
            return 4

        def __matmul__(self, other: Tensor) -> Tensor:
            allocated[0] += workspaces // 2
            return Tensor()

    def grad(output: Tensor, source: Tensor, gradient: Tensor) -> tuple[Tensor]:
        allocated[0] += workspaces // 2
        return (Tensor(),)

    cuda = SimpleNamespace(
        device=nullcontext,
        synchronize=lambda: None,
        memory_allocated=lambda: allocated[0],
        memory_reserved=lambda: 42 << 20,
        mem_get_info=lambda: ((80 << 30) - (4 << 20) - (42 << 20) - (600 << 20), 80 << 30),
    )
    torch = SimpleNamespace(cuda=cuda, randn=lambda *size, device: Tensor(), autograd=SimpleNamespace(grad=grad))
    where = SimpleNamespace(
        spec="cuda:0", memory_bytes=80 << 30, available_bytes=(80 << 30) - (4 << 20), context_bytes=496 << 20
    )
    memory_before_anything(torch, where, lambda group, name, value: kept.__setitem__(name, value))  # type: ignore[arg-type]
    assert kept == {"workspace_bytes": workspaces, "context_bytes": 600 << 20}
