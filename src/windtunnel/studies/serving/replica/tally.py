"""What a replica counts while it runs: gaps between tokens, batch sizes, blocks, busy time."""

from __future__ import annotations

from typing import final

GAP_SHIFT = 23  # gaps are told apart by 2^23 ticks = 8.2 us


@final
class Tally:
    """Sums over steps. `gap_counts`: tokens by the gap before them, in units of 2^GAP_SHIFT ticks."""

    __slots__ = ("block_ticks", "busy_ticks", "events", "gap_counts", "preemptions", "sequence_ticks",
        "steps", "timeline", "tokens")  # fmt: skip

    def __init__(self) -> None:
        self.busy_ticks = 0
        self.sequence_ticks = 0  # sequences in the batch x time
        self.block_ticks = 0  # held blocks x time
        self.steps = 0
        self.events = 0
        self.tokens = 0  # computed, prompts and outputs
        self.preemptions = 0
        self.gap_counts: dict[int, int] = {}
        self.timeline: list[tuple[int, int, int, int]] | None = None  # (ticks, sequences, blocks, steps), where wanted

    def step(self, ticks: int, sequences: int, blocks: int, steps: int) -> None:
        """One event: a mixed step, or a run of `steps`."""
        self.busy_ticks += ticks
        self.sequence_ticks += ticks * sequences
        self.block_ticks += ticks * blocks
        self.steps += steps
        self.events += 1
        if self.timeline is not None:
            self.timeline.append((ticks, sequences, blocks, steps))

    def gaps(self, first: int, growth: int, steps: int, sequences: int) -> None:
        """`steps` gaps of each of `sequences`; the mean of a run stands for all of it."""
        if steps <= 0 or sequences <= 0:
            return
        key = (first + growth * (steps - 1) // 2) >> GAP_SHIFT
        counts = self.gap_counts
        counts[key] = counts.get(key, 0) + steps * sequences
