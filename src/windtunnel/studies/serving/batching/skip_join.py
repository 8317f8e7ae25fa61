"""FastServe's batching: multi-level feedback queues that requests join where their prompt fits, and proactive swaps.

    quantum(level)   first x 2^level;   a request joins the first level whose quantum covers its prefill   (skip-join)
    each step        highest level first, in each level the head first: at most `batch` requests and the token budget
    blocks           what the chosen need beside what must stay free; short: swap out from the tail of the lowest level;
                     still short: fewer are chosen; room: swap in those on host that come next   (proactive)
    after a step     a request that has used its quantum goes a level down; the others go back to the head of theirs
    starvation       now and then, who has waited too long goes to the top

Source: LLMServe/FastServe, fastserve/scheduler.py. A request's KV stays whole, on GPU or host: no work is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import final

from windtunnel.studies.serving.batching.plan import Plan, State
from windtunnel.studies.serving.replica.sequence import Sequence

FIRST_QUANTUM_NS = 10_000_000
LEVELS = 24
HOST_KEPT = 0.1  # share of host blocks that must be free for a new prompt to start
LOOK_EVERY = 1000  # steps between two looks for the starved
STARVED_NS = 3_000_000_000


@final
class SkipJoinBatching:
    """Skip-join MLFQ. `prefill_ns` of a prompt says where it joins; `proactive`: swapped in before its turn."""

    def __init__(
        self,
        prefill_ns: Callable[[int], int],
        *,
        batch: int = 16,
        prompt_tokens: int = 2048,
        first_quantum_ns: int = FIRST_QUANTUM_NS,
        host_blocks: int = 0,
        proactive: bool = True,
    ) -> None:
        self.prefill_ns = prefill_ns
        self.batch = batch
        self.prompt_tokens = prompt_tokens
        self.first_quantum_ns = first_quantum_ns
        self.host_blocks = host_blocks
        self.proactive = proactive
        self._queues: list[deque[Sequence]] = [deque() for _ in range(LEVELS)]
        self._level: dict[int, int] = {}
        self._used_at: dict[int, int] = {}  # service when it entered its level
        self._ran_at: dict[int, int] = {}
        self._chosen: list[Sequence] = []
        self._steps = 0

    def plan(self, state: State) -> Plan:
        """The next step."""
        self._steps += 1
        self._return_chosen(state)
        self._join(state)
        if self._steps % LOOK_EVERY == 0:
            self._promote(state.now_ns)
        plan = self._room(state, self._pick(state), state.swapped)
        for sequence in plan.decode:
            self._take(sequence, state.now_ns)
        for sequence, _ in plan.chunks:
            self._take(sequence, state.now_ns)
        return plan

    def _take(self, sequence: Sequence, now_ns: int) -> None:
        self._queues[self._level[sequence.index]].remove(sequence)
        self._ran_at[sequence.index] = now_ns
        self._chosen.append(sequence)

    def _return_chosen(self, state: State) -> None:
        """Those that ran: a level down where their quantum is used, else to the head of theirs; the finished go."""
        for sequence in reversed(self._chosen):
            if sequence.last_ns >= 0:
                for book in (self._level, self._used_at, self._ran_at):
                    del book[sequence.index]
                continue
            level = self._level[sequence.index]
            if sequence.used_ns - self._used_at[sequence.index] >= self._quantum(level) and level + 1 < LEVELS:
                self._level[sequence.index] = level = level + 1
                self._used_at[sequence.index] = sequence.used_ns
                self._queues[level].append(sequence)
            else:
                self._queues[level].appendleft(sequence)
        self._chosen.clear()

    def _join(self, state: State) -> None:
        for sequence in state.waiting:
            if sequence.index in self._level:
                continue
            level, wanted = 0, self.prefill_ns(sequence.known)
            while self._quantum(level) < wanted and level + 1 < LEVELS:
                level += 1
            self._level[sequence.index] = level
            self._used_at[sequence.index] = sequence.used_ns
            self._ran_at[sequence.index] = state.now_ns
            self._queues[level].append(sequence)

    def _quantum(self, level: int) -> int:
        return self.first_quantum_ns << level

    def _promote(self, now_ns: int) -> None:
        for level in range(1, LEVELS):
            for sequence in [
                sequence for sequence in self._queues[level] if now_ns - self._ran_at[sequence.index] > STARVED_NS
            ]:
                self._queues[level].remove(sequence)
                self._level[sequence.index] = 0
                self._used_at[sequence.index] = sequence.used_ns
                self._queues[0].append(sequence)

    def _pick(self, state: State) -> list[Sequence]:
        """By priority, up to the batch and the token budget of prompts."""
        chosen: list[Sequence] = []
        budget = self.prompt_tokens
        host_free = self.host_blocks - state.host_pool.held
        held_back = bool(state.running or state.swapped) and host_free < HOST_KEPT * self.host_blocks
        for queue in self._queues:
            for sequence in queue:
                if held_back and sequence.blocks == 0:
                    continue  # a new prompt would push out a cache that host memory cannot take
                if len(chosen) >= self.batch or budget <= 0:
                    return chosen
                fresh = sequence.computed < sequence.known
                if fresh and sequence.known > budget and chosen:
                    return chosen
                budget -= sequence.known if fresh else 1
                chosen.append(sequence)
        return chosen

    def _room(self, state: State, chosen: list[Sequence], on_host: Container[int]) -> Plan:
        """Swaps that make the chosen fit; those that cannot are left for later, last first."""
        size = state.rules.block_size
        needs = {sequence.index: _blocks_needed(sequence, size, on_host) for sequence in chosen}
        mine = set(needs)
        need = sum(needs.values())
        keep = min(max(self.batch, state.rules.watermark_blocks), state.pool.total // 4)
        free = state.pool.free
        host_free = self.host_blocks - state.host_pool.held
        plan = Plan()
        for queue in reversed(self._queues if need + keep > free else ()):
            for sequence in reversed(queue):
                if need + keep <= free:
                    break
                resident = sequence.blocks > 0 and sequence.index not in on_host
                if resident and sequence.index not in mine and sequence.blocks <= host_free:
                    plan.swap_out.append(sequence)
                    host_free -= sequence.blocks
                    free += sequence.blocks
        while len(chosen) > 1 and need > free:
            last = chosen.pop()
            need -= needs[last.index]
            if last.blocks > 0 and last.index not in on_host:
                if last.blocks <= host_free:
                    plan.swap_out.append(last)
                    host_free -= last.blocks
                else:
                    plan.preempt.append(last)  # host memory is full: computed again later
                free += last.blocks
        if chosen and need > free:
            free += self._make_way(plan, chosen[0], on_host, need - free)
        coming = free - need
        for sequence in chosen:
            if sequence.computed < sequence.known:
                plan.chunks.append((sequence, sequence.known))
            else:
                plan.decode.append(sequence)
                if sequence.index in on_host:
                    plan.swap_in.append(sequence)
        if self.proactive and not plan.swap_out:
            for upcoming in self._next_on_host(on_host, {sequence.index for sequence in chosen}):
                if upcoming.blocks + keep > coming:
                    break
                plan.swap_in.append(upcoming)
                coming -= upcoming.blocks
        return plan

    def _make_way(self, plan: Plan, first: Sequence, on_host: Container[int], lacking: int) -> int:
        """Drop caches from the lowest level up until the first in line fits; it always does alone."""
        freed = 0
        away = {sequence.index for sequence in (*plan.swap_out, *plan.preempt)} | {first.index}
        for queue in reversed(self._queues):
            for sequence in reversed(queue):
                if freed >= lacking:
                    return freed
                if sequence.blocks > 0 and sequence.index not in away and sequence.index not in on_host:
                    plan.preempt.append(sequence)
                    freed += sequence.blocks
        return freed

    def _next_on_host(self, on_host: Container[int], chosen: set[int]) -> list[Sequence]:
        """Those on host among the next `batch` in line."""
        sequences: list[Sequence] = []
        seen = 0
        for queue in self._queues:
            for sequence in queue:
                if sequence.index in chosen:
                    continue
                seen += 1
                if sequence.index in on_host:
                    sequences.append(sequence)
                if seen >= self.batch:
                    return sequences
        return sequences


def _blocks_needed(sequence: Sequence, size: int, on_host: Container[int]) -> int:
    if sequence.blocks == 0:
        return -(-sequence.known // size)
    back = sequence.blocks if sequence.index in on_host else 0
    return back + (1 if sequence.context % size == 0 else 0)
