"""Requests that wait for replicas on spot machines, and how they come to them.

One queue in the order of arrival: what was interrupted is older than all that still wait, and comes first. A replica
takes a batch when it is free. With `ahead` it gets requests before: the one with the fewest, while that has less than
so many full batches. What a replica has when it is free is then its next batch, however small that is.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from windtunnel.studies.serving.spot.state import Replica, ServerRules


@dataclass(eq=False, slots=True)
class Queue:
    """Requests by number, which is the order of their arrival."""

    rules: ServerRules
    _waiting: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, *requests: int) -> None:
        """They wait, again or for the first time."""
        for request in requests:
            heapq.heappush(self._waiting, request)

    def take_back(self, replica: Replica) -> None:
        """What a replica got ahead waits again."""
        self.put(*replica.ahead)
        replica.ahead.clear()

    def hand_out(self, replicas: Mapping[int, Replica], most: int) -> Iterator[tuple[int, list[int]]]:
        """(replica, batch of at most `most`) of all that begin one now."""
        for number, replica in replicas.items():
            if replica.open and replica.batch is None and (replica.ahead or self._waiting):
                own = replica.ahead or self._pop(most)
                size = self._size(len(own), most)
                replica.ahead = own[size:]
                yield number, own[:size]
        if not self.rules.ahead:
            return
        there = [replica for replica in replicas.values() if replica.open]
        while self._waiting and there:
            least = min(there, key=_load)
            if _load(least) >= self.rules.ahead * most:
                return
            least.ahead += self._pop(most)

    def _pop(self, most: int) -> list[int]:
        return [heapq.heappop(self._waiting) for _ in range(self._size(len(self._waiting), most))]

    def _size(self, there: int, most: int) -> int:
        size = min(there, most)
        return 1 << (size.bit_length() - 1) if self.rules.powers_of_two and size else size


def _load(replica: Replica) -> int:
    return len(replica.ahead) + (0 if replica.batch is None else len(replica.batch.requests))
