"""A decode replica alone, its prompts computed elsewhere in no time: what decode capacity is by itself.

A request waits until the replica can hold its cache, then joins the batch. Its first token is there on arrival, so its
time per output token includes that wait, as where decoding pulls caches.
"""

from __future__ import annotations

from collections import deque
from typing import final

from windtunnel.studies.serving.replica.handover import adopt, can_hold, hold
from windtunnel.studies.serving.replica.replica import Replica
from windtunnel.studies.serving.replica.sequence import Sequence


@final
class DecodeOnly:
    """One replica that is handed caches in the order of arrival."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._ready: deque[Sequence] = deque()

    @property
    def next_ns(self) -> int:
        """When something happens next."""
        return self.replica.next_ns

    @property
    def load(self) -> int:
        """Requests that are here."""
        return self.replica.load + len(self._ready)

    @property
    def outstanding_tokens(self) -> int:
        """No prompt is computed here."""
        return 0

    def known_blocks(self, sequence: Sequence) -> int:
        """None: prompts are computed elsewhere."""
        return 0

    def submit(self, sequence: Sequence, now_ns: int) -> None:
        """A request with its prompt computed. One that wants a single token needs no decoding: it is given two."""
        sequence.output = max(2, sequence.output)
        sequence.computed, sequence.generated = sequence.known, 1
        sequence.queued_ns = sequence.first_ns = now_ns
        self._ready.append(sequence)
        self._take(now_ns)

    def advance(self) -> list[Sequence]:
        """The replica's event ends; returns the finished."""
        now_ns = self.replica.next_ns
        finished = self.replica.advance()
        self._take(now_ns)
        return finished

    def _take(self, now_ns: int) -> None:
        while self._ready and can_hold(self.replica, self._ready[0]):
            sequence = self._ready.popleft()
            sequence.scheduled_ns = now_ns
            hold(self.replica, sequence)
            adopt(self.replica, sequence, now_ns)
