"""Clients: pure state machines from (time, completion) to what is sent next.

front end      holds requests back until their prompts are read
open loop      arrivals ignore completions
closed loop    `concurrency` requests in flight; all slots send at the start, each completion sends the next
sessions       an answer brings the session's next turn, after what its user or tool takes
"""

from __future__ import annotations

from collections.abc import Sequence
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


@final
class Sessions:
    """Turn after turn of each session; sessions begin at their times, or as many at once as there are lanes."""

    def __init__(self, workload: Workload) -> None:
        assert workload.turns is not None
        self._following = workload.turns.following.tolist()
        self._delays = workload.turns.delay_ns.tolist()
        firsts = workload.turns.firsts
        if workload.arrival_ns is not None:
            times = workload.arrival_ns.tolist()
            self._start, self._later = sorted((times[first], first) for first in firsts), []
        else:
            lanes = workload.concurrency or 1
            self._start = [(self._delays[first], first) for first in firsts[:lanes]]
            self._start.sort()
            self._later = firsts[lanes:][::-1]

    def start(self) -> list[tuple[int, int]]:
        """First turns."""
        return list(self._start)

    def answered(self, index: int, now_ns: int) -> list[tuple[int, int]]:
        """The session's next turn; after its last, the lane's next session."""
        following = self._following[index]
        if following < 0:
            if not self._later:
                return []
            following = self._later.pop()
        return [(now_ns + self._delays[following], following)]


@final
class FrontEnd:
    """Requests as they reach the engine: prompts are read one after the other, each so many ns a token."""

    def __init__(self, client: Client, prompts: Sequence[int], token_ns: float) -> None:
        self._client, self._prompts, self._token_ns = client, prompts, token_ns
        self._free_ns = 0
        self.waited_ns: dict[int, int] = {}  # from when a request was sent until its prompt was read

    def start(self) -> list[tuple[int, int]]:
        """What the client sends, when it is read."""
        return self._read(self._client.start())

    def answered(self, index: int, now_ns: int) -> list[tuple[int, int]]:
        """The same of what an answer brings about."""
        return self._read(self._client.answered(index, now_ns))

    def _read(self, requests: list[tuple[int, int]]) -> list[tuple[int, int]]:
        read = []
        for at_ns, index in requests:
            self._free_ns = max(self._free_ns, at_ns) + round(self._token_ns * self._prompts[index])
            self.waited_ns[index] = self._free_ns - at_ns
            read.append((self._free_ns, index))
        return read


def client_of(workload: Workload) -> Client:
    """The client that a workload asks for."""
    if workload.turns is not None:
        return Sessions(workload)
    return OpenLoop(workload) if workload.concurrency is None else ClosedLoop(workload)
