"""Replicas behind a router, driven by a clock instead of a queue of events. No I/O, no wall clock: it is told the time.

    submit, cancel, lose, restore (now)  ->  the replicas
    advance(now)                         ->  tokens that came since the last call, in the order of time
    next_ns(now)                         ->  when the next token or step end comes

`submit` and the others first let the replicas go on to `now`, so stamps are those of `simulate` for the same arrivals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import final

from windtunnel.studies.serving.disaggregated.units import (
    Unit,
    cancel,
    decoders_of,
    replicas_of,
    step_ends_ns,
    unfinished,
)
from windtunnel.studies.serving.loop import Loop, Router
from windtunnel.studies.serving.replica.interruption import blocks_held, tokens_given
from windtunnel.studies.serving.replica.replica import Replica
from windtunnel.studies.serving.replica.sequence import NEVER, Sequence


@dataclass(frozen=True, slots=True)
class Output:
    """Tokens of one request that became known together."""

    index: int
    at_ns: int  # of the last of them, as a client sees it
    tokens: int
    finished: bool
    lost: bool = False  # its replica is gone, and this is the end of it


@dataclass(frozen=True, slots=True)
class Gauge:
    """One replica at a moment."""

    alive: bool
    running: int
    waiting: int
    kv_use: float
    preemptions: int
    prefix_lookups: int  # tokens
    prefix_hits: int


@final
class Fleet:
    """Equal replicas of one model, or equal pairs of prefill and decode pools. `make` gives a fresh one.

    `delay_ns` passes between a token and its client.
    """

    def __init__(self, make: Callable[[], Unit], count: int, router: Router, delay_ns: int = 0) -> None:
        self.make = make
        self.replicas: list[Unit | None] = [make() for _ in range(count)]
        self._loop = Loop(self._ended)
        for place, replica in enumerate(self.replicas):
            assert replica is not None
            self._loop.add(replica, place)
        self.router = router
        self.delay_ns = delay_ns
        self._live: dict[int, tuple[int, Sequence]] = {}  # request -> its replica, itself
        self._sent: dict[int, int] = {}  # tokens, by request
        self._outputs: deque[Output] = deque()  # on their way to the client

    def __len__(self) -> int:
        return len(self._live)

    @property
    def able(self) -> Listed[int]:
        """Replicas that are there."""
        return [place for place, replica in enumerate(self.replicas) if replica is not None]

    def submit(self, sequence: Sequence, now_ns: int) -> bool:
        """A request arrives; False where no replica is left to take it."""
        self._catch_up(now_ns)
        able = self.able
        if not able:
            return False
        servers = [server for server in self.replicas if server is not None]
        chosen = self.router.choose(sequence, servers) if len(self.replicas) > 1 else 0
        place, server = able[chosen], servers[chosen]
        self._live[sequence.index] = (place, sequence)
        self._sent[sequence.index] = 0
        server.submit(sequence, now_ns)
        self._loop.watch(place)
        return True

    def cancel(self, index: int, now_ns: int) -> bool:
        """A client hangs up; False where its request has ended already."""
        self._catch_up(now_ns)
        entry = self._live.pop(index, None)
        if entry is None:
            return False
        del self._sent[index]
        server = self.replicas[entry[0]]
        assert server is not None
        there = cancel(server, index, now_ns)
        self._loop.watch(entry[0])
        assert there, f"request {index} is live, and its replica does not know it"
        return True

    def lose(self, place: int, now_ns: int) -> int:
        """A replica goes, with all its requests; returns how many those were."""
        self._catch_up(now_ns)
        server = self.replicas[place]
        if server is None:
            return 0
        sequences = unfinished(server, now_ns)
        self.replicas[place] = None
        self._loop.put(place, None)
        for sequence in sequences:
            del self._live[sequence.index], self._sent[sequence.index]
            self._outputs.append(Output(sequence.index, now_ns + self.delay_ns, 0, True, lost=True))
        return len(sequences)

    def restore(self, place: int, now_ns: int) -> None:
        """A lost replica is back, empty."""
        self._catch_up(now_ns)
        if self.replicas[place] is None:
            self.replicas[place] = unit = self.make()
            self._loop.put(place, unit)

    def advance(self, now_ns: int) -> list[Output]:
        """What clients have got by `now_ns` and were not told of yet."""
        self._catch_up(now_ns)
        pending, outputs = self._outputs, []
        while pending and pending[0].at_ns <= now_ns:
            outputs.append(pending.popleft())
        return outputs

    def next_ns(self, now_ns: int) -> int:
        """When `advance` has something new to tell or to do; `NEVER` where all is quiet."""
        ends = [step_ends_ns(replica, now_ns) for replica in self.replicas if replica is not None]
        if self._outputs:
            ends.append(self._outputs[0].at_ns)
        return min(ends, default=NEVER)

    def cache_config(self) -> dict[str, object]:
        """What is constant of the KV cache of a replica, under vLLM's names; of a pair of pools, of its decode side."""
        decoder = next((decoders_of(replica)[0] for replica in self.replicas if replica is not None), None)
        if decoder is None:
            return {}
        return {
            "block_size": decoder.rules.block_size,
            "enable_prefix_caching": decoder.rules.prefix_caching,
            "num_gpu_blocks": decoder.pool.total,
        }

    def gauges(self, now_ns: int) -> list[Gauge]:
        """Each replica as it stands."""
        self._catch_up(now_ns)
        gauges = []
        for replica in self.replicas:
            if replica is None:
                gauges.append(Gauge(False, 0, 0, 0.0, 0, 0, 0))
                continue
            parts = replicas_of(replica)
            blocks = sum(blocks_held(part, part.steps_done(now_ns)) for part in parts)
            gauges.append(
                Gauge(
                    True,
                    replica.load - len(replica.waiting),
                    len(replica.waiting),
                    blocks / sum(part.pool.total for part in parts),
                    sum(part.tally.preemptions for part in parts),
                    sum(part.pool.lookups * part.rules.block_size for part in parts),
                    sum(part.pool.hits * part.rules.block_size for part in parts),
                )
            )
        return gauges

    def _catch_up(self, now_ns: int) -> None:
        """Let every replica go on to `now_ns`, and note the tokens that this gives."""
        self._loop.run(now_ns)
        for replica in self.replicas:
            for part in () if replica is None else decoders_of(replica):
                done = part.steps_done(now_ns)
                if done:
                    self._note(part, done, now_ns)

    def _ended(self, now_ns: int, place: int, finished: list[Sequence]) -> None:
        for ended in finished:
            del self._live[ended.index]
            tokens = ended.output - self._sent.pop(ended.index)
            self._outputs.append(Output(ended.index, ended.last_ns + self.delay_ns, tokens, True))
        server = self.replicas[place]
        assert server is not None
        for part in decoders_of(server):
            self._note(part, part.steps_done(now_ns), now_ns)

    def _note(self, replica: Replica, done: int, at_ns: int) -> None:
        for sequence in replica.waiting:  # those that were preempted at once are at the head
            if not sequence.preemptions:
                break
            self._tell(sequence, sequence.generated, at_ns)
        for sequence in replica.adopted:
            self._tell(sequence, sequence.generated, at_ns)
        for sequence in replica.running.values():
            self._tell(sequence, tokens_given(replica, sequence, done), at_ns)

    def _tell(self, sequence: Sequence, tokens: int, at_ns: int) -> None:
        more = tokens - self._sent[sequence.index]
        if more > 0:
            self._sent[sequence.index] = tokens
            self._outputs.append(Output(sequence.index, at_ns + self.delay_ns, more, False))
