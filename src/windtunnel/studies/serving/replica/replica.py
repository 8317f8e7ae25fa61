"""One engine instance with continuous batching, simulated in runs of steps.

    idle -> (arrival) -> step with prompt chunks | run of k equal decode steps -> (its end) -> ...

A decode step adds a token to each of b sequences. Until the next finish, block shortage, bend of the price line or
arrival that can be admitted, steps differ only by the context that grows by b: k of them are one event whose length is
the closed form k t0 + s k (k - 1) / 2 in ticks.

Its parts: `admission.Admission` (who waits and who is taken in), `batch.RunningBatch` (who decodes and when each ends)
and `cache.SequenceCache` (what each holds). Here are its steps. `stepwise.StepwiseReplica` with `ContinuousBatching` is
the same machine one step and one sequence at a time; a law test holds their stamps equal. A replica does no I/O: it is
handed arrivals and the end of its own current event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Listed
from typing import final

from windtunnel.studies.serving.adapters import Slots
from windtunnel.studies.serving.kv.pool import BlockPool
from windtunnel.studies.serving.kv.tiers import Store, Tiers
from windtunnel.studies.serving.replica.admission import Admission, Chunks
from windtunnel.studies.serving.replica.batch import RunningBatch
from windtunnel.studies.serving.replica.cache import SequenceCache
from windtunnel.studies.serving.replica.ranks import RankGate
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.replica.runs import steps_that_fit, steps_until, straight, ticks_of
from windtunnel.studies.serving.replica.sequence import NEVER, Sequence
from windtunnel.studies.serving.replica.tally import Tally
from windtunnel.studies.serving.step_time.times import SHIFT, TICKS_PER_NS, StepTimes

IDLE, MIXED, RUN = 0, 1, 2
RATIO_LOOKS = 8  # steps after which admission by ratio is tried again; engines look after each


@final
class Replica:
    """One engine instance. `next_ns` is when its current event ends; call `advance` then."""

    __slots__ = ("_beside", "_chunks", "_clock", "_length", "_mixes", "_mode", "_run", "admission", "adopted",
        "batch", "cache", "coming", "load", "next_ns", "on_first", "pool", "rules", "tally", "times")  # fmt: skip

    def __init__(
        self,
        times: StepTimes,
        rules: Rules,
        blocks: int,
        *,
        on_first: Callable[[Sequence], bool] | None = None,
        stores: Listed[Store] = (),
        slots: Slots | None = None,
    ) -> None:
        self.times = times
        self.rules = rules
        self.tally = Tally()
        tiers = Tiers(stores, lambda tokens, past: times.mixed(0, 0, [(tokens, past)], 1)) if stores else None
        self.cache = SequenceCache(rules, blocks, tiers, slots)
        self.pool: BlockPool = self.cache.pool
        self.batch = RunningBatch(rules.block_size, self.tally, apart=rules.batching != "mixed")
        self.admission = Admission(rules, self.batch, self.cache, times.speculative[0])
        self.load = 0  # requests that are here, and caches on their way
        self.on_first = on_first  # a prefill-only replica: called with a sequence whose prompt is done; True takes it
        self.next_ns = NEVER
        self.adopted: list[Sequence] = []  # prompts from elsewhere that join at the next step
        self.coming = 0  # of which, and of those still on their way, blocks are held
        self._mixes = rules.batching == "mixed"
        self._mode = IDLE
        self._clock = self._length = 0  # ticks: start of the current event, and how long it is
        self._run: tuple[int, int, int] = (0, 0, 0)  # steps, first, growth per step
        self._chunks: Chunks = []
        self._beside = 0  # sequences that decode in a mixed step

    @property
    def waiting(self) -> deque[Sequence]:
        """Requests that have not been taken in."""
        return self.admission.waiting

    @property
    def prefilling(self) -> list[Sequence]:
        """Requests whose prompt is being computed."""
        return self.admission.prefilling

    @property
    def running(self) -> dict[int, Sequence]:
        """Requests that decode."""
        return self.batch.running

    @property
    def outstanding_tokens(self) -> int:
        """Prompt tokens that wait or are being computed."""
        return self.admission.outstanding_tokens

    @property
    def idle(self) -> bool:
        """Whether nothing goes on."""
        return self._mode == IDLE

    def known_blocks(self, sequence: Sequence) -> int:
        """Leading blocks of a prompt that the cache has already."""
        return self.pool.leading_blocks(sequence.names, sequence.span)

    # --------------------------------------------------------------------------------------------------- stimuli

    def submit(self, sequence: Sequence, now_ns: int) -> None:
        """A request arrives."""
        queue, rules = self.admission, self.rules
        waiting = queue.waiting
        waiting.append(sequence)
        self.load += 1
        if queue.gate is not None:
            queue.gate.arrives(sequence)
        if queue.polls:
            queue.seen = queue.seen and len(waiting) > 1
        queue.outstanding_tokens += sequence.known
        if self._mode == IDLE:
            sequence.queued_ns = now_ns
            queue.just_finished = 0
            self.wake(now_ns)
            return
        at = now_ns << SHIFT
        if self._mode == MIXED:
            sequence.queued_ns = (self._clock + self._length) >> SHIFT
            return
        _, first, growth = self._run  # the engine looks for arrivals when the step ends during which it came
        done = steps_until(at - self._clock + 1, first, growth)
        sequence.queued_ns = (self._clock + ticks_of(done, first, growth)) >> SHIFT
        if len(self.batch.running) >= rules.max_num_seqs:
            return
        if queue.gate is not None:
            self._come_to(queue.gate, done)
        elif len(waiting) == rules.gather:
            self._cut(done, looking=queue.polls and not queue.seen)
        elif len(waiting) == 1:
            self._cut(done, rules.gather_steps)

    def cut(self, now_ns: int) -> None:
        """A run ends with the step under way: somebody else joins, or leaves."""
        if self._mode == RUN:
            _, first, growth = self._run
            self._cut(steps_until((now_ns << SHIFT) - self._clock + 1, first, growth))

    def wake(self, now_ns: int) -> None:
        """An idle replica has something to do."""
        self._clock = self.admission.last_start = max(self._clock, now_ns << SHIFT)
        self._begin()

    def wake_if_idle(self, now_ns: int) -> None:
        """The same where it is idle and somebody waits: there is room again."""
        if self.idle and self.admission.waiting:
            self.wake(now_ns)

    def advance(self) -> list[Sequence]:
        """The current event ends: returns the requests that finished, their stamps set, and begins the next."""
        finished = self._end_mixed() if self._mode == MIXED else self._end_run()
        self._begin()
        return finished

    # ------------------------------------------------------------------------------------------------- begin a step

    def _begin(self) -> None:
        rules, batch, queue = self.rules, self.batch, self.admission
        if self.adopted:
            for sequence in self.adopted:
                self.coming -= 1
                self._join(sequence)
                if rules.reserve == "output":
                    self.cache.promised += self.cache.final_blocks(sequence)
            self.adopted.clear()
        if not queue.waiting and not queue.prefilling:
            pass  # for the most part
        elif not ((queue.polls and batch.running and queue.unseen()) or (queue.holds_back and queue.gathers())):
            budget, due, preempted = rules.token_budget, 0, False
            if self._mixes and batch.running:
                due = batch.blocks_due
                if due > self.pool.free:
                    preempted = self._make_room(due)
                    due = batch.blocks_due
                budget -= len(batch.running)
            chunks = queue.chunks(budget, due, preempted, self._clock)
            if chunks:
                self._begin_mixed(chunks, len(batch.running) if self._mixes else 0, due)
                return
        if batch.running:
            self._begin_run()
        else:
            self._mode, self.next_ns = IDLE, NEVER

    def _come_to(self, gate: RankGate, done: int) -> None:
        """A request comes during step `done` of a run, and waits for other ranks: the run ends when it may go in."""
        if gate.ready:
            self._cut(done)
        elif len(self.admission.waiting) == 1:
            steps = self.batch.steps
            self._cut(done, gate.opens_at(steps + done + self.rules.lag - 1) - steps - done - self.rules.lag)

    def _begin_mixed(self, chunks: Chunks, beside: int, due: int) -> None:
        batch = self.batch
        self._chunks = chunks
        self._beside = beside
        if beside:
            self.pool.take(due)
        shapes, done = [], 0
        for sequence, n in chunks:
            shapes.append((n, sequence.computed))
            done += sequence.computed + n == sequence.known
        length = self.times.mixed(beside, batch.context_sum + beside, shapes, done) + self.admission.swap_in_ticks
        self.admission.swap_in_ticks = 0
        if self.cache.slots is not None:
            length += self.cache.slots.waited()
        if self.cache.tiers is not None:
            length = max(length, self.cache.tiers.waited())
        self._start(MIXED, length)

    def _begin_run(self) -> None:
        rules, batch, queue, pool = self.rules, self.batch, self.admission, self.pool
        at, size = batch.steps, rules.block_size
        due = batch.due[-at % size]
        free = pool.total - pool.held
        if due > free:
            self._make_room(due)
            if not batch.running:  # caches that are on their way have taken the blocks of the last one
                self._mode, self.next_ns = IDLE, NEVER
                return
            free = pool.free
        count = len(batch.running)
        line = self.times.decode(count)
        first, growth, steps = straight(line, batch.context_sum + count, count, batch.next_end - at)
        if queue.waiting and count < rules.max_num_seqs:
            if rules.lag and queue.too_late(queue.waiting[0], count):
                steps = 1
            if rules.reserve == "ratio":
                steps = min(steps, RATIO_LOOKS)  # what admission expects of the running falls from step to step
        if queue.polls and queue.waiting and queue.unseen():  # whatever they wait for, nobody looks before
            steps = min(steps, -(at - queue.received) % rules.receive_steps)
        elif queue.gather_until >= 0:
            steps = min(steps, queue.gather_until - at)
        if count * (steps // size + 1) > free:
            steps = steps_that_fit(steps, free, batch.due, at, count)
        self._run = (steps, first, growth)
        self._mode = RUN
        self._length = length = steps * first + growth * (steps * (steps - 1) // 2)  # `ticks_of`, without the call
        self.next_ns = (self._clock + length + TICKS_PER_NS - 1) >> SHIFT

    def _start(self, mode: int, length: int) -> None:
        self._mode = mode
        self._length = length
        self.next_ns = (self._clock + length + TICKS_PER_NS - 1) >> SHIFT

    def _cut(self, done: int, after: int = 0, looking: bool = False) -> None:
        """Let the current run end `done` steps after it began, or one later where plans lag.

        What ends at the very time that something comes is planned already. `after`: so many steps later; the wait that
        starts then. `looking`: with the step after which the engine looks for requests.
        """
        steps, first, growth = self._run
        queue = self.admission
        if looking:
            done += -(self.batch.steps + done - queue.received) % self.rules.receive_steps
        if self.rules.lag:
            done += 1
        if after:
            queue.gather_until = self.batch.steps + done + after
            done += after
        if done < steps:
            self._run = (done, first, growth)
            self._start(RUN, ticks_of(done, first, growth))

    # --------------------------------------------------------------------------------------------------- end a step

    def _end_mixed(self) -> list[Sequence]:
        batch, queue, length = self.batch, self.admission, self._length
        queue.last_start = self._clock
        clock = self._clock = self._clock + length
        now_ns = clock >> SHIFT
        finished: list[Sequence] = []
        tokens = beside = self._beside
        self.tally.step(length, beside + len(self._chunks), self.pool.held, 1)
        if beside:
            batch.steps += 1
            batch.context_sum += beside
            batch.count_gaps(clock, 1, length, 0, beside)
            if batch.next_end <= batch.steps:
                self._pop_finished(now_ns, finished)
        elif batch.running:
            batch.stall_ticks += length
        for sequence, n in self._chunks:
            tokens += n
            sequence.computed += n
            queue.outstanding_tokens -= n
            if sequence.computed < sequence.known:
                continue
            queue.prefilling.remove(sequence)
            sequence.generated += 1
            if sequence.first_ns < 0:
                sequence.first_ns = now_ns
            elif sequence.token_ticks >= 0:  # its cache was lost, or swapped out, after that token
                self.tally.gaps(clock - sequence.token_ticks, 0, 1, 1)
            sequence.token_ticks = clock
            if self.on_first is not None:
                self._leave_gate(sequence)
                if self.on_first(sequence):
                    self.load -= 1
                    continue
            if sequence.generated >= sequence.output:
                sequence.last_ns = now_ns
                self.cache.give_back(sequence, sequence.blocks)
                self._leave_gate(sequence)
                finished.append(sequence)
            else:
                self._join(sequence)
        self.tally.tokens += tokens
        self._chunks = []
        queue.received = batch.steps
        queue.just_finished = len(finished)
        self.load -= queue.just_finished
        return finished

    def _end_run(self) -> list[Sequence]:
        steps, first, growth = self._run
        batch, pool, tally, queue, length = self.batch, self.pool, self.tally, self.admission, self._length
        count = len(batch.running)
        clock = self._clock = self._clock + length
        queue.last_start = clock - first - growth * (steps - 1)
        if blocks := batch.due[-batch.steps % self.rules.block_size] if steps == 1 else batch.blocks_for(steps):
            pool.take(blocks)
        batch.steps += steps
        batch.context_sum += steps * count
        tally.step(length, count, pool.held, steps)
        tally.tokens += steps * count
        batch.count_gaps(clock, steps, first, growth, count)
        finished: list[Sequence] = []
        if batch.next_end <= batch.steps:
            self._pop_finished(clock >> SHIFT, finished)
            self.load -= len(finished)
        queue.just_finished = len(finished)
        return finished

    def _pop_finished(self, now_ns: int, finished: list[Sequence]) -> None:
        batch, cache, gate = self.batch, self.cache, self.admission.gate
        while batch.next_end <= batch.steps:
            sequence = batch.pop_ended()
            sequence.generated = sequence.output
            sequence.last_ns = now_ns
            cache.give_back(sequence, batch.leave(sequence, before_end=False))
            if gate is not None:
                gate.decoding[sequence.rank] -= 1
                gate.leaves(sequence)
            finished.append(sequence)

    def last_token_ticks(self, sequence: Sequence, done: int = 0) -> int:
        """When a running sequence got its last token, `done` steps into the run."""
        if done:
            return self._clock + ticks_of(done, *self._run[1:])
        return self._clock - self.batch.stall_ticks if self.batch.steps > sequence.joined else sequence.token_ticks

    def blocks_under_way(self) -> int:
        """Blocks that the steps under way take, or else the next one."""
        return self.batch.blocks_for(self._run[0] if self._mode == RUN else 1)

    def steps_done(self, now_ns: int) -> int:
        """Whole steps of the run under way that have ended by `now_ns`; 0 outside a run."""
        if self._mode != RUN:
            return 0
        steps, first, growth = self._run
        past = (now_ns << SHIFT) - self._clock
        return 0 if past < first else min(steps, steps_until(past + 1, first, growth) - 1)

    def step_ends_ns(self, now_ns: int) -> int:
        """When the step ends that runs at `now_ns`; `NEVER` where none does."""
        if self._mode != RUN:
            return self.next_ns
        steps, first, growth = self._run
        done = min(steps, self.steps_done(now_ns) + 1)
        return (self._clock + ticks_of(done, first, growth) + TICKS_PER_NS - 1) >> SHIFT

    def drop(self, sequence: Sequence, now_ns: int) -> None:
        """A sequence that was taken in leaves before its end: its blocks are free at once.

        A step that runs goes on without it: its price was settled when it began.
        """
        if sequence.index not in self.batch.running:
            self.admission.outstanding_tokens -= sequence.known - sequence.computed
            self.admission.prefilling.remove(sequence)
            self._chunks = [(other, n) for other, n in self._chunks if other is not sequence]
            self.cache.give_back(sequence, sequence.blocks)
        else:
            self.cut(now_ns)  # the step that runs is the last it takes part in
            if self._mode == MIXED and self._beside:
                if (sequence.context + self.batch.steps - sequence.joined) % self.rules.block_size == 0:
                    self.pool.release(1, ())  # taken for the token that it will not get
                self._beside -= 1
            self._leave(sequence)
        self._leave_gate(sequence)
        self.load -= 1

    # --------------------------------------------------------------------------------------------- who comes and goes

    def _join(self, sequence: Sequence) -> None:
        self.batch.join(sequence, self._clock)
        if self.admission.gate is not None:
            self.admission.gate.joins(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Out of the batch before its end, blocks back."""
        self.cache.give_back(sequence, self.batch.leave(sequence))
        if self.admission.gate is not None:
            self.admission.gate.decoding[sequence.rank] -= 1

    def _leave_gate(self, sequence: Sequence) -> None:
        """Of no rank any more."""
        if self.admission.gate is not None:
            self.admission.gate.leaves(sequence)

    def _make_room(self, needed: int) -> bool:
        """Preempt from the tail until the running sequences can have the blocks of their next step.

        The last one stays, but where blocks are held for caches that are on their way: it comes back after them.
        """
        batch, queue = self.batch, self.admission
        preempted = False
        least = 0 if self.coming else 1
        while needed > self.pool.free and len(batch.running) + len(queue.prefilling) > least:
            if queue.prefilling:
                sequence = queue.prefilling.pop()
                queue.outstanding_tokens += sequence.computed
                self.cache.give_back(sequence, sequence.blocks)
            else:
                sequence = next(reversed(batch.running.values()))
                sequence.generated = sequence.output - (sequence.end_step - batch.steps)
                sequence.token_ticks = self.last_token_ticks(sequence)
                self._leave(sequence)
                sequence.known = sequence.prompt + sequence.generated
                queue.outstanding_tokens += sequence.known
                needed = batch.blocks_due
                queue.ratio_from = batch.steps
            sequence.computed = 0
            sequence.preemptions += 1
            self.tally.preemptions += 1
            queue.waiting.appendleft(sequence)
            if queue.gate is not None:
                queue.gate.arrives(sequence)
            preempted = True
        return preempted
