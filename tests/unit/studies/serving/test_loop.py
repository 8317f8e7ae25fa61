"""The one loop: an entry for each server, moved when its end moves; of one time by priority, then as it came."""

from __future__ import annotations

import gc

import pytest

from windtunnel.studies.serving.loop import Loop, simulate
from windtunnel.studies.serving.replica.sequence import NEVER, Sequence
from windtunnel.studies.serving.workload.requests import Workload


class Fixed:
    """A server whose ends are given."""

    load = outstanding_tokens = 0

    def __init__(self, *ends_ns: int) -> None:
        self.ends = [*ends_ns]

    @property
    def next_ns(self) -> int:
        return self.ends[0] if self.ends else NEVER

    def known_blocks(self, one: Sequence) -> int:
        return 0

    def submit(self, one: Sequence, now_ns: int) -> None:
        self.ends.insert(0, now_ns + one.output)

    def advance(self) -> list[Sequence]:
        del self.ends[0]
        return []


def test_ends_come_by_time_then_priority_and_an_end_that_moves_comes_once() -> None:
    came: list[tuple[int, int | str]] = []
    loop = Loop(lambda now_ns, place, finished: came.append((now_ns, place)))
    first, second = Fixed(10, 30), Fixed(10, 20)
    for place, server in enumerate((first, second)):
        loop.watch(loop.add(server, 1 - place))
    loop.at(10, lambda now_ns: came.append((now_ns, "after")), 2)
    loop.at(10, lambda now_ns: came.append((now_ns, "before")), -1)
    assert loop.next_ns == 10
    loop.run(10)
    assert came == [(10, "before"), (10, 1), (10, 0), (10, "after")]
    first.submit(Sequence(0, 1, 5, 12), 12)  # now it ends at 17, and again at 30
    loop.watch(0)
    loop.run(19)
    assert came[4:] == [(17, 0)]
    assert loop.next_ns == 20
    loop.run()
    assert came[5:] == [(20, 1), (30, 0)]
    assert loop.next_ns == NEVER


def test_a_server_that_goes_ends_nothing_and_another_takes_its_place() -> None:
    came: list[int] = []
    loop = Loop(lambda now_ns, place, finished: came.append(now_ns))
    place = loop.add(Fixed(10))
    loop.watch(place)
    loop.put(place, None)
    assert loop.next_ns == NEVER
    loop.put(place, Fixed(12))
    loop.run()
    assert came == [12]


class FailingServer(Fixed):
    """A server that cannot take what it is sent."""

    def submit(self, one: Sequence, now_ns: int) -> None:
        assert not gc.isenabled()
        raise RuntimeError("full")


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_as_before_even_where_a_run_fails(enabled: bool) -> None:
    load = Workload([10, 20], [5, 5], [0, 10])
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(RuntimeError, match="full"):
            simulate(load, [FailingServer()], None, block_size=16)
        assert gc.isenabled() is enabled
        simulate(load, [Fixed()], None, block_size=16)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
