"""One pass of Slurm's backfill: jobs in order, each of which starts or reserves nodes until its limit.

As in Slurm, times are whole seconds: that of the pass, and when a running job began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from windtunnel.studies.fleet.clock.board import Board, Move
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.policies.slurm.nodes import S_NS, Future, Holder, Need, Space, Units, mask_of
from windtunnel.studies.fleet.policies.slurm.preemption import stoppable, victims
from windtunnel.studies.fleet.policies.slurm.rules import Rules
from windtunnel.studies.fleet.policies.slurm.state import State

Start = Callable[[Running, Units, Board, State], Move]
Preempt = Callable[[Running, Board, State], Iterator[Move]]


class Backfill:
    """A pass over a queue. `space`: what jobs before have reserved; `future`: what runs now, by limits."""

    def __init__(
        self, rules: Rules, queue: list[Running], board: Board, state: State, start: Start, preempt: Preempt
    ) -> None:
        self.rules, self.queue, self.board, self.state = rules, queue, board, state
        self.start, self.preempt = start, preempt
        self.now_ns = board.moment.ns // S_NS * S_NS
        self.space = Space(self.now_ns, state.whole)
        self.counts: dict[tuple[str, str], int] = {}  # of jobs met, by user and by partition
        self._look_again()

    def moves(self) -> Iterator[Move]:
        """What starts, and what is stopped for it."""
        if self.last < 0:
            return
        tests = 0
        for number, job in enumerate(self.queue):
            if tests >= self.rules.depth or number > self.last:
                return
            if job.placement or not self.rules.allowed(job, self.state) or not self._has_turn(job):
                continue
            tests += 1
            yield from self._test(job)

    def _has_turn(self, job: Running) -> bool:
        """Whether its user and its partition have tests left."""
        for most, key in (
            (self.rules.depth_user, ("user", job.owner.user)),
            (self.rules.depth_partition, ("partition", job.queue)),
        ):
            self.counts[key] = self.counts.get(key, 0) + 1
            if most and self.counts[key] > most:
                return False
        return True

    def _test(self, job: Running) -> Iterator[Move]:
        """A job starts, now or on what others are stopped for; else it reserves at the first time that it can."""
        units, limit_ns = self.rules.nodes_of(job, self.state.whole), self.rules.limit_ns(job)
        need = self.rules.need(job)
        later_ns: int | None = self.now_ns
        while later_ns is not None:
            since_ns = later_ns
            among, later_ns = self.space.among(units, since_ns, since_ns + limit_ns)
            fits = self._future_of(job, units, among).start(need, among)
            if fits is None:
                continue
            begin_ns, placed = max(fits[0], since_ns), fits[1].choose(need, among)
            assert placed is not None
            claim = mask_of(node for node, _ in placed)
            if begin_ns <= self.now_ns and not claim & self.state.busy:
                yield from self._begin(job, among, claim, limit_ns)
                return
            if begin_ns <= self.now_ns:
                begin_ns, later_ns = self.now_ns + S_NS, None
            later_ns = self._reserve(job, claim, (begin_ns, begin_ns + limit_ns), since_ns, later_ns)

    def _reserve(
        self, job: Running, claim: int, span_ns: tuple[int, int], since_ns: int, later_ns: int | None
    ) -> int | None:
        """Nodes are held for a job; returns from when on to try again, None: no more."""
        begin_ns, end_ns = span_ns
        if later_ns is not None and begin_ns > later_ns:
            return later_ns
        too_new = self.board.moment.ns - job.submit_ns < self.rules.reserved_after_s * NS
        if begin_ns > self.now_ns + round(self.rules.window_s * NS) or too_new:
            return None
        step_ns = max(round(self.rules.resolution_s * NS), 1)
        first_ns, last_ns = begin_ns // step_ns * step_ns, end_ns // step_ns * step_ns
        if begin_ns > since_ns and self.space.overlaps(claim, first_ns, last_ns):
            return begin_ns
        self.space.reserve(first_ns, last_ns, claim)
        return None

    def _begin(self, job: Running, among: int, claim: int, limit_ns: int) -> Iterator[Move]:
        """A job starts, perhaps on what others give; else it keeps what was foreseen until they have stopped."""
        need = self.rules.need(job)
        among &= ~self.rules.ending(self.state)
        placed = self.state.free.choose(need, among)
        if placed is None:
            for victim in victims(self.rules, job, among, self.board, self.state):
                yield from self.preempt(victim, self.board, self.state)
            placed = self.state.free.choose(need, among & ~self.rules.ending(self.state))
        if placed is None:
            self.space.reserve(self.now_ns, self.now_ns + limit_ns, claim)
        else:
            yield self.start(job, placed, self.board, self.state)
        self._look_again()

    def _last(self) -> int:
        """The last in the queue that has room now: what those behind it would reserve keeps nobody from anything."""
        if self.rules.cluster.preempts_by:
            return len(self.queue) - 1
        fit: dict[tuple[Need, int], bool] = {}
        for at in range(len(self.queue) - 1, -1, -1):
            job = self.queue[at]
            key = self.rules.need(job), self.rules.nodes_of(job, self.state.whole)
            if key not in fit:
                fit[key] = self.state.free.fits(*key)
            if fit[key] and not job.placement:
                return at
        return -1

    def _look_again(self) -> None:
        """Something has changed: what was foreseen is void."""
        self.last = self._last()
        self.futures: dict[tuple[int, ...], Future] = {}

    def _future_of(self, job: Running, units: int, among: int) -> Future:
        """What is foreseen for a job: those that may be stopped for it are gone at once, where there is no room now."""
        future = self._foreseen(())
        if future.free.fits(self.rules.need(job), among):
            return future
        return self._foreseen(stoppable(self.rules, job, units, self.board, self.state))

    def _foreseen(self, gone: Sequence[Running]) -> Future:
        """Of what runs now, by limits; what ends together in the order in which it came, as in Slurm's list of jobs.

        Where jobs are stopped for others, what is ending counts as free: only who would start there now waits for it.
        """
        key = tuple(job.index for job in gone)
        if key in self.futures:
            return self.futures[key]
        free, holders = self.state.free.copy(), []
        for job in sorted(self.board.running.values(), key=lambda job: (job.submit_ns, job.index)):
            units = self.state.placed[job.index][2]
            if job.index in key:
                free.add(units)
                free.load(units, job.owner.cpus, -1)
                continue
            end_ns = job.placed_ns // S_NS * S_NS + self.rules.limit_ns(job)
            holders.append(Holder(end_ns, units, mask_of(node for node, _ in units), job.owner.cpus))
        for time_ns, units in self.state.completing:
            if self.rules.cluster.preempts_by:
                free.add(units)
            else:
                holders.append(Holder(time_ns, units, mask_of(node for node, _ in units)))
        spans_ns = (round(each * NS) for each in (self.rules.batch_s, self.rules.epoch_s))
        self.futures[key] = Future(self.now_ns, free, holders, *spans_ns)
        return self.futures[key]
