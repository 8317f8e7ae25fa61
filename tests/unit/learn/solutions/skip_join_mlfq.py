"""Lab 6, solved."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(eq=False)
class Request:
    """A request, as the scheduler sees it."""

    index: int
    used_ns: int = 0
    is_done: bool = False
    level: int = -1
    used_before_ns: int = 0
    ran_ns: int = 0


class SkipJoin:
    """Queues of requests."""

    def __init__(self, first_quantum_ns: int, levels: int, batch: int) -> None:
        self.first_quantum_ns = first_quantum_ns
        self.batch = batch
        self.queues: list[deque[Request]] = [deque() for _ in range(levels)]

    def quantum_ns(self, level: int) -> int:
        """Each twice the one above."""
        return self.first_quantum_ns * 2**level

    def join(self, request: Request, prefill_ns: int, now_ns: int) -> None:
        """Skip the levels whose quantum the prefill would use up."""
        level = 0
        while self.quantum_ns(level) < prefill_ns and level + 1 < len(self.queues):
            level += 1
        request.ran_ns = now_ns
        self._enter(request, level)

    def choose(self, now_ns: int) -> list[Request]:
        """Take the next batch."""
        chosen: list[Request] = []
        for queue in self.queues:
            while queue and len(chosen) < self.batch:
                chosen.append(queue.popleft())
        for request in chosen:
            request.ran_ns = now_ns
        return chosen

    def give_back(self, chosen: Sequence[Request]) -> None:
        """File those that ran."""
        for request in reversed(chosen):
            if request.is_done:
                continue
            spent = request.used_ns - request.used_before_ns >= self.quantum_ns(request.level)
            if spent and request.level + 1 < len(self.queues):
                self._enter(request, request.level + 1)
            else:
                self.queues[request.level].appendleft(request)

    def promote(self, now_ns: int, longest_wait_ns: int) -> None:
        """Lift the starved."""
        for queue in self.queues[1:]:
            for one in [one for one in queue if now_ns - one.ran_ns > longest_wait_ns]:
                queue.remove(one)
                self._enter(one, 0)

    def _enter(self, request: Request, level: int) -> None:
        request.level = level
        request.used_before_ns = request.used_ns
        self.queues[level].append(request)
