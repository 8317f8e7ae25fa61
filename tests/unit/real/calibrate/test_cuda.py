"""The CUDA path against a GPU of clockwork: streams, events, waits and a host that takes time to queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from windtunnel.errors import UserError
from windtunnel.real.calibrate import cuda_extras, host_costs
from windtunnel.real.calibrate.cuda_extras import slowdown
from windtunnel.real.calibrate.device_wait import DeviceWait
from windtunnel.real.calibrate.hold_sms import sm_holder
from windtunnel.real.calibrate.timing import CudaTimer, Effort, measure

SMS, CLOCK_HZ = 132, 1.5e9
SHARED = 227 << 10


class Stream:
    """Work in order; `busy` says when, and how many SMs it held."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.free_at, self.busy = gpu, 0.0, list[tuple[float, float, int]]()

    def wait_event(self, event: Event) -> None:
        self.free_at = max(self.free_at, event.at)

    def wait_stream(self, other: Stream) -> None:
        self.free_at = max(self.free_at, other.free_at)


class Event:
    def __init__(self, gpu: Gpu, enable_timing: bool = False) -> None:
        self.gpu, self.timed, self.at = gpu, enable_timing, -1.0

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self.gpu.current
        self.gpu.now += self.gpu.host_s / 4
        self.at = max(stream.free_at, self.gpu.now)

    def query(self) -> bool:
        return self.at <= self.gpu.now

    def elapsed_time(self, other: Event) -> float:
        assert self.timed
        assert other.timed
        assert all(0 <= one.at <= self.gpu.now for one in (self, other)), "CUDA: device not ready"
        return (other.at - self.at) * 1e3


