"""One engine instance with continuous batching, simulated in runs of steps.

    idle -> (arrival) -> step with prompt chunks | run of k equal decode steps -> (its end) -> ...

A decode step adds a token to each of b sequences. Until the next finish, block shortage, bend of the price line or
arrival that can be admitted, steps differ only by the context that grows by b: k of them are one event whose length is
the closed form k t0 + s k (k - 1) / 2 in ticks. Sums over the batch (contexts, blocks needed at each residue of the
block size, finishing steps) are kept, never the tokens of each sequence, so an event costs the same for 1 or 500.

`stepwise.StepwiseReplica` with `ContinuousBatching` is the same machine one step and one sequence at a time; a law
test holds their stamps equal. A replica does no I/O: it is handed arrivals and the end of its own current event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Listed
from heapq import heappop, heappush
from typing import final

from windtunnel.studies.serving.kv.pool import BlockPool
from windtunnel.studies.serving.replica.ranks import RankGate
from windtunnel.studies.serving.replica.rules import Rules, expected_share
from windtunnel.studies.serving.replica.runs import blocks_of, steps_that_fit, steps_until, straight, ticks_of
from windtunnel.studies.serving.replica.sequence import NEVER, Sequence
from windtunnel.studies.serving.replica.tally import Tally
from windtunnel.studies.serving.step_time.times import TICKS_PER_NS, StepTimes

IDLE, MIXED, RUN = 0, 1, 2
SHIFT = TICKS_PER_NS.bit_length() - 1
RATIO_LOOKS = 8  # steps after which admission by ratio is tried again; engines look after each


@final
class Replica:
    """One engine instance. `next_ns` is when its current event ends; call `advance` then."""

    def __init__(
        self, times: StepTimes, rules: Rules, blocks: int, *, on_first: Callable[[Sequence], bool] | None = None
    ) -> None:
        self.times = times
        self.rules = rules
        self.pool = BlockPool(blocks)
        self.waiting: deque[Sequence] = deque()
        self.partial: list[Sequence] = []  # admitted, prompt not yet computed
        self.decoding: dict[int, Sequence] = {}  # in the order of admission
        self.tally = Tally()
        self.load = 0  # requests that are here, and caches on their way
        self.outstanding_tokens = 0  # prompt tokens that wait or are being computed: what routers look at
        self.on_first = on_first  # a prefill-only replica: called with a sequence whose prompt is done; True takes it
        self.next_ns = NEVER
        self._clock = 0  # ticks: start of the current event
        self._mode = IDLE
        self._length = 0  # ticks of the current event
        self._run: tuple[int, int, int] = (0, 0, 0)  # steps, first, growth per step
        self._chunks: list[tuple[Sequence, int]] = []
        self._beside = 0  # sequences that decode in a mixed step
        self._steps = 0  # decode steps so far
        self._context_sum = 0
        self._due = [0] * rules.block_size  # sequences by (context - steps) mod block size
        self._ends: list[tuple[int, int, int, Sequence]] = []  # finishing step, order, epoch
        self._order = 0
        self._end_sum = 0  # of end_step over the decoding
        self._promised = 0  # blocks that running sequences will hold at their end, where admission reserves them
        self._ratio_from = 0  # step since which the expected share of output falls
        self._stall = 0  # ticks since the decoding sequences' last token ...
        self._apart = rules.batching != "mixed"
        self._late: dict[int, int] = {}  # ... but for so many, whose last token came at these ticks
        gated = rules.ranks > 1 and rules.gather_steps > 0
        self._gate = RankGate(rules.ranks, rules.gather_steps) if gated else None
        self._gather_until = -1  # decode step at which waiting prompts are admitted in any case; -1 = none wait
        self._polls = rules.receive_steps > 1
        self._received = 0  # a decode step at which the engine looked for requests; multiples of the rule after it, too
        self._seen = False  # whether it has looked at those that wait
        self._adopted: list[Sequence] = []  # prompts from elsewhere that join at the next step
        self._held = 0  # of which, and of those still on their way, blocks are held
        self._last_start = 0  # ticks: when the last step began, and the one after it was planned where plans lag
        self._just_finished = 0  # sequences that ended with it
        self._swap_in = 0  # ticks of swapping in that the next step waits for

    # --------------------------------------------------------------------------------------------------- stimuli

    def submit(self, one: Sequence, now_ns: int) -> None:
        """A request arrives."""
        self.waiting.append(one)
        self.load += 1
        if self._gate is not None:
            self._gate.arrives(one)
        if self._polls:
            self._seen = self._seen and len(self.waiting) > 1
        self.outstanding_tokens += one.known
        if self._mode == IDLE:
            one.queued_ns = now_ns
            self._just_finished = 0
            self._wake(now_ns)
            return
        one.queued_ns = self._boundary(now_ns << SHIFT) >> SHIFT
        if self._mode != RUN or len(self.decoding) >= self.rules.max_num_seqs:
            return
        if self._gate is not None:
            self._come_to(self._gate, now_ns << SHIFT)
        elif len(self.waiting) <= self.rules.gather:
            if self.rules.gather == 1 or len(self.waiting) == self.rules.gather:
                self._cut(now_ns << SHIFT, looking=self._polls and not self._seen)
            elif len(self.waiting) == 1:
                self._cut(now_ns << SHIFT, self.rules.gather_steps)

    @property
    def clock_ticks(self) -> int:
        """When the step that runs began, or the last one ended."""
        return self._clock

    def advance(self) -> list[Sequence]:
        """The current event ends: returns the requests that finished, their stamps set, and begins the next."""
        finished = self._end_mixed() if self._mode == MIXED else self._end_run()
        self._begin()
        return finished

    def blocks_for(self, steps: int) -> int:
        """Blocks that `steps` more decode steps take."""
        return blocks_of(steps, self._due, self._steps, len(self.decoding))

    def known_blocks(self, names: Listed[int]) -> int:
        """Leading blocks of a prompt that the cache has already."""
        return self.pool.known(names)

    # ------------------------------------------------------------------------------------------------- begin a step

    def _wake(self, now_ns: int) -> None:
        self._clock = self._last_start = max(self._clock, now_ns << SHIFT)
        self._begin()

    def _begin(self) -> None:
        rules = self.rules
        if self._adopted:
            for one in self._adopted:
                self._held -= 1
                self._join(one)
                if rules.reserve == "output":
                    self._promised += self._final_blocks(one)
            self._adopted.clear()
        batch = len(self.decoding)
        chunks: list[tuple[Sequence, int]] = []
        mixed = rules.batching == "mixed"
        unseen = self._polls and batch > 0 and self._unseen()
        if (self.waiting or self.partial) and not (unseen or self._gathers(batch)):
            preempted, kept = False, 0
            if mixed and batch:
                preempted = self._make_room(self._due[-self._steps % rules.block_size])
                batch = len(self.decoding)
                kept = self._due[-self._steps % rules.block_size]
            budget = rules.token_budget - (batch if mixed else 0)
            for one in self.partial:
                n = min(one.known - one.computed, budget, rules.longest_chunk)
                if n > 0:
                    chunks.append((one, n))
                    budget -= n
                    if one.names:
                        self._name(one, n)
            if not preempted and self.waiting and budget > 0:
                if self._gate is not None:
                    self._admit_by_rank(self._gate, chunks, kept)
                    if not chunks:
                        self._gate.nobody_came()
                else:
                    self._admit(chunks, budget, kept)
            if self._polls:
                self._seen = bool(self.waiting)
        if chunks:
            self._begin_mixed(chunks, batch if mixed else 0)
        elif batch:
            self._begin_run()
        else:
            self._idle()

    def _idle(self) -> None:
        self._mode = IDLE
        self.next_ns = NEVER

    def _unseen(self) -> bool:
        """Whether the engine does not know of those that wait, since it has not looked for requests yet."""
        return not (self._seen or self.partial or (self._steps - self._received) % self.rules.receive_steps == 0)

    def _gathers(self, batch: int) -> bool:
        """Whether prompts are held back until there are enough of them, or their time is up."""
        gate = self._gate
        if gate is not None and self.waiting and not self.partial:
            held = not gate.opens(self._steps)
            self._gather_until = gate.opens_at(self._steps) if held else -1
            return held
        if self.rules.gather == 1:
            return False
        if not batch or self.partial or len(self.waiting) >= self.rules.gather:
            self._gather_until = -1
            return False
        if self._gather_until < 0:
            self._gather_until = self._steps + self.rules.gather_steps
        if self._steps >= self._gather_until:
            self._gather_until = -1
            return False
        return True

    def _come_to(self, gate: RankGate, at: int) -> None:
        """A request comes at `at` (ticks) during a run, and waits for other ranks: the run ends when it may go in."""
        if gate.ready:
            self._cut(at)
        elif len(self.waiting) == 1:
            _, first, growth = self._run
            done = steps_until(at - self._clock + 1, first, growth) + self.rules.lag
            self._cut(at, gate.opens_at(self._steps + done - 1) - self._steps - done)

    def _admit(self, chunks: list[tuple[Sequence, int]], budget: int, kept: int) -> None:
        """Take in waiting requests while there is room; `kept` blocks are for those that decode beside them."""
        rules, pool, waiting = self.rules, self.pool, self.waiting
        size = rules.block_size
        running = len(self.decoding) + len(self.partial)
        while waiting and budget > 0 and running < rules.max_num_seqs:
            one = waiting[0]
            if self._too_late(one, running):
                return
            hit = 0
            if one.names and rules.prefix_caching:
                hit = min(pool.known(one.names), (one.known - 1) // size)
            rest = one.known - hit * size
            n = min(rest, budget, rules.longest_chunk)
            if n < rest and not rules.chunked and (chunks or rest <= rules.longest_whole):
                return  # whole prompts only: it waits for an empty step; one that never fits is taken in pieces
            blocks = -(-one.known // size)
            fresh = pool.fresh_needed(one.names, hit, blocks) if hit else blocks
            if not self._room_for(one, fresh + kept + rules.beside_blocks, running):
                return
            waiting.popleft()
            running += 1
            self._take_in(one, hit, n, chunks)
            budget -= chunks[-1][1]

    def _admit_by_rank(self, gate: RankGate, chunks: list[tuple[Sequence, int]], kept: int) -> None:
        """The same where each attention rank has a queue and a token budget of its own."""
        rules = self.rules
        own = 1 + self.times.speculative[0]  # tokens of a decoding sequence in a step
        budgets = [rules.longest_chunk - own * count for count in gate.decoding]
        taken = [False] * len(budgets)
        running = len(self.decoding) + len(self.partial)
        stay: deque[Sequence] = deque()
        while self.waiting:
            one = self.waiting.popleft()
            hit = min(self.pool.known(one.names), (one.known - 1) // rules.block_size) if one.names else 0
            hit = hit if rules.prefix_caching else 0
            rest, rank = one.known - hit * rules.block_size, one.rank
            n = min(rest, budgets[rank])
            if n <= 0 or (n < rest and not rules.chunked and (taken[rank] or rest <= rules.longest_whole)):
                budgets[rank] = 0  # in the order of arrival
                stay.append(one)
                continue
            blocks = -(-one.known // rules.block_size)
            fresh = self.pool.fresh_needed(one.names, hit, blocks) if hit else blocks
            full = running >= rules.max_num_seqs or self._too_late(one, running)
            if full or not self._room_for(one, fresh + kept + rules.beside_blocks, running):
                stay.append(one)
                break
            running += 1
            taken[rank] = True
            gate.waiting[rank] -= 1
            self._take_in(one, hit, n, chunks)
            budgets[rank] -= n
        self.waiting.extendleft(reversed(stay))

    def _take_in(self, one: Sequence, hit: int, n: int, chunks: list[tuple[Sequence, int]]) -> None:
        """Give a request its blocks, of which `hit` are cached, and `n` tokens of the next step."""
        rules, pool, size = self.rules, self.pool, self.rules.block_size
        blocks = -(-one.known // size)
        if hit:
            pool.share(one.names[:hit])
            one.shared = list(one.names[:hit])
        pool.lookups += len(one.names)
        pool.hits += hit
        pool.take(blocks - hit + rules.beside_blocks)
        one.blocks = blocks
        one.computed = hit * size
        one.hit = hit * size
        if rules.reserve == "output":
            self._promised += self._final_blocks(one)
        if one.scheduled_ns < 0:
            planned = self._last_start >> SHIFT  # not before it came: the step that ran then may have left nobody
            one.scheduled_ns = max(planned, one.queued_ns) if rules.lag else self._clock >> SHIFT
        self.outstanding_tokens -= one.computed
        self.partial.append(one)
        if rules.swap_ticks_per_block and one.generated:
            self._swap_in += rules.swap_ticks_per_block * blocks
            self.outstanding_tokens -= one.known - one.computed - 1
            one.computed = one.known - 1
            n = 1
        chunks.append((one, n))
        if one.names:
            self._name(one, n)

    def _name(self, one: Sequence, n: int) -> None:
        """Full blocks have their names from the time that their tokens are planned: siblings in one step share them.

        vLLM: kv_cache_manager.allocate_slots caches blocks when it schedules; SGLang lets one of them go first.
        """
        if self.rules.prefix_caching:
            size, before = self.rules.block_size, one.computed
            one.shared.extend(self.pool.name(one.names[before // size : (before + n) // size]))

    def _too_late(self, one: Sequence, running: int) -> bool:
        """Whether the next step was planned before this request, or the place for it, was there."""
        if not self.rules.lag or not (self.decoding or self.partial):
            return False
        return one.queued_ns << SHIFT > self._last_start or running + self._just_finished >= self.rules.max_num_seqs

    def _room_for(self, one: Sequence, fresh: int, running: int) -> bool:
        rules, pool = self.rules, self.pool
        size = rules.block_size
        if running == 0:  # alone it may have all; one that will never fit is refused before it comes here
            return fresh <= pool.free
        if rules.reserve == "output":
            return self._promised + self._final_blocks(one) <= pool.total and fresh <= pool.free
        if rules.reserve == "ratio":
            ratio = expected_share(rules.reserve_ratio, self._steps - self._ratio_from)
            lacking = self._end_sum - self._steps * len(self.decoding)
            lacking += sum(other.output - other.generated for other in self.partial)
            expected = ratio * lacking + (one.output - one.generated) * ratio
            return fresh + int(expected / size) <= pool.free
        return fresh + rules.watermark_blocks <= pool.free

    def _begin_mixed(self, chunks: list[tuple[Sequence, int]], batch: int) -> None:
        rules = self.rules
        self._chunks = chunks
        self._beside = batch
        if batch:
            self.pool.take(self._due[-self._steps % rules.block_size])
        shapes, done = [], 0
        for one, n in chunks:
            shapes.append((n, one.computed))
            done += one.computed + n == one.known
        length = self.times.mixed(batch, self._context_sum + batch, shapes, done) + self._swap_in
        self._swap_in = 0
        self._start(MIXED, length)

    def _begin_run(self) -> None:
        rules = self.rules
        self._make_room(self._due[-self._steps % rules.block_size])
        if not self.decoding:  # caches that are on their way have taken the blocks of the last one
            self._idle()
            return
        batch = len(self.decoding)
        ends = self._ends
        while ends[0][2] != ends[0][3].epoch:
            heappop(ends)
        steps = ends[0][0] - self._steps
        line = self.times.decode(batch)
        now = self._context_sum + batch
        first, growth, steps = straight(line, now, batch, steps)
        if rules.lag and self.waiting and batch < rules.max_num_seqs and self._too_late(self.waiting[0], batch):
            steps = 1
        if rules.reserve == "ratio" and self.waiting and batch < rules.max_num_seqs:
            steps = min(steps, RATIO_LOOKS)  # what admission expects of the running falls from step to step
        if self._polls and self.waiting and self._unseen():  # whatever they wait for, nobody looks before
            steps = min(steps, -(self._steps - self._received) % rules.receive_steps)
        elif self._gather_until >= 0 and steps > self._gather_until - self._steps:
            steps = self._gather_until - self._steps
        free = self.pool.free
        if batch * (steps // rules.block_size + 1) > free:
            steps = steps_that_fit(steps, free, self._due, self._steps, batch)
        self._run = (steps, first, growth)
        self._start(RUN, ticks_of(steps, first, growth))

    def _start(self, mode: int, length: int) -> None:
        self._mode = mode
        self._length = length
        self.next_ns = (self._clock + length + TICKS_PER_NS - 1) >> SHIFT

    def _boundary(self, at: int) -> int:
        """When the step ends during which `at` (ticks) falls: the engine looks for arrivals then."""
        if self._mode != RUN:
            return self._clock + self._length
        _, first, growth = self._run
        done = steps_until(at - self._clock + 1, first, growth)
        return self._clock + ticks_of(done, first, growth)

    def _cut(self, at: int, after: int = 0, looking: bool = False) -> None:
        """Let the current run end with the step during which `at` (ticks) falls, or the one after where plans lag.

        `after`: so many steps later; the wait that starts then. `looking`: with the step after which the engine looks
        for requests.
        """
        steps, first, growth = self._run
        done = steps_until(at - self._clock + 1, first, growth)  # what ends at that very time is planned already
        if looking:
            done += -(self._steps + done - self._received) % self.rules.receive_steps
        if self.rules.lag:
            done += 1
        if after:
            self._gather_until = self._steps + done + after
            done += after
        if done < steps:
            self._run = (done, first, growth)
            self._start(RUN, ticks_of(done, first, growth))

    # --------------------------------------------------------------------------------------------------- end a step

    def _end_mixed(self) -> list[Sequence]:
        pool, length = self.pool, self._length
        self._last_start = self._clock
        self._clock += length
        now_ns = self._clock >> SHIFT
        finished: list[Sequence] = []
        batch = self._beside
        tokens = batch
        self.tally.step(length, batch + len(self._chunks), pool.held, 1)
        if batch:
            self._steps += 1
            self._context_sum += batch
            self._count_gaps(1, length, 0, batch)
            self._pop_finished(now_ns, finished)
        elif self.decoding:
            self._stall += length
        for one, n in self._chunks:
            tokens += n
            one.computed += n
            self.outstanding_tokens -= n
            if one.computed < one.known:
                continue
            self.partial.remove(one)
            one.generated += 1
            if one.first_ns < 0:
                one.first_ns = now_ns
            elif one.token_ticks >= 0:  # its cache was lost, or swapped out, after that token
                self.tally.gaps(self._clock - one.token_ticks, 0, 1, 1)
            one.token_ticks = self._clock
            if self.on_first is not None:
                self._gone(one)
                if self.on_first(one):
                    self.load -= 1
                    continue
            if one.generated >= one.output:
                one.last_ns = now_ns
                self._give_back(one, one.blocks)
                self._gone(one)
                finished.append(one)
            else:
                self._join(one)
        self.tally.tokens += tokens
        self._chunks = []
        self._received = self._steps
        self._just_finished = len(finished)
        self.load -= self._just_finished
        return finished

    def _end_run(self) -> list[Sequence]:
        steps, first, growth = self._run
        batch = len(self.decoding)
        self._clock += self._length
        self._last_start = self._clock - first - growth * (steps - 1)
        self.pool.take(blocks_of(steps, self._due, self._steps, batch))
        self._steps += steps
        self._context_sum += steps * batch
        tally = self.tally
        tally.step(self._length, batch, self.pool.held, steps)
        tally.tokens += steps * batch
        self._count_gaps(steps, first, growth, batch)
        finished: list[Sequence] = []
        self._pop_finished(self._clock >> SHIFT, finished)
        self._just_finished = len(finished)
        self.load -= self._just_finished
        return finished

    def _count_gaps(self, steps: int, first: int, growth: int, batch: int) -> None:
        """Gaps before tokens of decode steps that end now; the first of a sequence is since its last token."""
        gaps = self.tally.gaps
        if not (self._stall or self._late):
            gaps(first, growth, steps, batch)
            return
        ended = self._clock - ticks_of(steps, first, growth) + first
        others = batch
        for at, count in self._late.items():
            gaps(ended - at, 0, 1, count)
            others -= count
        self._late.clear()
        gaps(first + self._stall, 0, 1, others)
        self._stall = 0
        gaps(first + growth, growth, steps - 1, batch)

    def last_token_ticks(self, one: Sequence, done: int = 0) -> int:
        """When a decoding sequence got its last token, `done` steps into the run."""
        if done:
            return self._clock + ticks_of(done, *self._run[1:])
        return self._clock - self._stall if self._steps > one.joined else one.token_ticks

    def _pop_finished(self, now_ns: int, finished: list[Sequence]) -> None:
        ends, steps = self._ends, self._steps
        while ends and ends[0][0] <= steps:
            _, _, epoch, one = heappop(ends)
            if epoch != one.epoch:
                continue
            one.generated = one.output
            one.last_ns = now_ns
            self._leave(one)
            self._gone(one)
            finished.append(one)

    # --------------------------------------------------------------------------------------------- the decoding set

    def _join(self, one: Sequence) -> None:
        one.context = one.known
        one.joined = self._steps
        one.end_step = self._steps + one.output - one.generated
        self.decoding[one.index] = one
        if self._gate is not None:
            self._gate.joins(one)
        self._order += 1
        heappush(self._ends, (one.end_step, self._order, one.epoch, one))
        self._context_sum += one.context
        self._end_sum += one.end_step
        self._due[(one.context - self._steps) % self.rules.block_size] += 1
        if self._apart or one.token_ticks < self._clock:
            self._late[one.token_ticks] = self._late.get(one.token_ticks, 0) + 1

    def _leave(self, one: Sequence) -> None:
        """Out of the decoding, blocks back."""
        size = self.rules.block_size
        del self.decoding[one.index]
        if self._gate is not None:
            self._gate.decoding[one.rank] -= 1
        if one.joined == self._steps and one.token_ticks in self._late:
            self._late[one.token_ticks] -= 1
        one.epoch += 1
        context = one.context + self._steps - one.joined
        self._context_sum -= context
        self._end_sum -= one.end_step
        self._due[(one.context - one.joined) % size] -= 1
        self._give_back(one, -(-context // size))

    def _gone(self, one: Sequence) -> None:
        """Of no rank any more."""
        if self._gate is not None:
            self._gate.leaves(one)

    def _give_back(self, one: Sequence, blocks: int) -> None:
        self.pool.release(blocks + self.rules.beside_blocks, one.shared, self.rules.prefix_caching)
        one.shared = []
        one.blocks = 0
        if self.rules.reserve == "output":
            self._promised -= self._final_blocks(one)

    def _final_blocks(self, one: Sequence) -> int:
        """What a sequence holds at its end."""
        return -(-(one.prompt + one.output) // self.rules.block_size) + self.rules.beside_blocks

    def _make_room(self, needed: int) -> bool:
        """Preempt from the tail until the decoding sequences can have the blocks of their next step.

        The last one stays, but where blocks are held for caches that are on their way: it comes back after them.
        """
        preempted = False
        least = 0 if self._held else 1
        while needed > self.pool.free and len(self.decoding) + len(self.partial) > least:
            if self.partial:
                one = self.partial.pop()
                self.outstanding_tokens += one.computed
                self._give_back(one, one.blocks)
            else:
                one = next(reversed(self.decoding.values()))
                one.generated = one.output - (one.end_step - self._steps)
                one.token_ticks = self.last_token_ticks(one)
                self._leave(one)
                one.known = one.prompt + one.generated
                self.outstanding_tokens += one.known
                needed = self._due[-self._steps % self.rules.block_size]
                self._ratio_from = self._steps
            one.computed = 0
            one.preemptions += 1
            self.tally.preemptions += 1
            self.waiting.appendleft(one)
            if self._gate is not None:
                self._gate.arrives(one)
            preempted = True
        return preempted
