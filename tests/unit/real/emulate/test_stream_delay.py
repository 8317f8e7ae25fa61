"""Communications in the order of streams, on a device that is played."""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from windtunnel.real.capture.arguments import Launch
from windtunnel.real.capture.virtual_world.peer_data import Exchange, PeerPolicy
from windtunnel.real.emulate.clock.stream_delay import BEHIND, StreamDelay, stream_holds
from windtunnel.real.emulate.observe import ObservedStep
from windtunnel.real.emulate.peers.cohort import Watched
from windtunnel.real.emulate.peers.host_program import HostProgram
from windtunnel.real.emulate.peers.peers_replay import Replay
from windtunnel.real.emulate.rank import local_device
from windtunnel.studies.programs.communication import Communication

PRICE = 0.5


@dataclass
class Stream:
    """Its clock: when all it was given is done."""

    at: float = 0.0


@dataclass
class Played:
    """A GPU whose kernels take what they are said to; the host takes no time."""

    now: Stream = field(default_factory=Stream)
    streams: dict[str, Stream] = field(default_factory=dict)
    spun: list[float] = field(default_factory=list)
    passed: float = float("inf")  # events after this have not come yet

    def current(self) -> Stream:
        return self.now

    def stream(self, name: str) -> Stream:
        return self.streams.setdefault(name, Stream())

    def record(self, stream: Stream) -> float:
        return stream.at

    def wait(self, stream: Stream, event: float) -> None:
        stream.at = max(stream.at, event)

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.now = self.now, stream
        yield
        self.now = before

    def mark(self, stream: Stream) -> float:
        return stream.at

    def spin(self, stream: Stream, seconds: float, since: float) -> None:
        self.spun.append(seconds)
        stream.at = max(stream.at, since + seconds)

    def seconds(self, first: float, then: float) -> float | None:
        return None if then > self.passed else then - first


@dataclass
class Tensor:
    is_cuda: bool = True


def call(sequence: int, group: str = "0") -> Communication:
    return Communication("all_reduce", group, (0, 1), 0, 1024, sequence=sequence)


def exchange(made: Communication) -> Exchange:
    return Exchange(made, (Tensor(),), (Tensor(),), lambda tensor: None)


def nothing(exchange: Exchange) -> None:
    """Fills nothing."""


class Script:
    """compute 1 s, all-reduce, compute 0.2 s, wait, optimizer 0.3 s."""

    def __init__(self, holding: StreamDelay, device: Played) -> None:
        self.holding, self.device, self.number = holding, device, 0
        holding.end_step()
        self.step_s: list[float] = []

    def step(self) -> None:
        begun = self.device.now.at
        made = call(self.number)
        self.number += 1
        self.device.now.at += 1.0
        assert self.holding.begin(made) is None  # the host is not held up
        self.holding.fill(exchange(made))
        self.device.now.at += 0.2
        self.holding.on_wait(made)
        self.holding.optimizer()
        self.device.now.at += 0.3
        self.holding.end_step()
        self.step_s.append(self.device.now.at - begun)


def test_without_a_plan_it_holds_what_it_costs_on_its_own_stream() -> None:
    device = Played()
    script = Script(StreamDelay(device, lambda made: PRICE, PeerPolicy(nothing)), device)
    script.step()
    assert script.step_s == [pytest.approx(1.0 + 0.5 + 0.3)]  # 0.2 s of computing is hidden
    assert device.spun == [PRICE]


def test_steps_are_measured_by_events_and_the_plan_waits_for_a_slow_peer() -> None:
    device = Played()
    seen: list[ObservedStep] = []

    def replay(step: ObservedStep) -> list[Watched]:
        seen.append(step)
        import numpy as np

        program = HostProgram(0, step.calls, step.events, np.array([step.seconds]))
        job = Replay([(program, [0, 1])], 2, lambda made: PRICE, slow={1: 1.5})
        kept = job.watch([0])[0]
        job.run(2)
        return [one for one in kept if one.step == 1]

    holding = StreamDelay(device, lambda made: PRICE, PeerPolicy(nothing), on_step=replay)
    script = Script(holding, device)
    for _ in range(BEHIND + 6):
        script.step()
    assert seen[0].seconds == pytest.approx((1.0, 0.2, 0.3))
    assert seen[-1].seconds == pytest.approx((1.0, 0.2, 0.3))  # holding does not count as computing
    # The peer takes 1.5 x (1.0 + 0.3) s from the end of its collective to its next arrival, and so does the job.
    assert script.step_s[-1] == pytest.approx(1.5 * 1.3 + 0.5)