class Gpu:
    """`torch.cuda` as far as it is used. `host_s`: what the host takes to launch a kernel."""

    def __init__(self, host_s: float = 5e-6, serial: bool = False, queue: int = 1000) -> None:
        self.now, self.host_s, self.serial, self.queue = 1.0, host_s, serial, queue
        self.main = self.current = Stream(self)
        self.streams = [self.main]
        self.ends: list[float] = []  # of kernels, in the order of launches
        self.clock_hz = CLOCK_HZ
        self.log: list[str] = []
        self._utils = SimpleNamespace(_cuda_load_module=self._load)

    def Event(self, enable_timing: bool = False) -> Event:  # noqa: N802 - as torch has it
        return Event(self, enable_timing)

    def Stream(self) -> Stream:  # noqa: N802
        self.streams.append(Stream(self))
        return self.streams[-1]

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def device(self, spec: str) -> Any:
        self.log.append(spec)
        return nullcontext()

    def current_device(self) -> int:
        return 0

    def current_stream(self) -> Stream:
        return self.current

    def synchronize(self, spec: str | None = None) -> None:
        self.log.append(f"synchronize {spec}")
        self.now = max(self.now, *(one.free_at for one in self.streams))

    def kernel(self, seconds: float, sms: int = 0, slowed_by_held: bool = False) -> None:
        """Launch: the host takes its time, and waits where too much is queued."""
        self.now += self.host_s
        waiting = [end for end in self.ends if end > self.now]
        if len(waiting) >= self.queue:
            self.now = sorted(waiting)[-self.queue]
        self.ends = waiting
        stream = self.current
        begin = max(stream.free_at, self.now + 1e-6)
        if self.serial:
            begin = max(begin, *(one.free_at for one in self.streams))
        if slowed_by_held:
            held = [(a, b, n) for one in self.streams if one is not stream for a, b, n in one.busy if b > begin]
            if held:
                seconds *= SMS / (SMS - max(n for _, _, n in held))
        stream.free_at = begin + seconds
        stream.busy.append((begin, stream.free_at, sms))
        self.ends.append(stream.free_at)

    def _sleep(self, cycles: int) -> None:
        assert isinstance(cycles, int)
        assert cycles > 0
        self.kernel(cycles / self.clock_hz)

    def get_device_properties(self, index: int = 0) -> Any:
        return SimpleNamespace(
            name="Clockwork 80GB",
            major=9,
            minor=0,
            multi_processor_count=SMS,
            uuid="11-22",
            L2_cache_size=50 << 20,
            shared_memory_per_multiprocessor=228 << 10,
            shared_memory_per_block_optin=SHARED,
        )

    def _load(self, ptx: str, names: list[str]) -> dict[str, Any]:
        assert f".entry {names[0]}(" in ptx
        gpu = self

        class Kernel:
            most = 48 << 10

            def set_shared_memory_config(self, size: int) -> None:
                assert size <= SHARED
                self.most = size

            def __call__(self, grid: Any, block: Any, args: list[int], shared_mem: int) -> None:
                assert shared_mem <= self.most, "not configured"
                assert 0 < args[0] < 2**31
                waves = -(-grid[0] // (SMS if shared_mem > 114 << 10 else 2 * SMS))
                gpu.kernel(waves * args[0] / gpu.clock_hz, grid[0])

        return {names[0]: Kernel()}


def torch_of(gpu: Gpu) -> Any:
    return SimpleNamespace(cuda=gpu)


def timer_of(gpu: Gpu) -> CudaTimer:
    return CudaTimer(torch_of(gpu), "cuda:1", lambda: gpu.now)


def test_device_time_is_measured_and_not_the_hosts_gaps() -> None:
    gpu = Gpu(host_s=200e-6)  # launching takes forty times as long as the kernel runs
    found = timer_of(gpu).samples([lambda: gpu.kernel(5e-6)] * 4)
    assert [one.seconds for one in found] == pytest.approx([5e-6] * 4)
    assert gpu.log[0] == "cuda:1"


def test_a_wait_that_was_too_short_is_seen_and_made_longer() -> None:
    gpu = Gpu(host_s=20e-6)
    wait = DeviceWait(gpu, lambda: gpu.now)
    short = wait.queued(100e-6, lambda gate: [gpu.kernel(5e-6) for _ in range(100)])
    assert not short.in_time
    assert short.host_s == pytest.approx(2e-3)
    assert wait.queued(5e-3, lambda gate: [gpu.kernel(5e-6) for _ in range(100)]).in_time

    many = 300  # kernels in one call: 6 ms to queue, where 50 us was the first guess

    def call() -> None:
        for _ in range(many):
            gpu.kernel(5e-6)

    (sample,) = timer_of(gpu).samples([call])
    assert sample.seconds == pytest.approx(many * 5e-6)


def test_the_wait_follows_the_clock() -> None:
    gpu = Gpu()
    wait = DeviceWait(gpu, lambda: gpu.now, cycles_per_s=2e9)
    gpu.clock_hz = 0.4e9  # idle
    assert wait.queued(1e-3, lambda gate: None).in_time
    assert wait.cycles_per_s == pytest.approx(0.4e9, rel=0.02)
    gpu.clock_hz = 1.9e9  # boosted: what 0.4 GHz suggests is now too short, and the next one is not
    wait.queued(1e-3, lambda gate: None)
    assert wait.cycles_per_s == pytest.approx(1.9e9, rel=0.05)


def test_more_launches_than_a_driver_queues_are_timed_call_by_call() -> None:
    gpu = Gpu(queue=100)

    def call() -> None:
        for _ in range(60):
            gpu.kernel(2e-6)

    found = timer_of(gpu).samples([call, call, call])
    assert [one.seconds for one in found] == pytest.approx([120e-6] * 3)


def test_a_call_that_waits_for_the_device_itself_still_gets_a_time() -> None:
    gpu = Gpu()

    def pageable() -> None:
        gpu.now = max(gpu.now, gpu.current.free_at)  # a copy from pageable memory first waits for the stream
        gpu.kernel(1e-3)
        gpu.now = gpu.current.free_at

    found = measure([pageable], timer_of(gpu), Effort(0.05))
    assert 1e-3 <= found.median_s < 1.05e-3
    after = timer_of(gpu).samples([lambda: gpu.kernel(5e-6)])
    assert after[0].seconds == pytest.approx(5e-6)


def test_no_time_is_below_what_events_resolve() -> None:
    gpu = Gpu(host_s=0.0)
    assert timer_of(gpu).samples([lambda: None])[0].seconds > 0


def test_results_live_until_the_next_is_there() -> None:
    gpu, alive, most = Gpu(), [0], [0]

    class Result:
        def __init__(self) -> None:
            alive[0] += 1
            most[0] = max(most[0], alive[0])

        def __del__(self) -> None:
            alive[0] -= 1

    timer_of(gpu).samples([Result] * 5)
    assert (most[0], alive[0]) == (2, 0)


@pytest.mark.parametrize("words", ["CUDA error: an illegal memory access", "CUBLAS_STATUS_EXECUTION_FAILED when"])
def test_a_broken_device_is_one_message(words: str) -> None:
    def call() -> None:
        raise RuntimeError(f"{words}\nCompile with TORCH_USE_CUDA_DSA")

    with pytest.raises(UserError, match=r"the GPU failed.*what was measured is kept"):
        timer_of(Gpu()).samples([call])


def test_out_of_memory_goes_to_who_handles_it() -> None:
    def call(words: str) -> Callable[[], None]:
        def raises() -> None:
            raise RuntimeError(words)

        return raises

    for words in ("CUDA out of memory. Tried to allocate", "CUDA error: out of memory"):
        with pytest.raises(RuntimeError, match="out of memory"):
            timer_of(Gpu()).samples([call(words)])
    with pytest.raises(MemoryError):
        timer_of(Gpu()).samples([call("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")])
    with pytest.raises(RuntimeError, match="shapes"):  # ours: not to be dressed up
        timer_of(Gpu()).samples([call("shapes cannot be multiplied")])


def test_slowdown_is_that_of_work_beside_held_sms() -> None:
    gpu = Gpu()
    wait = DeviceWait(gpu, lambda: gpu.now)
    holder, why = sm_holder(torch_of(gpu), wait)
    assert holder is not None, why

    def work() -> None:
        for _ in range(4):
            gpu.kernel(200e-6, slowed_by_held=True)

    found = slowdown(
        torch_of(gpu), "cuda:0", work, lambda seconds: holder.hold(33, seconds), DeviceWait(gpu, lambda: gpu.now)
    )
    assert found == pytest.approx(33 / 99, rel=0.01)


def test_what_ends_too_soon_is_made_longer() -> None:
    gpu, asked = Gpu(), []

    def beside(seconds: float) -> None:
        asked.append(seconds)
        gpu.kernel(seconds / 6, 33)

    def work() -> None:
        gpu.kernel(1e-3, slowed_by_held=True)

    found = slowdown(torch_of(gpu), "cuda:0", work, beside, DeviceWait(gpu, lambda: gpu.now))
    assert found == pytest.approx(33 / 99, rel=0.01)
    assert max(asked) > 3 * min(asked)


def test_a_gpu_that_runs_one_after_the_other_has_no_slowdown() -> None:
    gpu = Gpu(serial=True)
    wait = DeviceWait(gpu, lambda: gpu.now)
    found = slowdown(torch_of(gpu), "cuda:0", lambda: gpu.kernel(1e-3), lambda s: gpu.kernel(s, 8), wait)
    assert found is None


def test_the_holder_says_why_it_cannot() -> None:
    gpu = Gpu()
    wait = DeviceWait(gpu, lambda: gpu.now)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("windtunnel.real.calibrate.hold_sms._TWICE", 2.5)  # as if two blocks had shared an SM
        assert sm_holder(torch_of(gpu), wait)[1].startswith("its blocks did not get an SM each")

    def no_driver(ptx: str, names: list[str]) -> dict[str, Any]:
        raise RuntimeError("CUDA error: a PTX JIT compilation failed")

    gpu._utils = SimpleNamespace(_cuda_load_module=no_driver)
    assert "PTX JIT compilation failed" in sm_holder(torch_of(gpu), wait)[1]
    gpu._utils = SimpleNamespace()
    assert "cannot load a kernel" in sm_holder(torch_of(gpu), wait)[1]
    old = SimpleNamespace(**{**vars(gpu.get_device_properties()), "major": 7, "minor": 5})
    gpu._utils = SimpleNamespace(_cuda_load_module=gpu._load)
    gpu.get_device_properties = lambda index=0: old  # type: ignore[method-assign]
    assert "cannot have an SM to itself" in sm_holder(torch_of(gpu), wait)[1]


def test_a_graph_is_timed_by_what_more_kernels_add() -> None:
    gpu = Gpu()
    torch = graphs_of(gpu)
    assert host_costs.graph_launch_s(torch, "cuda:0", lambda: int(gpu.now * 1e9)) == pytest.approx(1.5e-6, rel=0.01)
    assert torch.captured == [1, 1001]


def graphs_of(gpu: Gpu) -> Any:
    """torch whose captures count launches and whose replays take 1.5 us a kernel and 10 us."""
    torch = SimpleNamespace(cuda=gpu, no_grad=nullcontext, captured=[])
    capturing: list[Any] = []

    class Graph:
        nodes = 0

        def replay(self) -> None:
            assert not capturing
            gpu.kernel(10e-6 + 1.5e-6 * self.nodes)

        def reset(self) -> None:
            torch.captured.append(self.nodes)

    @contextmanager
    def graph(one: Graph) -> Iterator[None]:
        gpu.synchronize()
        capturing.append(one)
        yield
        capturing.pop()

    def add(value: float) -> None:
        if capturing:
            capturing[-1].nodes += 1
        else:
            gpu.kernel(1e-6)

    gpu.CUDAGraph, gpu.graph = Graph, graph  # type: ignore[attr-defined]
    torch.ones = lambda size, device: SimpleNamespace(add_=add)
    return torch


def test_extras_without_memory_end_in_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, notes, emptied = Gpu(), list[str](), list[int]()
    gpu.empty_cache = lambda: emptied.append(1)  # type: ignore[attr-defined]
    monkeypatch.setattr(cuda_extras, "allocator_differences", lambda torch, spec: [f"allocator: {n}" for n in range(5)])

    def full(*size: int, **where: Any) -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate 1.00 GiB")

    torch = SimpleNamespace(cuda=gpu, bfloat16="bf16", randn=full)
    where = SimpleNamespace(spec="cuda:0", available_bytes=1 << 30, units=SMS)
    cuda_extras.measure_extras(torch, where, lambda *kept: None, notes.append)  # type: ignore[arg-type]
    assert notes[:3] == ["allocator: 0", "allocator: 1", "allocator: 3 more differences like these"]
    assert "out of memory" in notes[-1]
    assert emptied


def test_extras_keep_a_value_for_each_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, kept, notes = Gpu(host_s=2e-6), dict[str, float](), list[str]()
    monkeypatch.setattr(cuda_extras, "allocator_differences", lambda torch, spec: [])
    monkeypatch.setattr(cuda_extras, "DeviceWait", lambda cuda: DeviceWait(cuda, lambda: gpu.now))

    class Tensor:
        def __matmul__(self, other: Tensor) -> None:
            gpu.kernel(200e-6, slowed_by_held=True)

        def copy_(self, other: Tensor) -> None:
            gpu.kernel(300e-6, 12)

    functional = SimpleNamespace(scaled_dot_product_attention=lambda *qkv, is_causal: gpu.kernel(150e-6))
    torch = SimpleNamespace(cuda=gpu, bfloat16="bf16", randn=lambda *size, **where: Tensor())
    torch.empty_like, torch.nn = lambda one: Tensor(), SimpleNamespace(functional=functional)
    where = SimpleNamespace(spec="cuda:0", available_bytes=80 << 30, units=SMS)
    cuda_extras.measure_extras(
        torch,
        where,  # type: ignore[arg-type]
        lambda group, name, value: kept.__setitem__(f"{group} {name}", value),
        notes.append,
    )
    assert notes == []
    expected = {f"overlap {one}_by_sms_{sms}" for one in ("gemm", "attention") for sms in (8, 16, 32)}
    assert set(kept) == expected | {"overlap compute_by_copy", "overlap attention_by_copy"}
    for sms in (8, 16, 32):
        assert kept[f"overlap gemm_by_sms_{sms}"] == pytest.approx(SMS / (SMS - sms) - 1, rel=0.02)
        assert kept[f"overlap attention_by_sms_{sms}"] == pytest.approx(0.0, abs=0.01)
