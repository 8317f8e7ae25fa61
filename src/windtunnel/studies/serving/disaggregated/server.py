"""A pool of prefill replicas and a pool of decode replicas that pull their caches: one server to the event loop.

    request -> least loaded prefill -> prompt computed -> waits there until a decode replica has room
            -> pull: start-up + bytes / (link of both ends) -> joins the decode batch;  the source's blocks are free

The prefill side's memory is the queue (DistServe, vLLM's NIXL connector). A replica sends, and takes, one cache after
the other, so flows of one replica share its links in turn. The first token reaches the client when the decode side has
the cache. A sequence that is preempted on the decode side is computed again there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import final

from windtunnel.studies.serving.loop import Loop
from windtunnel.studies.serving.replica.handover import adopt, can_hold, give_up, hold, let_go
from windtunnel.studies.serving.replica.replica import Replica
from windtunnel.studies.serving.replica.sequence import Sequence


@final
class Disaggregated:
    """Prefill replicas, decode replicas and the copies between them."""

    def __init__(self, prefill: list[Replica], decode: list[Replica], copy_ns: Callable[[int], int]) -> None:
        self.prefill = prefill
        self.decode = decode
        self.copy_ns = copy_ns  # of a prompt of so many tokens
        self._loop = Loop(self._ended)  # prefill replicas come first
        self._now_ns = 0
        self._finished: list[Sequence] = []
        self._copies: dict[int, Sequence] = {}  # by request
        self.ready: deque[tuple[Sequence, int, int]] = deque()  # prompts that wait to be pulled, where, since when
        self.unwanted: set[int] = set()  # requests whose copy nobody waits for any more
        self._out_free = [0] * len(prefill)
        self._in_free = [0] * len(decode)
        for place, replica in enumerate(prefill):
            replica.on_first = self._taker(place)
        for replica in (*prefill, *decode):
            self._loop.add(replica)

    @property
    def next_ns(self) -> int:
        """When something happens next."""
        return self._loop.next_ns

    @property
    def load(self) -> int:
        """Requests that are here."""
        return sum(replica.load for replica in (*self.prefill, *self.decode)) + len(self.ready)

    @property
    def outstanding_tokens(self) -> int:
        """Prompt tokens still to be computed."""
        return sum(replica.outstanding_tokens for replica in self.prefill)

    @property
    def waiting(self) -> list[Sequence]:
        """Requests whose prompt has not begun, or is done and waits for a place."""
        return [sequence for replica in self.prefill for sequence in replica.waiting] + [
            sequence for sequence, _, _ in self.ready
        ]

    @property
    def copying(self) -> list[Sequence]:
        """Requests whose cache is on its way."""
        return [*self._copies.values()]

    def known_blocks(self, sequence: Sequence) -> int:
        """Leading blocks of a prompt that a prefill replica has already."""
        return max(replica.known_blocks(sequence) for replica in self.prefill)

    def look_again(self, place: int, now_ns: int) -> None:
        """Somebody has left a replica (prefill replicas come first): its event may end earlier, and there is room."""
        self._loop.watch(place)
        self._pull(now_ns)

    def stop(self) -> None:
        """Its machines are gone."""
        self._copies.clear()
        self.ready.clear()
        self._loop = Loop(self._ended)

    def submit(self, sequence: Sequence, now_ns: int) -> None:
        """A request goes to the prefill replica with the fewest tokens to compute."""
        self._now_ns = now_ns
        place = min(range(len(self.prefill)), key=lambda at: (self.prefill[at].outstanding_tokens, at))
        self.prefill[place].submit(sequence, now_ns)
        self._loop.watch(place)

    def advance(self) -> list[Sequence]:
        """The next thing happens; returns the requests that finished with it."""
        self._finished = []
        self._now_ns = self._loop.next_ns
        self._loop.step()
        self._pull(self._now_ns)
        return self._finished

    def _ended(self, now_ns: int, place: int, finished: list[Sequence]) -> None:
        self._finished = finished

    def _copied(self, sequence: Sequence, source: int, target: int, now_ns: int) -> None:
        """A cache has reached the decode side."""
        del self._copies[sequence.index]
        if sequence.generated == 1:
            sequence.first_ns = now_ns
        give_up(self.prefill[source], sequence, now_ns)
        self._loop.watch(source)
        if sequence.index in self.unwanted:
            self.unwanted.discard(sequence.index)
            let_go(self.decode[target], sequence, now_ns)
        else:
            adopt(self.decode[target], sequence, now_ns)
        self._loop.watch(len(self.prefill) + target)

    def _taker(self, place: int) -> Callable[[Sequence], bool]:
        def take(sequence: Sequence) -> bool:
            if sequence.generated >= sequence.output:
                return False  # this token is the last
            self.ready.append((sequence, place, self._now_ns))
            return True

        return take

    def _pull(self, now_ns: int) -> None:
        """Start the copies for which a decode replica has room, in the order in which prompts were done."""
        while self.ready:
            sequence, source, since = self.ready[0]
            order = sorted(range(len(self.decode)), key=lambda at: (self.decode[at].load, at))
            target = next((at for at in order if can_hold(self.decode[at], sequence)), None)
            if target is None:
                return
            self.ready.popleft()
            hold(self.decode[target], sequence)
            begin = max(now_ns, self._out_free[source], self._in_free[target])
            sequence.waited_ns += begin - since
            end = begin + self.copy_ns(sequence.known)
            self._out_free[source] = self._in_free[target] = end
            self._copies[sequence.index] = sequence
            self._loop.at(end, partial(self._copied, sequence, source, target))