def test_tensors_are_kept_until_somebody_waits() -> None:
    device = Played()
    holding = StreamDelay(device, lambda made: PRICE, PeerPolicy(nothing))
    holding.end_step()
    holding.fill(exchange(call(0)))
    (held,) = holding._open.values()
    assert len(held.tensors) == 2
    holding.on_wait(call(0))
    assert held.tensors == ()
    holding.fill(exchange(call(1)))  # a future that nobody waits for: let go with the step after
    (held,) = holding._open.values()
    holding.end_step()
    holding.end_step()
    assert held.tensors == ()
    assert not holding._open


def test_host_tensors_are_filled_as_ever() -> None:
    device, filled = Played(), []
    holding = StreamDelay(device, lambda made: PRICE, PeerPolicy(filled.append))
    holding.fill(Exchange(call(0), (Tensor(False),), (Tensor(False),), lambda tensor: None))
    assert len(filled) == 1
    assert device.spun == []


def test_a_call_on_the_host_takes_its_time_on_the_host() -> None:
    holding = StreamDelay(Played(), lambda made: 0.05, PeerPolicy(nothing))
    begun = time.perf_counter()
    holding.fill(Exchange(call(0), (Tensor(False),), (Tensor(False),), lambda tensor: None))
    holding.on_wait(call(0))
    assert time.perf_counter() - begun >= 0.05


def test_a_fill_that_takes_time_is_part_of_what_is_held() -> None:
    device = Played()

    def filled(_: Exchange) -> None:
        device.streams["0"].at += PRICE / 2

    script = Script(StreamDelay(device, lambda made: PRICE, PeerPolicy(filled)), device)
    script.step()
    assert script.step_s == [pytest.approx(1.0 + PRICE + 0.3)]


def test_a_step_whose_events_are_late_is_read_later() -> None:
    device, seen = Played(passed=0.0), list[ObservedStep]()

    def look(step: ObservedStep) -> list[Watched]:
        seen.append(step)
        return []

    script = Script(StreamDelay(device, lambda made: PRICE, PeerPolicy(nothing), on_step=look), device)
    for _ in range(BEHIND + 3):
        script.step()
    assert seen == []
    device.passed = float("inf")
    script.step()
    assert len(seen) == 4  # none was lost


def test_real_ranks_share_the_gpus_at_hand() -> None:
    assert [local_device(rank, [77, 3, 900], 2) for rank in (3, 77, 900)] == [0, 1, 0]
    assert local_device(77, [77], 1) == 0


