"""One engine instance, one step at a time: it carries out any batching policy, and is the oracle of `replica.Replica`.

Every sequence is looked at in every step, every block is counted where it is held. `Sequence.context` is the number of
cached tokens throughout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, final

from windtunnel.studies.serving.kv.pool import BlockPool
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.replica.sequence import NEVER, Sequence
from windtunnel.studies.serving.replica.tally import Tally
from windtunnel.studies.serving.step_time.times import TICKS_PER_NS, StepTimes

if TYPE_CHECKING:
    from windtunnel.studies.serving.batching.plan import Batching, Plan

SHIFT = TICKS_PER_NS.bit_length() - 1


@final
class StepwiseReplica:
    """A replica under a policy. Prefix names are not looked at; `swap_ticks_per_block` prices swaps that wait.

    `carry_out`: a real engine that computes a plan and says how many ns that took, instead of `times`.
    """

    def __init__(
        self,
        times: StepTimes,
        rules: Rules,
        blocks: int,
        policy: Batching,
        host_blocks: int = 0,
        carry_out: Callable[[Plan], int] | None = None,
    ) -> None:
        self.times = times
        self.rules = rules
        self.policy = policy
        self.carry_out = carry_out
        self.pool = BlockPool(blocks)
        self.host_pool = BlockPool(host_blocks)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.swapped: dict[int, Sequence] = {}  # by index
        self.tally = Tally()
        self.steps = 0
        self.next_ns = NEVER
        self._clock = 0
        self._plan: Plan | None = None
        self._length = 0

    @property
    def now_ns(self) -> int:
        """The clock."""
        return self._clock >> SHIFT

    @property
    def load(self) -> int:
        """Requests that are here."""
        return len(self.waiting) + len(self.running) + len(self.swapped)

    @property
    def outstanding_tokens(self) -> int:
        """Prompt tokens that wait or are being computed."""
        here = (*self.waiting, *self.running)
        return sum(sequence.known - sequence.computed for sequence in here)

    def known_blocks(self, sequence: Sequence) -> int:
        """None: this replica keeps no prefixes."""
        return 0

    def submit(self, sequence: Sequence, now_ns: int) -> None:
        """A request arrives."""
        self.waiting.append(sequence)
        if self._plan is None:
            self._clock = max(self._clock, now_ns << SHIFT)
            self._begin()

    def advance(self) -> list[Sequence]:
        """The current step ends: returns the requests that finished, and begins the next."""
        finished = self._end()
        self._begin()
        return finished

    def _begin(self) -> None:
        for sequence in reversed(self.waiting):
            if sequence.queued_ns >= 0:
                break
            sequence.queued_ns = self._clock >> SHIFT
        plan = self.policy.plan(self)
        if not plan.chunks and not plan.decode:
            self._plan = None
            self.next_ns = NEVER
            return
        size, pool = self.rules.block_size, self.pool
        moved = 0
        for sequence in plan.preempt:
            pool.release(sequence.blocks, ())
            self.running.remove(sequence)
            sequence.known = sequence.prompt + sequence.generated
            sequence.blocks = sequence.computed = sequence.context = 0
            sequence.preemptions += 1
            self.tally.preemptions += 1
            self.waiting.appendleft(sequence)
        for sequence in plan.swap_out:
            pool.release(sequence.blocks, ())
            self.host_pool.take(sequence.blocks)
            self.running.remove(sequence)
            self.swapped[sequence.index] = sequence
            moved += sequence.blocks
        for sequence in plan.swap_in:
            self.host_pool.release(sequence.blocks, ())
            pool.take(sequence.blocks)
            del self.swapped[sequence.index]
            self.running.append(sequence)
            moved += sequence.blocks
        for sequence, _ in plan.chunks:
            if sequence.blocks == 0:
                self.waiting.remove(sequence)
                self.running.append(sequence)
                sequence.blocks = -(-sequence.known // size) + self.rules.beside_blocks
                pool.take(sequence.blocks)
                if sequence.scheduled_ns < 0:
                    sequence.scheduled_ns = self._clock >> SHIFT
        for sequence in plan.decode:
            if sequence.context % size == 0:
                pool.take(1)
                sequence.blocks += 1
        batch = len(plan.decode)
        contexts = sum(sequence.context for sequence in plan.decode) + batch
        if self.carry_out is not None:
            length = self.carry_out(plan) << SHIFT
            moved = 0  # its swaps are in that time
        elif plan.chunks:
            shapes = [(n, sequence.computed) for sequence, n in plan.chunks]
            done = sum(1 for sequence, n in plan.chunks if sequence.computed + n == sequence.known)
            length = self.times.mixed(batch, contexts, shapes, done)
        else:
            length = self.times.decode(batch).at(contexts)
        self._plan = plan
        self._length = max(length, moved * self.rules.swap_ticks_per_block)  # swaps overlap with the step
        self.next_ns = (self._clock + self._length + TICKS_PER_NS - 1) >> SHIFT

    def _end(self) -> list[Sequence]:
        plan = self._plan
        assert plan is not None
        self._clock += self._length
        now_ns = self._clock >> SHIFT
        batch = len(plan.decode)
        self.tally.step(self._length, batch + len(plan.chunks), self.pool.held, 1)
        self.tally.tokens += batch + sum(n for _, n in plan.chunks)
        if batch:
            self.steps += 1
        finished: list[Sequence] = []
        for sequence in plan.decode:
            sequence.context += 1
            self._token(sequence)
            sequence.used_ns += self._length >> SHIFT
            if sequence.generated >= sequence.output:
                self._finish(sequence, now_ns, finished)
        for sequence, n in plan.chunks:
            sequence.computed += n
            sequence.used_ns += self._length >> SHIFT
            if sequence.computed < sequence.known:
                continue
            self.running.remove(sequence)  # in the order in which they began to decode, as the replica in runs has it
            self.running.append(sequence)
            sequence.context = sequence.known
            self._token(sequence)
            if sequence.first_ns < 0:
                sequence.first_ns = now_ns
            if sequence.generated >= sequence.output:
                self._finish(sequence, now_ns, finished)
        return finished

    def _token(self, sequence: Sequence) -> None:
        sequence.generated += 1
        if sequence.token_ticks >= 0:
            self.tally.gaps(self._clock - sequence.token_ticks, 0, 1, 1)
        sequence.token_ticks = self._clock

    def _finish(self, sequence: Sequence, now_ns: int, finished: list[Sequence]) -> None:
        sequence.last_ns = now_ns
        self.pool.release(sequence.blocks, ())
        self.running.remove(sequence)
        finished.append(sequence)
