"""The event loop: order, cancelling, replay, and a queue with a closed form."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.physics.engine.events import EventQueue, NextEnds
from windtunnel.physics.engine.machine import At, Cancel, run

TIMES = st.lists(st.tuples(st.integers(0, 5), st.integers(-2, 2)), max_size=40)


@given(TIMES)
def test_events_come_by_time_then_priority_then_in_the_order_of_pushing(events: list[tuple[int, int]]) -> None:
    queue: EventQueue[int] = EventQueue()
    for number, (time_ns, priority) in enumerate(events):
        queue.push(time_ns, number, priority)
    popped = [queue.pop()[1] for _ in range(len(queue))]
    assert popped == sorted(range(len(events)), key=lambda one: (*events[one], one))


@given(TIMES, st.sets(st.integers(0, 39)))
def test_what_is_cancelled_never_comes_and_the_rest_keeps_its_order(
    events: list[tuple[int, int]], cancelled: set[int]
) -> None:
    queue: EventQueue[int] = EventQueue()
    tickets = [queue.push(time_ns, number, priority) for number, (time_ns, priority) in enumerate(events)]
    gone = {number for number in cancelled if number < len(events)}
    for number in sorted(gone):
        queue.cancel(tickets[number])
    left = sorted(set(range(len(events))) - gone, key=lambda one: (*events[one], one))
    assert len(queue) == len(left)
    assert [queue.pop()[1] for _ in left] == left
    assert queue.next_ns() is None


def test_many_cancelled_events_do_not_stay_in_memory() -> None:
    queue: EventQueue[int] = EventQueue()
    queue.push(10**9, -1)
    for number in range(10_000):
        queue.cancel(queue.push(number + 1, number))
    assert len(queue._heap) < 200
    assert queue.pop()[:2] == (10**9, -1)


def test_the_past_cannot_be_asked_for() -> None:
    queue: EventQueue[str] = EventQueue()
    queue.push(5, "a")
    queue.pop()
    with pytest.raises(AssertionError, match="already 5 ns"):
        queue.push(4, "b")


def test_a_key_is_replaced_and_cancelled() -> None:
    seen: list[tuple[int, str]] = []

    def handle(now_ns: int, event: str) -> Iterable[At[str] | Cancel]:
        seen.append((now_ns, event))
        if event == "begin":
            yield At(10, "timer", key="t")
            yield At(7, "timer", key="t")  # instead of the one at 10
            yield At(8, "other", key="o")
        if event == "timer":
            yield Cancel("o")
            yield Cancel("never there")
            yield At(now_ns, "again", key="t")  # the key is free once its event came

    assert run(handle, [At(0, "begin")]) == 7
    assert seen == [(0, "begin"), (7, "timer"), (7, "again")]


def test_nothing_after_until_is_handed_over() -> None:
    seen: list[int] = []

    def handle(now_ns: int, event: int) -> Iterable[At[int]]:
        seen.append(event)
        return (At(now_ns + 1, event + 1),)

    assert run(handle, [At(0, 0)], until_ns=4) == 4
    assert seen == [0, 1, 2, 3, 4]


class OneServer:
    """First come, first served: exponential or constant service from a given generator."""

    def __init__(self, service_ns: Iterable[int]) -> None:
        self.service_ns = iter(service_ns)
        self.queue: deque[int] = deque()
        self.busy = False
        self.sojourn_ns: list[int] = []

    def handle(self, now_ns: int, event: tuple[str, int]) -> Iterable[At[tuple[str, int]]]:
        what, arrived_ns = event
        if what == "arrive":
            self.queue.append(now_ns)
        else:
            self.sojourn_ns.append(now_ns - arrived_ns)
            self.busy = False
        if self.queue and not self.busy:
            self.busy = True
            yield At(now_ns + next(self.service_ns), ("depart", self.queue.popleft()))


def arrivals(count: int, mean_ns: float, seed: int) -> list[At[tuple[str, int]]]:
    draw, now, out = random.Random(seed), 0.0, []
    for _ in range(count):
        now += draw.expovariate(1 / mean_ns)
        out.append(At(round(now), ("arrive", round(now))))
    return out


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_server_with_exponential_service_waits_as_the_closed_form_says(load: float) -> None:
    # M/M/1: mean sojourn = service / (1 - load).  M/D/1: service (1 + load / (2 (1 - load))).
    count, service_ns = 60_000, 1e6
    draw = random.Random(1)
    served = OneServer(round(draw.expovariate(1 / service_ns)) for _ in range(count))
    run(served.handle, arrivals(count, service_ns / load, seed=2))
    assert len(served.sojourn_ns) == count
    assert sum(served.sojourn_ns) / count == pytest.approx(service_ns / (1 - load), rel=0.06)
    constant = OneServer(round(service_ns) for _ in range(count))
    run(constant.handle, arrivals(count, service_ns / load, seed=3))
    assert sum(constant.sojourn_ns) / count == pytest.approx(service_ns * (1 + load / 2 / (1 - load)), rel=0.04)


def test_a_log_replayed_on_a_fresh_machine_asks_for_the_same() -> None:
    service = [round(random.Random(7).expovariate(1e-6)) for _ in range(500)]
    log: list[tuple[int, tuple[str, int]]] = []
    asked: list[tuple[At[tuple[str, int]] | Cancel, ...]] = []
    first = OneServer(service)

    def watched(now_ns: int, event: tuple[str, int]) -> Iterable[At[tuple[str, int]] | Cancel]:
        log.append((now_ns, event))
        asked.append(tuple(first.handle(now_ns, event)))
        return asked[-1]

    run(watched, arrivals(500, 2e6, seed=8))
    again = OneServer(service)
    assert [tuple(again.handle(now_ns, event)) for now_ns, event in log] == asked
    assert again.sojourn_ns == first.sojourn_ns


def test_next_ends_come_in_the_order_of_time_and_place() -> None:
    """Against a list that is searched: ends that are moved to and fro, many of one time."""
    never = 10**6
    draw = random.Random(7)
    gaps = [[draw.randint(0, 3) for _ in range(60)] for _ in range(5)]
    moves = [(now, draw.randrange(5), now + draw.randint(0, 3)) for now in range(0, 90, 3)]

    def served() -> list[tuple[int, int]]:
        ends, clock, left, seen = NextEnds(5, never), [never] * 5, [list(gap) for gap in gaps], []

        def end(place: int) -> int:
            seen.append((clock[place], place))
            clock[place] = clock[place] + left[place].pop() if left[place] else never
            return clock[place]

        for now, place, at in moves:
            clock[place] = at
            ends.move(place, at)
            ends.run(now + 2, end)
        return seen

    def searched() -> list[tuple[int, int]]:
        clock, left, seen = [never] * 5, [list(gap) for gap in gaps], []
        for now, place, at in moves:
            clock[place] = at
            while min(clock) <= now + 2:
                first = clock.index(min(clock))
                seen.append((clock[first], first))
                clock[first] = clock[first] + left[first].pop() if left[first] else never
        return seen

    assert served() == searched()
    assert len(served()) > 100
