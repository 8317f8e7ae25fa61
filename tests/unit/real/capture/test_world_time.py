"""When calls in a virtual world are done, and what waits for them."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed

from worlds import Clock, Hands, hands, nothing_left, opened  # noqa: E402, F401

from windtunnel.real.capture.virtual_world import work as virtual_work  # noqa: E402
from windtunnel.studies.programs.communication import Communication  # noqa: E402


def test_a_wait_takes_what_the_listener_says(hands: Hands) -> None:  # noqa: F811
    clock = Clock(0.05, hands)
    with opened(0, 2, listener=clock):
        for _ in range(7):
            begun = hands.now
            dist.all_reduce(torch.ones(2))
            assert 0.05 <= hands.now - begun < 0.0501
        begun = hands.now
        work = dist.all_reduce(torch.ones(2), async_op=True)
        assert not work.is_completed()
        assert hands.now - begun < 1e-4
        hands.sleep(0.06)
        assert work.is_completed()
        begun = hands.now
        work.wait()
        assert hands.now - begun < 1e-4
    assert len(clock.begun) == len(clock.waits) == 8
    assert all(one is other for one, other in zip(clock.begun, clock.waits, strict=True))


def test_futures_complete_when_due_and_chain() -> None:
    with opened(0, 4, listener=Clock(0.05)):
        x = torch.ones(2)
        begun = time.perf_counter()
        future = dist.all_reduce(x, async_op=True).get_future()
        chained = future.then(lambda done: done.value()[0] * 10)
        assert not future.done()
        assert chained.wait().tolist() == [40, 40]
        assert time.perf_counter() - begun > 0.045
        never = dist.all_reduce(x, async_op=True).get_future()
    assert never.done()  # leaving the world completes what is still due


def test_works_and_futures_hold_no_tensors_that_python_does_not() -> None:
    with opened(0, 2, listener=Clock(0.01)) as world:
        import weakref

        def issue() -> Any:
            x = torch.ones(1000)
            work = dist.all_reduce(x, async_op=True)
            return weakref.ref(x), work

        held, work = issue()
        gc.collect()
        assert held() is not None  # as the real library's handle
        work.wait()
        del work
        assert held() is None
        y = torch.ones(1000)
        gone = weakref.ref(y)
        dist.all_reduce(y, async_op=True).get_future().wait()
        del y
        time.sleep(0.01)
        gc.collect()
        assert gone() is None
        assert len(world.works._kept) == 0


def test_a_batch_is_one_call_among_many_for_nccl_and_several_for_gloo(hands: Hands) -> None:  # noqa: F811
    for backend, count in (("nccl", 1), ("gloo", 4)):
        clock = Clock(0.02, hands)
        with opened(1, 4, backend, listener=clock):
            ops = [dist.P2POp(dist.isend, torch.ones(3), peer) for peer in (0, 2)]
            ops += [dist.P2POp(dist.irecv, torch.ones(3), peer) for peer in (0, 2)]
            begun = hands.now
            works = dist.batch_isend_irecv(ops)
            assert len(works) == count
            for work in works:
                work.wait()
            assert 0.02 <= hands.now - begun < 0.0201  # side by side
        assert [call.kind for call in clock.waits] == ["send", "send", "recv", "recv"]
        assert {call.batch for call in clock.begun} == ({1} if backend == "nccl" else {0})


def test_a_coalescing_manager_waits_for_all() -> None:
    clock = Clock(0.02)
    with opened(1, 4, "nccl", listener=clock):
        x, y = torch.ones(3), torch.ones(2)
        with dist._coalescing_manager(async_ops=True) as manager:
            dist.all_reduce(x)
            dist.all_reduce(y)
        manager.wait()
        assert (x.tolist(), y.tolist()) == ([4] * 3, [4] * 2)
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
            dist.all_gather_into_tensor(torch.empty(12), x)
            dist.all_gather_into_tensor(torch.empty(8), y)
        manager.wait()
        assert len(clock.waits) == 2
        with dist._coalescing_manager():
            dist.reduce_scatter_tensor(out := torch.empty(1), torch.arange(4.0))
        assert out.item() == 4
    assert [call.bytes for call in clock.begun] == [20, 80, 16]


class Later:
    """A time that somebody says."""

    def __init__(self) -> None:
        self.time: float | None = None

    def end_s(self) -> float | None:
        return self.time

    def seconds_left(self) -> float:
        return 1e-3 if self.time is None else self.time - time.perf_counter()


class Each:
    """A listener with a time for each call."""

    def __init__(self) -> None:
        self.times: list[Later] = []

    def begin(self, call: Communication) -> Later:
        self.times.append(Later())
        return self.times[-1]

    def on_wait(self, call: Communication) -> None:
        pass


def test_a_future_completes_though_an_earlier_one_is_not_known_to() -> None:
    each = Each()
    with opened(0, 4, listener=each):
        one, other = (dist.all_reduce(torch.ones(2), async_op=True).get_future() for _ in range(2))
        each.times[1].time = 0.0
        other.wait()
        assert not one.done()
        each.times[0].time = 0.0
        one.wait()


def test_a_coalesced_call_is_done_when_the_last_that_was_not_known_is() -> None:
    each = Each()
    with opened(0, 4, "nccl", listener=each) as world:
        works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(2)]
        joined = world.works.join([virtual_work.VirtualWork((), one, (), world.works) for one in each.times])
        for later in (0, 1):
            assert not joined.is_completed()
            each.times[later].time = 0.0
        assert joined.is_completed()
        for work in works:
            work.wait()
