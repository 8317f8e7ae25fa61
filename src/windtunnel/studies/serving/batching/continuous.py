"""Continuous batching of requests in the order of arrival: vLLM's, SGLang's and TensorRT-LLM's by their rules.

    mixed          running sequences first, one token each, then prompt chunks while the token budget lasts
    prefill_first  if prompts wait and fit, a step of prompts alone; else everyone decodes

Admission is head of line: the first that does not fit stops it. It asks for the blocks of the prompt, of prompt and
output, or of the prompt and a share of what all running still lack. Out of blocks, the last that began to decode goes
back to the head of the queue. This is the plain form of what `replica.Replica` does in runs.
"""

from __future__ import annotations

from typing import final

from windtunnel.studies.serving.batching.plan import Plan, State
from windtunnel.studies.serving.replica.rules import Rules, expected_share
from windtunnel.studies.serving.replica.sequence import Sequence


@final
class ContinuousBatching:
    """First come, first served, by the replica's `Rules`."""

    def __init__(self) -> None:
        self._ratio_from = 0  # step of the last retraction

    def plan(self, state: State) -> Plan:
        """The next step."""
        rules = state.rules
        plan = Plan()
        running = list(state.running)
        mixed = rules.batching == "mixed"
        free = state.pool.free
        decoding = [sequence for sequence in running if sequence.computed == sequence.known]
        partial = [sequence for sequence in running if sequence.computed < sequence.known]
        if state.waiting or partial:
            growth = 0
            if mixed and decoding:
                free = self._make_room(plan, decoding, partial, free, state)
                growth = _growth(decoding, rules.block_size)
            budget = rules.token_budget - (len(decoding) if mixed else 0)
            for sequence in partial:
                n = min(sequence.known - sequence.computed, budget, rules.longest_chunk)
                if n > 0:
                    plan.chunks.append((sequence, n))
                    budget -= n
            if not plan.preempt and state.waiting and budget > 0:
                self._admit(plan, decoding, partial, budget, free, growth, state)
        if plan.chunks:
            plan.decode = decoding if mixed else []
        elif decoding:
            self._make_room(plan, decoding, partial, free, state)
            plan.decode = decoding
        return plan

    def _make_room(self, plan: Plan, decoding: list[Sequence], partial: list[Sequence], free: int, state: State) -> int:
        size = state.rules.block_size
        while _growth(decoding, size) > free and len(decoding) + len(partial) > 1:
            if partial:
                sequence = partial.pop()
            else:
                sequence = decoding.pop()
                self._ratio_from = state.steps
            free += sequence.blocks
            plan.preempt.append(sequence)
        return free

    def _admit(
        self,
        plan: Plan,
        decoding: list[Sequence],
        partial: list[Sequence],
        budget: int,
        free: int,
        number: int,
        state: State,
    ) -> None:
        rules, size = state.rules, state.rules.block_size
        running = len(decoding) + len(partial)
        promised = sum(_final_blocks(sequence, rules) for sequence in (*decoding, *partial))
        lacking = sum(sequence.output - sequence.generated for sequence in (*decoding, *partial))
        for sequence in state.waiting:
            if budget <= 0 or running >= rules.max_num_seqs:
                return
            n = min(sequence.known, budget, rules.longest_chunk)
            if n < sequence.known and not rules.chunked and (plan.chunks or sequence.known <= rules.longest_whole):
                return
            blocks = -(-sequence.known // size) + rules.beside_blocks
            if running == 0:
                fits = blocks + number <= free
            elif rules.reserve == "output":
                fits = promised + _final_blocks(sequence, rules) <= state.pool.total and blocks + number <= free
            elif rules.reserve == "ratio":
                ratio = expected_share(rules.reserve_ratio, state.steps - self._ratio_from)
                expected = ratio * lacking + (sequence.output - sequence.generated) * ratio
                fits = blocks + number + int(expected / size) <= free
            else:
                fits = blocks + number + rules.watermark_blocks <= free
            if not fits:
                return
            plan.chunks.append((sequence, n))
            running += 1
            budget -= n
            free -= blocks
            promised += _final_blocks(sequence, rules)
            lacking += sequence.output - sequence.generated


def _growth(decoding: list[Sequence], size: int) -> int:
    """Blocks that one more token of each takes."""
    return sum(1 for sequence in decoding if sequence.context % size == 0)


def _final_blocks(sequence: Sequence, rules: Rules) -> int:
    return -(-(sequence.prompt + sequence.output) // rules.block_size) + rules.beside_blocks
