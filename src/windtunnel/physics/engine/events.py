"""Clocks of what decides as it goes: replicas that batch, schedulers that place, hosts that fail.

`EventQueue` is a clock and a heap: the next event is the least (time, priority, sequence), so events of one time have a
decided order and the same input gives the same bytes. `machine.run` drives a state machine on it.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar, final

Event = TypeVar("Event")

COMPACT_FROM = 64  # cancelled entries from which the heap is rebuilt once they outnumber the rest


class EventQueue(Generic[Event]):
    """A clock that only moves forward and the events that lie ahead of it."""

    __slots__ = ("_cancelled", "_heap", "_sequence", "now_ns")

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns
        self._heap: list[tuple[int, int, int, Event]] = []
        self._sequence = 0
        self._cancelled: set[int] = set()

    def push(self, time_ns: int, event: Event, priority: int = 0) -> int:
        """Add an event; the ticket returned cancels it. AssertionError for a time that is past."""
        assert time_ns >= self.now_ns, f"an event at {time_ns} ns, when it is already {self.now_ns} ns"
        ticket = self._sequence = self._sequence + 1
        heappush(self._heap, (time_ns, priority, ticket, event))
        return ticket

    def cancel(self, ticket: int) -> None:
        """Forget a pending event. The ticket must not have been handed over or cancelled before."""
        self._cancelled.add(ticket)
        if len(self._cancelled) > COMPACT_FROM and 2 * len(self._cancelled) > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2] not in self._cancelled]
            heapify(self._heap)
            self._cancelled.clear()

    def next_ns(self) -> int | None:
        """When the next event comes; None if there is none."""
        while self._heap and self._heap[0][2] in self._cancelled:
            self._cancelled.discard(heappop(self._heap)[2])
        return self._heap[0][0] if self._heap else None

    def pop(self) -> tuple[int, Event, int]:
        """Move the clock to the next event and return (time in ns, event, ticket). IndexError if there is none."""
        cancelled = self._cancelled
        while True:
            time_ns, _, ticket, event = heappop(self._heap)
            if cancelled and ticket in cancelled:
                cancelled.discard(ticket)
                continue
            self.now_ns = time_ns
            return time_ns, event, ticket

    def __len__(self) -> int:
        return len(self._heap) - len(self._cancelled)


@final
class NextEnds:
    """When each of a number of things ends next, where nothing else happens beside them: cheaper than events.

    Of one time the least place comes first.
    """

    __slots__ = ("_at_ns", "_heap", "_never_ns")

    def __init__(self, count: int, never_ns: int) -> None:
        self._at_ns = [never_ns] * count
        self._heap: list[tuple[int, int]] = []  # with entries that are no longer true
        self._never_ns = never_ns

    def move(self, place: int, end_ns: int) -> None:
        """A thing ends at another time than was said; `never_ns`: not at all."""
        if end_ns != self._at_ns[place]:
            self._at_ns[place] = end_ns
            if end_ns < self._never_ns:
                heappush(self._heap, (end_ns, place))

    def run(self, until_ns: int, end: Callable[[int], int]) -> None:
        """Let all end that do up to a time, that included; `end` says when the thing at a place ends after that."""
        heap, at_ns, never_ns = self._heap, self._at_ns, self._never_ns
        while heap and (entry := heap[0])[0] <= until_ns:
            end_ns, place = entry
            if at_ns[place] != end_ns:
                heappop(heap)
                continue
            next_ns = at_ns[place] = end(place)
            if next_ns < never_ns:
                heapreplace(heap, (next_ns, place))
            else:
                heappop(heap)
