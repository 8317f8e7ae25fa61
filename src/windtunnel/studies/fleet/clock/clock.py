"""The fleet's clock: a policy is asked whenever something happens, and jobs are re-rated only when their GPUs change.

At one time, in this order: nodes leave or join, phases and jobs end, jobs arrive, the policy's own wake-ups; then one
decision. A policy of lines starts and stops jobs on a board (`board.py`); any other answers to a snapshot of all jobs,
whose figures are worked out when they are read. A policy with `interval_s` is asked at multiples of it only, one with
`slot_s` at the earliest so long after it was asked last. After a new allocation a job makes no progress for `restart_s`
of its work; its GPUs are held, and count. A job that loses GPUs of a node stops, and goes back to its last checkpoint:
one each `checkpoint_s` of progress since it was placed (0: nothing is lost; infinite: all since then). A job that its
policy stops saves its state first. Of the GPU time held, `lost_gpu_ns` is what a failure undid, and `restart_gpu_ns`
what restarts held that were not undone; `recovery_gpu_ns` of these are restarts after a failure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from windtunnel.physics.engine.events import EventQueue
from windtunnel.studies.fleet.clock.board import Board
from windtunnel.studies.fleet.clock.decision import EMPTY, JobView, Placement, Policy, Snapshot, kept_or_placed
from windtunnel.studies.fleet.clock.queue_policy import QueuePolicy, board_for, carry_out
from windtunnel.studies.fleet.clock.running import NS, Moment, Running
from windtunnel.studies.fleet.clock.work import Work
from windtunnel.studies.fleet.sharing.links import BoardOfLinks, Links

NODE, PHASE, ARRIVE, WAKE = range(4)  # priorities of what happens at one time


@dataclass(frozen=True)
class NodeChange:
    """From a time on, a node has so many GPUs (0: it is down)."""

    time_ns: int
    node: int
    gpus: int


class Clock:
    """Runs jobs on nodes under a policy."""

    def __init__(
        self,
        jobs: Sequence[Running],
        nodes: Sequence[int],
        policy: Policy,
        *,
        changes: Iterable[NodeChange] = (),
        checkpoint_s: float = 0.0,
        links: Links | None = None,
    ) -> None:
        self.jobs = list(jobs)
        self.nodes = list(nodes)
        self.policy = policy
        self.checkpoint_s = checkpoint_s
        self.links = links
        self.beside: set[int] = set()  # jobs whose links have others on them than before
        self.memory: object = None
        self.moment = Moment()
        self.lines = policy if isinstance(policy, QueuePolicy) else None
        self.board = self._board(nodes)
        self.active: dict[int, Running] = {}
        self.queue: EventQueue[tuple[int, object]] = EventQueue()
        self.interval_ns = round(getattr(policy, "interval_s", 0.0) * NS)
        self.slot_ns = round(getattr(policy, "slot_s", 0.0) * NS)
        self.decided_ns: int | None = None
        self.wake: tuple[int, int] | None = None
        self.outages: list[tuple[int, int, int]] = []  # from, to, GPUs that nodes lacked, while there were jobs
        self.whole_gpus = sum(nodes)
        self.changed_ns = min((job.submit_ns for job in self.jobs), default=0)
        self.node_losses = 0
        self.moment.ns = self.changed_ns
        for job in self.jobs:
            job.moment = self.moment
            self.queue.push(job.submit_ns, (ARRIVE, job), ARRIVE)
        self.changes: Iterator[NodeChange] = iter(changes)  # by time; may have no end
        self._next_change()
        self.unfinished = len(self.jobs)

    def _board(self, nodes: Sequence[int]) -> Board:
        if self.lines is None:
            return Board(nodes, self.moment)
        if self.links is not None and self.links.compatible:
            return BoardOfLinks(nodes, self.moment, self.lines.line, self.links)
        return board_for(self.jobs, nodes, self.moment, self.lines.line)

    @property
    def now_ns(self) -> int:
        """Up to which it has run."""
        return self.moment.ns

    def run(self, until_ns: int | None = None) -> None:
        """Until all jobs are done, rejected, or nothing more happens."""
        while self.unfinished and (next_ns := self.queue.next_ns()) is not None:
            if until_ns is not None and next_ns > until_ns:
                self.moment.ns = until_ns
                for job in self.active.values():
                    self._book(job, until_ns)
                return
            self.moment.ns = next_ns
            decide = False
            while self.queue.next_ns() == next_ns:
                now_ns, (kind, what), ticket = self.queue.pop()
                decide |= self._happens(now_ns, kind, what, ticket)
            self._stretch(next_ns)
            if not (decide and self.active and any(self.nodes)):
                continue
            if self.slot_ns and self.decided_ns is not None and next_ns < self.decided_ns + self.slot_ns:
                self._wake_at(self.decided_ns + self.slot_ns)
                continue
            self.decided_ns = next_ns
            self._decide(next_ns)
            self._stretch(next_ns)

    def _next_change(self) -> None:
        change = next(self.changes, None)
        if change is not None:
            self.queue.push(change.time_ns, (NODE, change), NODE)

    def replace_works(self, works: Sequence[Work]) -> None:
        """From now on, jobs that have not ended run these, by the order of the jobs; what they have done stays done."""
        for job, work in zip(self.jobs, works, strict=True):
            if job.end_ns is None:
                job.work = work
                if job.placement:
                    self._rate(job, job.since_ns)
        if self.lines is not None:
            waiting = [job for line in self.board.lines.values() for _, job in line]
            self.board.lines, self.board.waiting, self.board.order = {}, 0, None
            for job in waiting:
                self._wait(job)

    def down_until(self, end_ns: int) -> int:
        """GPU-nanoseconds that nodes lacked up to the end of a run."""
        lacking = (*self.outages, (self.changed_ns, end_ns, self.whole_gpus - sum(self.nodes)))
        return sum(gpus * max(min(to_ns, end_ns) - from_ns, 0) for from_ns, to_ns, gpus in lacking)

    def _happens(self, now_ns: int, kind: int, what: Any, ticket: int) -> bool:
        """Take one event in; returns whether the policy is to be asked."""
        if kind == ARRIVE:
            self.active[what.index] = what
            self._wait(what)
            if self.interval_ns and self.wake is None:
                self._wake_at(-(-now_ns // self.interval_ns) * self.interval_ns)
            return not self.interval_ns
        if kind == NODE:
            self._node(now_ns, what)
            return not self.interval_ns or any(not job.placement for job in self.active.values())
        if kind == WAKE:
            self.wake = None
            if self.interval_ns and self.active:
                self._wake_at(now_ns + self.interval_ns)
            return True
        what.ticket = None
        return self._phase_ends(now_ns, what)

    def _wake_at(self, time_ns: int) -> None:
        if self.wake is not None:
            if self.wake[0] == time_ns:
                return
            self.queue.cancel(self.wake[1])
        self.wake = (time_ns, self.queue.push(time_ns, (WAKE, None), WAKE))

    def _book(self, job: Running, now_ns: int) -> None:
        if not job.placement:
            return
        if now_ns > job.since_ns:
            self._save(job, now_ns)
            job.units += job.rate * (now_ns - job.since_ns) / NS
            job.since_ns = now_ns
        job.held_ns += now_ns - job.held_since_ns
        job.gpu_ns += (now_ns - job.held_since_ns) * sum(job.counts)
        job.held_since_ns = now_ns

    def _save(self, job: Running, now_ns: int) -> None:
        """Note the last checkpoint up to now; the rate has held since progress was last booked."""
        if self.checkpoint_s == 0:
            last_ns = now_ns
        elif math.isinf(self.checkpoint_s):
            return
        else:
            every_ns = max(round(self.checkpoint_s * NS), 1)
            last_ns = job.begin_ns + (now_ns - job.begin_ns) // every_ns * every_ns
        if last_ns > job.since_ns:
            job.saved = last_ns, job.units + job.rate * (last_ns - job.since_ns) / NS, job.phase

    def _phase_ends(self, now_ns: int, job: Running) -> bool:
        self._book(job, now_ns)
        job.units = job.work.phase_end(job.phase)
        job.phase += 1
        if job.phase < job.work.phases:
            self._rate(job, now_ns)
            return False
        job.end_ns = now_ns
        self.unfinished -= 1
        del self.active[job.index]
        self._count_restart(job, now_ns)
        if self.lines is not None:
            self.board.give(job, job.placement)
        job.placement, job.counts = EMPTY, ()
        self._link(job)
        return not self.interval_ns

    def _rate(self, job: Running, now_ns: int) -> None:
        """Set the rate of a placed job, and when its phase ends."""
        job.rate = job.work.rate(job.placement, job.phase) / job.stretch
        if job.ticket is not None:
            self.queue.cancel(job.ticket)
            job.ticket = None
        if job.rate > 0:
            remaining_units = max(job.work.phase_end(job.phase) - job.units, 0.0)
            job.due_ns = max(job.since_ns, now_ns) + max(round(remaining_units / job.rate * NS), 0)
            job.ticket = self.queue.push(job.due_ns, (PHASE, job), PHASE)

    def _link(self, job: Running) -> None:
        if self.links is not None:
            self.beside |= self.links.move(job.index, job.placement)

    def _stretch(self, now_ns: int) -> None:
        """Jobs are as fast as the links that they share with others now let them be."""
        beside, self.beside = self.beside, set()
        for index in sorted(beside):
            job = self.active.get(index)
            if job is None or not job.placement or self.links is None:
                continue
            stretch = self.links.stretch(index)
            if stretch != job.stretch:
                self._book(job, now_ns)
                job.stretch = stretch
                self._rate(job, now_ns)

    def _stop(self, job: Running, now_ns: int) -> None:
        self._book(job, now_ns)
        if job.placement:
            self._count_restart(job, now_ns)
            if job.start_ns is not None and job.start_ns > now_ns:  # it was stopped before it began
                job.start_ns = None
        if job.ticket is not None:
            self.queue.cancel(job.ticket)
            job.ticket = None
        job.placement, job.counts, job.rate = EMPTY, (), 0.0
        self._link(job)

    def _count_restart(self, job: Running, now_ns: int) -> None:
        """Book what this placement's restart has held, once it ends."""
        gpu_ns = (min(now_ns, job.begin_ns) - job.placed_ns) * sum(job.counts)
        job.restart_gpu_ns += gpu_ns
        if job.after_failure:
            job.recovery_gpu_ns += gpu_ns
        job.after_failure = False

    def _node(self, now_ns: int, change: NodeChange) -> None:
        self._next_change()
        before = self.nodes[change.node]
        if now_ns > self.changed_ns:
            self.outages.append((self.changed_ns, now_ns, self.whole_gpus - sum(self.nodes)))
            self.changed_ns = now_ns
        self.nodes[change.node] = change.gpus
        if change.gpus >= before:
            self._resize(change.node, before, change.gpus)
            return
        self.node_losses += 1
        for job in self.active.values():
            if any(node == change.node for node, _ in job.placement):
                self._fail(job, now_ns)
        self._resize(change.node, before, change.gpus)

    def _fail(self, job: Running, now_ns: int) -> None:
        self._book(job, now_ns)
        gpus = sum(job.counts)
        if now_ns < job.begin_ns:  # it was still restarting
            job.lost_gpu_ns += (now_ns - job.placed_ns) * gpus
            job.begin_ns = job.placed_ns
        else:
            saved_ns, units, phase = job.saved
            job.lost_gpu_ns += (now_ns - saved_ns) * gpus
            job.lost_units += job.units - units
            job.units, job.phase = units, phase
        if self.lines is not None:
            self.board.give(job, job.placement)
        self._stop(job, now_ns)
        self._wait(job)
        job.failures += 1
        job.after_failure = True

    def _wait(self, job: Running) -> None:
        if self.lines is not None:
            job.rank = self.lines.rank(job)
            self.board.wait(job)

    def _resize(self, node: int, before: int, gpus: int) -> None:
        if self.lines is not None:
            self.board.resize(node, before, gpus)

    def _decide(self, now_ns: int) -> None:
        if self.lines is not None:
            self._choose(self.lines, now_ns)
            return
        order = sorted(self.active)
        jobs = cast("list[JobView]", [self.active[index] for index in order])  # they have all of it
        snapshot = Snapshot(now_ns / NS, jobs, tuple(self.nodes), self.memory)
        decision = self.policy.decide(snapshot)
        self.memory = decision.memory
        placements = kept_or_placed(snapshot, decision)
        for index in decision.reject:
            self._reject(self.active[index], now_ns)
        for index in order:
            job = self.active.get(index)
            if job is None:
                continue
            after = placements.get(index, EMPTY)
            if after != job.placement:
                self._move(job, after, now_ns)
        if decision.wake_s is not None and not self.interval_ns:
            self._wake_at(max(round(decision.wake_s * NS), now_ns + 1))

    def _reject(self, job: Running, now_ns: int) -> None:
        self._stop(job, now_ns)
        del self.active[job.index]
        job.rejected = True
        self.unfinished -= 1

    def _choose(self, policy: QueuePolicy, now_ns: int) -> None:
        board = self.board
        for job, placement in policy.choose(board):
            running = job.placement
            carry_out(board, job, placement)
            if placement == EMPTY:
                self._reject(job, now_ns)
                if running:
                    job.rejected, job.cancelled, job.end_ns = False, True, now_ns
                continue
            self._move(job, placement or EMPTY, now_ns, policy.delay_ns(job, board) if placement else 0)
            if placement is None and not policy.keeps_progress(job):
                job.lost_units += job.units
                job.units, job.phase = 0.0, 0
        if board.wake_ns is not None:
            self._wake_at(max(board.wake_ns, now_ns + 1))

    def _move(self, job: Running, after: Placement, now_ns: int, delay_ns: int = 0) -> None:
        self._stop(job, now_ns)
        if not after:
            return
        job.placement = after
        job.counts = tuple(count for _, count in after)
        self._link(job)
        job.held_since_ns = now_ns
        if job.start_ns is None:
            job.start_ns = now_ns + delay_ns
        else:
            job.restarts += 1
        job.placed_ns = now_ns
        job.begin_ns = job.since_ns = now_ns + delay_ns + round(job.work.restart_s * NS)
        job.saved = job.begin_ns, job.units, job.phase
        self._rate(job, now_ns)
