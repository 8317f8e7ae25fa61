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
        decoding = [one for one in running if one.computed == one.known]
        partial = [one for one in running if one.computed < one.known]
        if state.waiting or partial:
            kept = 0
            if mixed and decoding:
                free = self._make_room(plan, decoding, partial, free, state)
                kept = _growth(decoding, rules.block_size)
            budget = rules.token_budget - (len(decoding) if mixed else 0)
            for one in partial:
                n = min(one.known - one.computed, budget, rules.longest_chunk)
                if n > 0:
                    plan.chunks.append((one, n))
                    budget -= n
            if not plan.preempt and state.waiting and budget > 0:
                self._admit(plan, decoding, partial, budget, free, kept, state)
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
                one = partial.pop()
            else:
                one = decoding.pop()
                self._ratio_from = state.steps
            free += one.blocks
            plan.preempt.append(one)
        return free

    def _admit(
        self,
        plan: Plan,
        decoding: list[Sequence],
        partial: list[Sequence],
        budget: int,
        free: int,
        kept: int,
        state: State,
    ) -> None:
        rules, size = state.rules, state.rules.block_size
        running = len(decoding) + len(partial)
        promised = sum(_final_blocks(one, rules) for one in (*decoding, *partial))
        lacking = sum(one.output - one.generated for one in (*decoding, *partial))
        for one in state.waiting:
            if budget <= 0 or running >= rules.max_num_seqs:
                return
            n = min(one.known, budget, rules.longest_chunk)
            if n < one.known and not rules.chunked and (plan.chunks or one.known <= rules.longest_whole):
                return
            blocks = -(-one.known // size) + rules.beside_blocks
            if running == 0:
                fits = blocks + kept <= free
            elif rules.reserve == "output":
                fits = promised + _final_blocks(one, rules) <= state.pool.total and blocks + kept <= free
            elif rules.reserve == "ratio":
                ratio = expected_share(rules.reserve_ratio, state.steps - self._ratio_from)
                expected = ratio * lacking + (one.output - one.generated) * ratio
                fits = blocks + kept + int(expected / size) <= free
            else:
                fits = blocks + kept + rules.watermark_blocks <= free
            if not fits:
                return
            plan.chunks.append((one, n))
            running += 1
            budget -= n
            free -= blocks
            promised += _final_blocks(one, rules)
            lacking += one.output - one.generated


def _growth(decoding: list[Sequence], size: int) -> int:
    """Blocks that one more token of each takes."""
    return sum(1 for one in decoding if one.context % size == 0)


def _final_blocks(one: Sequence, rules: Rules) -> int:
    return -(-(one.prompt + one.output) // rules.block_size) + rules.beside_blocks
