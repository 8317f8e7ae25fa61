"""A replica of the serving study on a clock of its own: slower by a factor, and standing still while weights change.

    wall = factor x own + shift,   a pause of d adds d to shift

So a pause keeps every answer under way and its cache. `begin_again` drops the cache: prompt and tokens so far of each
answer are computed again, as frameworks do that abort and send requests anew.
"""

from __future__ import annotations

from typing import final

from windtunnel.studies.serving.build import Engine
from windtunnel.studies.serving.replica.interruption import unfinished
from windtunnel.studies.serving.replica.replica import Replica
from windtunnel.studies.serving.replica.sequence import NEVER, Sequence

PARTS = 1024  # of one: how finely a factor is kept


@final
class Generator:
    """One replica that generates. It is a `Server` of the serving study's loop."""

    __slots__ = (
        "_busy_ticks", "_engine", "_parts", "_preemptions", "_replica", "_shift_ns", "_stands_until_ns"
    )  # fmt: skip

    def __init__(self, engine: Engine, factor: float = 1.0) -> None:
        self._engine = engine
        self._replica: Replica = engine.replica()
        self._parts = max(1, round(PARTS * factor))
        self._shift_ns = 0
        self._stands_until_ns = 0
        self._busy_ticks = self._preemptions = 0  # of replicas before this one

    def _own(self, now_ns: int) -> int:
        now_ns = max(now_ns, self._stands_until_ns)
        return (now_ns - self._shift_ns) * PARTS // self._parts

    @property
    def next_ns(self) -> int:
        """When its current event ends, on the wall."""
        own_ns = self._replica.next_ns
        return NEVER if own_ns == NEVER else -(-own_ns * self._parts // PARTS) + self._shift_ns

    @property
    def block_size(self) -> int:
        """Tokens of a block of its cache."""
        return self._engine.rules.block_size

    @property
    def load(self) -> int:
        """Answers under way and waiting."""
        return self._replica.load

    @property
    def outstanding_tokens(self) -> int:
        """Prompt tokens that wait or are being computed."""
        return self._replica.outstanding_tokens

    def known_blocks(self, sequence: Sequence) -> int:
        """Leading blocks of a prompt that the cache has already."""
        return self._replica.known_blocks(sequence)

    def submit(self, sequence: Sequence, now_ns: int) -> None:
        """An answer begins, or goes on after a tool."""
        self._replica.submit(sequence, self._own(now_ns))

    def advance(self) -> list[Sequence]:
        """The current event ends."""
        return self._replica.advance()

    def pause(self, now_ns: int, length_ns: int) -> None:
        """Stand still for a while; what is under way goes on where it was."""
        self._stands_until_ns = now_ns + length_ns
        self._shift_ns += length_ns

    def taken_away(self, now_ns: int) -> list[Sequence]:
        """All answers here, without their caches; the generator is empty then."""
        own_ns = self._own(now_ns)
        if not self._replica.load:
            return []
        self._busy_ticks += self._replica.tally.busy_ticks
        self._preemptions += self._replica.tally.preemptions
        here = unfinished(self._replica, own_ns)
        self._replica = self._engine.replica()
        return here

    def begin_again(self, now_ns: int) -> None:
        """Every answer here is computed again up to where it was."""
        for sequence in self.taken_away(now_ns):
            self._replica.submit(sequence, self._own(now_ns))

    @property
    def busy_ticks(self) -> int:
        """Ticks of its own clock in which it worked."""
        return self._busy_ticks + self._replica.tally.busy_ticks

    @property
    def preemptions(self) -> int:
        """Answers put back for want of cache."""
        return self._preemptions + self._replica.tally.preemptions
