"""A virtual world opened for a test, a listener with a clock, and a check that nothing is left."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed


from windtunnel.real.capture.virtual_world import work as virtual_work  # noqa: E402
from windtunnel.real.capture.virtual_world.world import World  # noqa: E402
from windtunnel.studies.programs.communication import Communication  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = (dist.init_process_group, dist.all_gather_object, dist.ProcessGroup.barrier, sys.excepthook, dist.TCPStore)
    threads = set(threading.enumerate())
    yield
    after = (dist.init_process_group, dist.all_gather_object, dist.ProcessGroup.barrier, sys.excepthook, dist.TCPStore)
    assert before == after
    assert not dist.is_initialized()
    assert set(threading.enumerate()) <= threads


class Hands:
    """Time that goes on while somebody sleeps, and by a microsecond when somebody looks: however busy the machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    monkeypatch.setattr(virtual_work, "time", made := Hands())
    return made


class Clock:
    """A listener that lets everything take `seconds`, and remembers."""

    def __init__(self, seconds: float | None = None, hands: Any = time) -> None:
        self.seconds, self.hands = seconds, hands
        self.begun, self.waits = list[Communication](), list[Communication]()

    def begin(self, call: Communication) -> float | None:
        self.begun.append(call)
        return None if self.seconds is None else self.hands.perf_counter() + self.seconds

    def on_wait(self, call: Communication) -> None:
        self.waits.append(call)


@contextmanager
def opened(rank: int = 1, size: int = 4, backend: str | None = "gloo", **more: Any) -> Iterator[World]:
    with World(rank, size, **more) as world:
        dist.init_process_group(backend)
        yield world
