"""Clients: pure state machines from (time, completion) to what is sent next.

open loop      arrivals ignore completions
closed loop    `concurrency` requests in flight; all slots send at the start, each completion sends the next
"""

from __future__ import annotations

from typing import Protocol, final

from windtunnel.studies.serving.workload.requests import Workload


class Client(Protocol):
    """Who sends requests."""

    def start(self) -> list[tuple[int, int]]:
        """(ns, request) of all that is sent before anything is answered, in the order of time."""

    def answered(self, index: int, now_ns: int) -> list[tuple[int, int]]:
        """(ns, request) of what an answer brings about."""


@final
class OpenLoop:
    """Sends at the workload's own times."""

    def __init__(self, workload: Workload) -> None:
        assert workload.arrival_ns is not None
        times = workload.arrival_ns.tolist()
        self._arrivals = sorted(zip(times, range(len(times)), strict=True))

    def start(self) -> list[tuple[int, int]]:
        """All arrivals."""
        return self._arrivals

    def answered(self, index: int, now_ns: int) -> list[tuple[int, int]]:
        """Nothing: an open loop does not wait."""
        return []


@final
class ClosedLoop:
    """Keeps `concurrency` requests in flight until all are sent."""

    def __init__(self, workload: Workload) -> None:
        assert workload.concurrency is not None
        self._total = len(workload)
        self._next = min(workload.concurrency, self._total)

    def start(self) -> list[tuple[int, int]]:
        """One request per slot, at once."""
        return [(0, index) for index in range(self._next)]

    def answered(self, index: int, now_ns: int) -> list[tuple[int, int]]:
        """The slot's next request."""
        if self._next >= self._total:
            return []
        self._next += 1
        return [(now_ns, self._next - 1)]


def client_of(workload: Workload) -> Client:
    """The client that a workload asks for."""
    return OpenLoop(workload) if workload.concurrency is None else ClosedLoop(workload)
