"""The running batch: sequences that decode together, and when and with how many blocks each of them ends.

Sums over the batch (contexts, sequences by context modulo the block size, finishing steps) are kept, never the tokens
of each sequence, so k steps cost the same for 1 or 500. Time here is the count of decode steps; ends lie on the
engine's queue of events by their step.
"""

from __future__ import annotations

from typing import final

from windtunnel.physics.engine.events import EventQueue
from windtunnel.studies.serving.replica.runs import blocks_of, ticks_of
from windtunnel.studies.serving.replica.sequence import NEVER, Sequence
from windtunnel.studies.serving.replica.tally import GAP_SHIFT, Tally


@final
class RunningBatch:
    """Sequences that get a token in each decode step.

    `apart`: prompts have steps of their own, so that every first token comes before the steps that follow.
    """

    __slots__ = ("_apart", "_ends", "_late", "_size", "context_sum", "due", "end_sum", "next_end", "running",
        "stall_ticks", "steps", "tally")  # fmt: skip

    def __init__(self, block_size: int, tally: Tally, apart: bool) -> None:
        self.running: dict[int, Sequence] = {}  # by request, in the order of admission
        self.tally = tally
        self.steps = 0  # decode steps so far
        self.context_sum = 0
        self.end_sum = 0  # of the steps in which they end
        self.next_end = NEVER  # the least of those
        self.due = [0] * block_size  # sequences by (context - steps) mod block size
        self._size = block_size
        self._ends: EventQueue[Sequence] = EventQueue()
        self.stall_ticks = 0  # since the last token of the running ...
        self._late: dict[int, int] = {}  # ... but for so many, whose last token came at these ticks
        self._apart = apart

    @property
    def blocks_due(self) -> int:
        """Blocks that the next step takes."""
        return self.due[-self.steps % self._size]

    def blocks_for(self, steps: int) -> int:
        """Blocks that `steps` more decode steps take."""
        return blocks_of(steps, self.due, self.steps, len(self.running))

    def join(self, sequence: Sequence, clock: int) -> None:
        """A sequence whose prompt is computed decodes from the next step on."""
        steps, context = self.steps, sequence.known
        sequence.context = context
        sequence.joined = steps
        end = sequence.end_step = steps + sequence.output - sequence.generated
        self.running[sequence.index] = sequence
        sequence.ticket = self._ends.push(end, sequence)
        if end < self.next_end:
            self.next_end = end
        self.context_sum += context
        self.end_sum += end
        self.due[(context - steps) % self._size] += 1
        if self._apart or sequence.token_ticks < clock:
            self._late[sequence.token_ticks] = self._late.get(sequence.token_ticks, 0) + 1

    def leave(self, sequence: Sequence, before_end: bool = True) -> int:
        """A sequence decodes no longer; returns the blocks that its context fills."""
        del self.running[sequence.index]
        if before_end:
            self._ends.cancel(sequence.ticket)
            self._look()
        if self._late and sequence.joined == self.steps and sequence.token_ticks in self._late:
            self._late[sequence.token_ticks] -= 1
        context = sequence.context + self.steps - sequence.joined
        self.context_sum -= context
        self.end_sum -= sequence.end_step
        self.due[(sequence.context - sequence.joined) % self._size] -= 1
        return -(-context // self._size)

    def pop_ended(self) -> Sequence:
        """The next sequence whose end has come (`next_end` <= `steps`); it is still among the running."""
        sequence = self._ends.pop()[1]
        self._look()
        return sequence

    def _look(self) -> None:
        end = self._ends.next_ns()
        self.next_end = NEVER if end is None else end

    def step(self, steps: int) -> None:
        """So many decode steps have been made."""
        self.steps += steps
        self.context_sum += steps * len(self.running)

    def count_gaps(self, clock: int, steps: int, first: int, growth: int, batch: int) -> None:
        """Gaps before tokens of decode steps that end at `clock`; the first of a sequence is since its last token."""
        if not (self.stall_ticks or self._late):
            key = (first + growth * (steps - 1) // 2) >> GAP_SHIFT  # `Tally.gaps`, without the call
            counts = self.tally.gap_counts
            counts[key] = counts.get(key, 0) + steps * batch
            return
        gaps = self.tally.gaps
        ended = clock - ticks_of(steps, first, growth) + first
        others = batch
        for at, count in self._late.items():
            gaps(ended - at, 0, 1, count)
            others -= count
        self._late.clear()
        gaps(first + self.stall_ticks, 0, 1, others)
        self.stall_ticks = 0
        gaps(first + growth, growth, steps - 1, batch)

    def lacking_tokens(self) -> int:
        """Tokens that the running still have to get."""
        return self.end_sum - self.steps * len(self.running)
