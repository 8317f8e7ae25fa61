"""Carries out the plans of a batching policy on a real model: blocks, swaps, prompts, tokens; and times each step.

A step's length is the time from asking the policy to the last token: on a CPU the computing time of this thread (one
thread computes; what other processes take is not counted), on CUDA the time between two synchronisations.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, final

import numpy as np

from windtunnel.real.serving.llama import Llama, Piece
from windtunnel.real.serving.prices import Step
from windtunnel.studies.serving.batching.plan import Batching, Plan, State
from windtunnel.studies.serving.replica.sequence import Sequence

if TYPE_CHECKING:
    import torch

LOOK_EVERY = 16  # steps


@final
class Timed:
    """A policy, and when it was last asked."""

    def __init__(self, policy: Batching, now_ns: Callable[[], int]) -> None:
        self.policy, self._now_ns = policy, now_ns
        self.asked_ns = 0

    def plan(self, state: State) -> Plan:
        """The plan of the policy."""
        self.asked_ns = self._now_ns()
        return self.policy.plan(state)


@final
class Carrier:
    """The real side of a replica: which block ids a sequence has, its tokens, its cache while it is swapped out."""

    def __init__(
        self, model: Llama, blocks: int, policy: Batching, seed: int = 0, look: Callable[[], None] = lambda: None
    ) -> None:
        self.model = model
        self.now_ns = _synchronised if model.device.startswith("cuda") else time.thread_time_ns
        self.policy = Timed(policy, self.now_ns)
        self.tokens: dict[int, list[int]] = {}
        self.log: list[Step] | None = None  # steps and what they took, where wanted
        self.wall_ns = self.step_ns = self.swapped_blocks = 0
        self._free = list(range(blocks))
        self._table: dict[int, list[int]] = {}
        self._kept: dict[int, torch.Tensor] = {}
        self._here: dict[int, Sequence] = {}
        self._seed = seed
        self.look = look  # called between steps, now and then; its time is not the engine's
        self._steps = 0

    def __call__(self, plan: Plan) -> int:
        """Do it; nanoseconds that it took."""
        wall = time.monotonic_ns()
        self._steps += 1
        if self._steps % LOOK_EVERY == 1:  # in a short run too
            begin = self.now_ns()
            self.look()
            self.policy.asked_ns += self.now_ns() - begin
        for sequence in [sequence for sequence in self._here.values() if sequence.last_ns >= 0]:
            self._release(sequence)
            del self._here[sequence.index]
        for sequence in plan.preempt:
            self._release(sequence)
        for sequence in plan.swap_out:
            self._kept[sequence.index] = self.model.copy_out(self._table[sequence.index])
            self.swapped_blocks += len(self._table[sequence.index])
            self._release(sequence)
        for sequence in plan.swap_in:
            content = self._kept.pop(sequence.index)
            self._grow(sequence, content.shape[2] // self.model.block_size)
            self.model.copy_in(self._table[sequence.index], content)
        chunks = [self._chunk(sequence, n) for sequence, n in plan.chunks]
        decodes = [self._decode(sequence) for sequence in plan.decode]
        tokens = self.model.step(chunks, decodes)
        for (sequence, n), token in zip(plan.chunks, tokens, strict=False):
            if sequence.computed + n == sequence.known:
                self.tokens[sequence.index].append(token)
        for sequence, token in zip(plan.decode, tokens[len(chunks) :], strict=True):
            self.tokens[sequence.index].append(token)
        took = max(1, self.now_ns() - self.policy.asked_ns)
        self.step_ns += took
        if self.log is not None:
            shapes = tuple((n, sequence.computed) for sequence, n in plan.chunks)
            self.log.append(Step(shapes, tuple(sequence.context + 1 for sequence in plan.decode), took * 1e-9))
        self.wall_ns += time.monotonic_ns() - wall
        return took

    def _chunk(self, sequence: Sequence, n: int) -> Piece:
        ids = self.tokens.get(sequence.index)
        if ids is None:
            draw = np.random.default_rng([self._seed, sequence.index])
            ids = self.tokens[sequence.index] = draw.integers(0, self.model.shape.vocabulary, sequence.prompt).tolist()
        self._here[sequence.index] = sequence
        self._grow(sequence, sequence.blocks)
        return Piece(ids[sequence.computed : sequence.computed + n], sequence.computed, self._table[sequence.index])

    def _decode(self, sequence: Sequence) -> Piece:
        self._grow(sequence, sequence.blocks)
        return Piece(self.tokens[sequence.index][-1:], sequence.context, self._table[sequence.index])

    def _grow(self, sequence: Sequence, blocks: int) -> None:
        table = self._table.setdefault(sequence.index, [])
        while len(table) < blocks:
            table.append(self._free.pop())

    def _release(self, sequence: Sequence) -> None:
        self._free.extend(self._table.pop(sequence.index, ()))


def _synchronised() -> int:
    import torch

    torch.cuda.synchronize()
    return time.perf_counter_ns()
