"""Admission: who waits, when the engine looks at them, and who is taken in beside the running.

waiting -> (looked at, gathered, room in batch, budget and cache) -> prefilling -> the running batch
"""

from __future__ import annotations

from collections import deque
from typing import final

from windtunnel.studies.serving.replica.batch import RunningBatch
from windtunnel.studies.serving.replica.cache import SequenceCache
from windtunnel.studies.serving.replica.ranks import RankGate
from windtunnel.studies.serving.replica.rules import Rules, expected_share
from windtunnel.studies.serving.replica.sequence import Sequence
from windtunnel.studies.serving.step_time.times import SHIFT

Chunks = list[tuple[Sequence, int]]  # tokens of prompts in one step
EMPTY: list[int] = []  # nothing below the GPU


@final
class Admission:
    """The queue of a replica, and the rules by which it is emptied."""

    __slots__ = ("_own_tokens", "batch", "cache", "gate", "gather_until", "holds_back", "just_finished",
        "last_start", "outstanding_tokens", "polls", "prefilling", "ratio_from", "received", "rules", "seen",
        "swap_in_ticks", "waiting")  # fmt: skip

    def __init__(self, rules: Rules, batch: RunningBatch, cache: SequenceCache, drafted: int) -> None:
        self.rules, self.batch, self.cache = rules, batch, cache
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []  # taken in, prompt not yet computed
        self.outstanding_tokens = 0  # prompt tokens that wait or are being computed: what routers look at
        self.ratio_from = 0  # step since which the expected share of output falls
        gated = rules.ranks > 1 and rules.gather_steps > 0
        self.gate = RankGate(rules.ranks, rules.gather_steps) if gated else None
        self.holds_back = gated or rules.gather != 1  # whether `gathers` has anything to say
        self.gather_until = -1  # decode step at which waiting prompts are taken in anyway; -1 = none wait
        self.polls = rules.receive_steps > 1
        self.received = 0  # a decode step at which the engine looked for requests; multiples of the rule after it, too
        self.seen = False  # whether it has looked at those that wait
        self.last_start = 0  # ticks: when the last step began, and the one after it was planned where plans lag
        self.just_finished = 0  # sequences that ended with it
        self.swap_in_ticks = 0  # of swapping in that the next step waits for
        self._own_tokens = 1 + drafted  # of a running sequence in a step

    def forget(self, sequence: Sequence) -> None:
        """Somebody who waits goes away."""
        self.outstanding_tokens -= sequence.known - sequence.computed
        self.waiting.remove(sequence)
        if self.gate is not None:
            self.gate.waiting[sequence.rank] -= 1
            self.gate.leaves(sequence)
        if not self.waiting:
            self.gather_until = -1

    def unseen(self) -> bool:
        """Whether the engine does not know of those that wait, since it has not looked for requests yet."""
        if self.seen or self.prefilling:
            return False
        since = (self.batch.steps - self.received) % self.rules.receive_steps  # steps since it looked last
        return since > self.rules.lag

    def gathers(self) -> bool:
        """Whether prompts are held back until there are enough of them, or their time is up."""
        gate, steps = self.gate, self.batch.steps
        if gate is not None and self.waiting and not self.prefilling:
            closed = not gate.opens(steps)
            self.gather_until = gate.opens_at(steps) if closed else -1
            return closed
        if self.rules.gather == 1:
            return False
        if not self.batch.running or self.prefilling or len(self.waiting) >= self.rules.gather:
            self.gather_until = -1
            return False
        if self.gather_until < 0:
            self.gather_until = steps + self.rules.gather_steps
        if steps >= self.gather_until:
            self.gather_until = -1
            return False
        return True

    def chunks(self, budget: int, due: int, preempted: bool, clock: int) -> Chunks:
        """Prompt tokens of the next step, `budget` at most; `due` blocks are for those that decode beside them.

        Nobody new is taken in where one was preempted for this step. `clock`: when it begins, in ticks.
        """
        chunks: Chunks = []
        for sequence in self.prefilling:
            n = min(sequence.known - sequence.computed, budget, self.rules.longest_chunk)
            if n > 0:
                chunks.append((sequence, n))
                budget -= n
                if sequence.names:
                    self.cache.name(sequence, n)
        if not preempted and self.waiting and budget > 0:
            if self.gate is None:
                passed: list[Sequence] = []  # whose adapter has no slot: others may go first
                self._admit(chunks, budget, due, clock, passed)
                if passed:
                    self.waiting.extendleft(reversed(passed))
            else:
                self._admit_by_rank(self.gate, chunks, due, clock)
                if not chunks:
                    self.gate.nobody_came()
        if self.polls:
            self.seen = bool(self.waiting)
        return chunks

    def _admit(self, chunks: Chunks, budget: int, number: int, clock: int, passed: list[Sequence]) -> None:
        """Take in waiting requests while there is room."""
        rules, cache, waiting = self.rules, self.cache, self.waiting
        size, longest = rules.block_size, rules.longest_chunk
        here, slots = len(self.batch.running) + len(self.prefilling), cache.slots
        while waiting and budget > 0 and here < rules.max_num_seqs:
            sequence = waiting[0]
            if slots is not None and not slots.admits(sequence.adapter):
                passed.append(waiting.popleft())
                continue
            if rules.lag and self.too_late(sequence, here):
                return
            hit, below = 0, EMPTY
            if sequence.names:
                hit = cache.leading_blocks(sequence)
                below = cache.below(sequence, hit)
            rest = sequence.known - (cache.computed(sequence, hit, below) if below else hit * size)
            n = min(rest, budget, longest)
            if n < rest and not rules.chunked and (chunks or rest <= rules.longest_whole):
                return  # whole prompts only: it waits for an empty step; one that never fits is taken in pieces
            if not self._room_for(sequence, cache.fresh(sequence, hit) + number, here):
                return
            waiting.popleft()
            here += 1
            budget -= self._take_in(sequence, hit, below, n, chunks, clock)

    def _admit_by_rank(self, gate: RankGate, chunks: Chunks, due: int, clock: int) -> None:
        """The same where each attention rank has a queue and a token budget of its own."""
        rules = self.rules
        budgets = [rules.longest_chunk - self._own_tokens * count for count in gate.decoding]
        served = [False] * len(budgets)
        here = len(self.batch.running) + len(self.prefilling)
        stay: deque[Sequence] = deque()
        while self.waiting:
            sequence = self.waiting.popleft()
            hit, rank = self.cache.leading_blocks(sequence), sequence.rank
            below = self.cache.below(sequence, hit)
            rest = sequence.known - self.cache.computed(sequence, hit, below)
            n = min(rest, budgets[rank])
            if n <= 0 or (n < rest and not rules.chunked and (served[rank] or rest <= rules.longest_whole)):
                budgets[rank] = 0  # in the order of arrival
                stay.append(sequence)
                continue
            full = here >= rules.max_num_seqs or self.too_late(sequence, here)
            if full or not self._room_for(sequence, self.cache.fresh(sequence, hit) + due, here):
                stay.append(sequence)
                break
            here += 1
            served[rank] = True
            gate.waiting[rank] -= 1
            self._take_in(sequence, hit, below, n, chunks, clock)
            budgets[rank] -= n
        self.waiting.extendleft(reversed(stay))

    def _take_in(self, sequence: Sequence, hit: int, below: list[int], n: int, chunks: Chunks, clock: int) -> int:
        """Give a request its blocks, of which `hit` are cached, and `n` tokens of the next step; returns those."""
        rules = self.rules
        self.cache.take_in(sequence, hit, below)
        if sequence.scheduled_ns < 0:
            planned = self.last_start >> SHIFT  # not before it came: the step that ran then may have left nobody
            sequence.scheduled_ns = max(planned, sequence.queued_ns) if rules.lag else clock >> SHIFT
        self.outstanding_tokens -= sequence.computed
        self.prefilling.append(sequence)
        if rules.swap_ticks_per_block and sequence.generated:
            self.swap_in_ticks += rules.swap_ticks_per_block * sequence.blocks
            self.outstanding_tokens -= sequence.known - sequence.computed - 1
            sequence.computed = sequence.known - 1
            n = 1
        chunks.append((sequence, n))
        if sequence.names:
            self.cache.name(sequence, n)
        return n

    def too_late(self, sequence: Sequence, here: int) -> bool:
        """Whether the next step was planned before this request, or the place for it, was there."""
        rules = self.rules
        if not rules.lag or not (self.batch.running or self.prefilling):
            return False
        return sequence.queued_ns << SHIFT > self.last_start or here + self.just_finished >= rules.max_num_seqs

    def _room_for(self, sequence: Sequence, fresh: int, here: int) -> bool:
        rules, cache = self.rules, self.cache
        free = cache.pool.free
        if here == 0:  # alone it may have all; one that will never fit is refused before it comes here
            return fresh <= free
        if rules.reserve == "output":
            return cache.promised + cache.final_blocks(sequence) <= cache.pool.total and fresh <= free
        if rules.reserve == "ratio":
            ratio = expected_share(rules.reserve_ratio, self.batch.steps - self.ratio_from)
            lacking = self.batch.lacking_tokens()
            lacking += sum(other.output - other.generated for other in self.prefilling)
            expected = ratio * lacking + (sequence.output - sequence.generated) * ratio
            return fresh + int(expected / rules.block_size) <= free
        return fresh + rules.watermark_blocks <= free