class DriverPlayed:
    """`torch.cuda` as far as streams and their memory go; notes what was asked, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.device = 0

    def current_device(self) -> int:
        self.asked.append("current_device")
        return self.device

    def Stream(self) -> object:  # noqa: N802 - torch's
        self.asked.append("Stream")
        return object()


def test_the_device_is_asked_nothing_before_the_script_and_has_streams_of_each_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from windtunnel.errors import UserError
    from windtunnel.real.emulate.clock.cuda_device import TorchCuda

    torch = pytest.importorskip("torch")
    played = DriverPlayed()
    monkeypatch.setattr(torch, "cuda", played)
    device = TorchCuda(communicator_bytes=400 << 20)
    assert played.asked == []  # the script says first which GPU is its own
    held: list[int] = []
    monkeypatch.setattr(device.memory, "hold", lambda size: held.append(size) or len(held) < 4)
    first = device.stream("0")
    assert device.stream("0") is first
    for peer in range(3):  # messages: a stream for each, buffers once
        device.stream(f"1 send {peer}")
    assert len(held) == 2
    played.device = 1
    assert device.stream("0") is not first
    assert len(held) == 3
    with pytest.raises(UserError, match="no room for the 400 MiB"):
        device.stream("2")


def test_what_lies_behind_another_on_its_stream_is_held_from_there() -> None:
    def watched(begun: float, finish: float, group: str = "0") -> Watched:
        return Watched("communication", 0, begun, finish, call(0, group))

    found = stream_holds([watched(1.0, 2.0), watched(1.5, 3.0), watched(1.6, 2.0, "1")])
    assert [seconds for _, seconds in found] == pytest.approx([1.0, 1.0, 0.4])


def test_the_real_device_has_all_that_is_asked_of_it() -> None:
    """Its names against the protocol, without a GPU."""
    from windtunnel.real.emulate.clock.cuda_device import TorchCuda
    from windtunnel.real.emulate.clock.stream_delay import Device

    wanted: set[str] = {name for name in vars(Device) if not name.startswith("_")}
    assert wanted <= set(vars(TorchCuda))
    made: Any = TorchCuda
    assert made.__init__.__defaults__ == (16, 0)


class AllocatorPlayed:
    """`torch.cuda` as far as its allocator's figures go, in bytes."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def take(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)

    def memory_stats(self) -> dict[str, int]:
        return {"allocated_bytes.all.peak": self.peak, "reserved_bytes.all.peak": 2 * self.peak}

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.now

    def is_available(self) -> bool:
        return True

    is_initialized = is_available


def test_buffers_that_play_peers_are_no_part_of_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.real.emulate.memory import DevicePeak

    torch = pytest.importorskip("torch")
    played = AllocatorPlayed()
    monkeypatch.setattr(torch, "cuda", played)
    peak = DevicePeak()
    played.take(900)  # before it is looked at
    played.take(-900)
    peak.begin()

    def fill(_: Exchange) -> None:
        played.take(500)  # a copy that peers' data is made of
        played.take(-500)

    holding = StreamDelay(Played(), lambda call: PRICE, PeerPolicy(fill), filling=peak.apart)
    for script, most in ((100, 100), (-60, 100), (90, 130), (-130, 130)):
        played.take(script)
        holding.fill(exchange(call(0)))
        found = peak.read()
        assert found is not None
        assert found.allocated_bytes == most
        assert found.reserved_bytes == 2 * most


class RuntimePlayed:
    """libcudart, with room for so many bytes."""

    def __init__(self, room: int) -> None:
        self.room, self.held = room, 0

    def cudaMalloc(self, pointer: object, size: Any) -> int:  # noqa: N802 - CUDA's
        if self.held + size.value > self.room:
            return 2  # cudaErrorMemoryAllocation
        self.held += size.value
        return 0

    def cudaFree(self, pointer: object) -> int:  # noqa: N802 - CUDA's
        self.held = 0
        return 0


def test_memory_that_cannot_be_had_is_not_taken_for_held(monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.real.emulate.clock import cuda_device

    runtime = RuntimePlayed(700)
    monkeypatch.setattr(cuda_device, "_cudart", lambda: runtime)
    memory = cuda_device.NcclMemory()
    assert (memory.hold(400), memory.bytes) == (True, 400)
    assert (memory.hold(400), memory.bytes) == (False, 400)
    memory.release()
    assert (runtime.held, memory.bytes) == (0, 0)


def test_cuda_graphs_are_refused_and_a_real_rank_finds_its_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from windtunnel.errors import UserError
    from windtunnel.real.emulate import rank as real_rank

    torch = pytest.importorskip("torch")
    with pytest.raises(UserError, match="CUDA graphs are not supported"):
        real_rank._no_graphs()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    launch = Launch("train.py", (), False, 1024, 8)
    task: Any = {"folder": str(tmp_path), "rank": 900, "ranks": [3, 77, 900], "tape": [], "launch": asdict(launch)}
    for name, value in launch.environment(900).items():
        monkeypatch.setenv(name, value)  # so that what the rank sets goes again
    with real_rank._prepared(task):
        assert os.environ["LOCAL_RANK"] == "0"  # of the two GPUs here; on the cluster it is 4
        assert os.environ["RANK"] == "900"
