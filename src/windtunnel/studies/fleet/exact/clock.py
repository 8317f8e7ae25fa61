"""The exact clock: a policy is asked whenever something happens, and jobs are re-rated only when their GPUs change.

At one time, in this order: nodes leave or join, phases and jobs end, jobs arrive, the policy's own wake-ups; then one
decision. A policy with `interval_s` is asked at multiples of it only. After a new allocation a job makes no progress
for `restart_s` of its work; its GPUs are held, and count. A job that loses GPUs of a node stops, and goes back to its
last checkpoint: one each `checkpoint_s` of progress since it was placed (0: nothing is lost; infinite: all since then).
A job that its policy stops saves its state first. Of the GPU time held, `lost_gpu_ns` is what a failure undid, and
`restart_gpu_ns` what restarts held that were not undone; `recovery_gpu_ns` of these are restarts after a failure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.physics.engine.events import EventQueue
from windtunnel.studies.fleet.decision import EMPTY, JobView, Placement, Policy, Snapshot, kept_or_placed
from windtunnel.studies.fleet.exact.work import Work

NS = 1_000_000_000
NODE, PHASE, ARRIVE, WAKE = range(4)  # priorities of what happens at one time


@dataclass
class Running:
    """One job's state."""

    index: int
    submit_ns: int
    gpus: int
    work: Work
    deadline_s: float | None = None
    placement: Placement = EMPTY
    counts: tuple[int, ...] = ()
    phase: int = 0
    done: float = 0.0
    since_ns: int = 0  # progress is booked up to here; later than now while it restarts
    held_since_ns: int = 0
    held_ns: int = 0
    gpu_ns: int = 0
    rate: float = 0.0
    start_ns: int | None = None
    end_ns: int | None = None
    restarts: int = 0
    failures: int = 0  # times that it lost a node
    placed_ns: int = 0  # on this placement
    begin_ns: int = 0  # of progress on it
    saved: tuple[int, float, int] = (0, 0.0, 0)  # the last checkpoint: when, units done, phase
    after_failure: bool = False  # this placement makes good for a failure
    lost_units: float = 0.0
    lost_gpu_ns: int = 0
    restart_gpu_ns: int = 0
    recovery_gpu_ns: int = 0
    rejected: bool = False
    ticket: int | None = None

    @property
    def share_done(self) -> float:
        """Of its work, as booked: 1 when it has ended."""
        total = self.work.phase_end(self.work.phases - 1)
        return 1.0 if self.end_ns is not None or total <= 0 else min(self.done / total, 1.0)


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
    ) -> None:
        self.jobs = list(jobs)
        self.nodes = list(nodes)
        self.policy = policy
        self.checkpoint_s = checkpoint_s
        self.memory: Any = None
        self.active: dict[int, Running] = {}
        self.queue: EventQueue[tuple[int, Any]] = EventQueue()
        self.interval_ns = round(getattr(policy, "interval_s", 0.0) * NS)
        self.wake: tuple[int, int] | None = None
        self.outages: list[tuple[int, int, int]] = []  # from, to, GPUs that nodes lacked, while there were jobs
        self.whole_gpus = sum(nodes)
        self.changed_ns = min((job.submit_ns for job in self.jobs), default=0)
        self.node_losses = 0
        self.now_ns = self.changed_ns  # up to which it has run
        for job in self.jobs:
            self.queue.push(job.submit_ns, (ARRIVE, job), ARRIVE)
        self.changes: Iterator[NodeChange] = iter(changes)  # by time; may have no end
        self._next_change()
        self.left = len(self.jobs)

    def run(self, until_ns: int | None = None) -> None:
        """Until all jobs are done, rejected, or nothing more happens."""
        while self.left and (next_ns := self.queue.next_ns()) is not None:
            if until_ns is not None and next_ns > until_ns:
                self.now_ns = until_ns
                for job in self.active.values():
                    self._book(job, until_ns)
                return
            self.now_ns = next_ns
            decide = False
            while self.queue.next_ns() == next_ns:
                now_ns, (kind, what), ticket = self.queue.pop()
                decide |= self._happens(now_ns, kind, what, ticket)
            if decide and self.active and any(self.nodes):
                self._decide(next_ns)

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

    def down_until(self, end_ns: int) -> int:
        """GPU-nanoseconds that nodes lacked up to the end of a run."""
        lacking = (*self.outages, (self.changed_ns, end_ns, self.whole_gpus - sum(self.nodes)))
        return sum(gpus * max(min(to_ns, end_ns) - from_ns, 0) for from_ns, to_ns, gpus in lacking)

    def _happens(self, now_ns: int, kind: int, what: Any, ticket: int) -> bool:
        """Take one event in; returns whether the policy is to be asked."""
        if kind == ARRIVE:
            self.active[what.index] = what
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
            job.done += job.rate * (now_ns - job.since_ns) / NS
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
            job.saved = last_ns, job.done + job.rate * (last_ns - job.since_ns) / NS, job.phase

    def _phase_ends(self, now_ns: int, job: Running) -> bool:
        self._book(job, now_ns)
        job.done = job.work.phase_end(job.phase)
        job.phase += 1
        if job.phase < job.work.phases:
            self._rate(job, now_ns)
            return False
        job.end_ns = now_ns
        self.left -= 1
        del self.active[job.index]
        self._count_restart(job, now_ns)
        job.placement, job.counts = EMPTY, ()
        return not self.interval_ns

    def _rate(self, job: Running, now_ns: int) -> None:
        """Set the rate of a placed job, and when its phase ends."""
        where = getattr(job.work, "rate_on", None)  # of work whose speed hangs on the nodes
        job.rate = job.work.rate(job.counts, job.phase) if where is None else where(job.placement)
        if job.ticket is not None:
            self.queue.cancel(job.ticket)
            job.ticket = None
        if job.rate > 0:
            left = max(job.work.phase_end(job.phase) - job.done, 0.0)
            end_ns = max(job.since_ns, now_ns) + max(round(left / job.rate * NS), 0)
            job.ticket = self.queue.push(end_ns, (PHASE, job), PHASE)

    def _stop(self, job: Running, now_ns: int) -> None:
        self._book(job, now_ns)
        if job.placement:
            self._count_restart(job, now_ns)
        if job.ticket is not None:
            self.queue.cancel(job.ticket)
            job.ticket = None
        job.placement, job.counts, job.rate = EMPTY, (), 0.0

    def _count_restart(self, job: Running, now_ns: int) -> None:
        """Book what this placement's restart has held, once it ends."""
        held = (min(now_ns, job.begin_ns) - job.placed_ns) * sum(job.counts)
        job.restart_gpu_ns += held
        if job.after_failure:
            job.recovery_gpu_ns += held
        job.after_failure = False

    def _node(self, now_ns: int, change: NodeChange) -> None:
        self._next_change()
        before = self.nodes[change.node]
        if now_ns > self.changed_ns:
            self.outages.append((self.changed_ns, now_ns, self.whole_gpus - sum(self.nodes)))
            self.changed_ns = now_ns
        self.nodes[change.node] = change.gpus
        if change.gpus >= before:
            return
        self.node_losses += 1
        for job in self.active.values():
            if any(node == change.node for node, _ in job.placement):
                self._fail(job, now_ns)

    def _fail(self, job: Running, now_ns: int) -> None:
        self._book(job, now_ns)
        gpus = sum(job.counts)
        if now_ns < job.begin_ns:  # it was still restarting
            job.lost_gpu_ns += (now_ns - job.placed_ns) * gpus
            job.begin_ns = job.placed_ns
        else:
            saved_ns, units, phase = job.saved
            job.lost_gpu_ns += (now_ns - saved_ns) * gpus
            job.lost_units += job.done - units
            job.done, job.phase = units, phase
        self._stop(job, now_ns)
        job.failures += 1
        job.after_failure = True

    def _decide(self, now_ns: int) -> None:
        for job in self.active.values():
            self._book(job, now_ns)
        order = sorted(self.active)
        views = [self._view(self.active[index]) for index in order]
        snapshot = Snapshot(now_ns / NS, views, tuple(self.nodes), self.memory)
        decision = self.policy.decide(snapshot)
        self.memory = decision.memory
        for index in decision.reject:
            job = self.active.pop(index)
            self._stop(job, now_ns)
            job.rejected = True
            self.left -= 1
        placements = kept_or_placed(snapshot, decision)
        for index in order:
            held = self.active.get(index)
            if held is None:
                continue
            after = placements.get(index, EMPTY)
            if after != held.placement:
                self._move(held, after, now_ns)
        if decision.wake_s is not None and not self.interval_ns:
            wake_ns = max(round(decision.wake_s * NS), now_ns + 1)
            self._wake_at(wake_ns)

    def _move(self, job: Running, after: Placement, now_ns: int) -> None:
        self._stop(job, now_ns)
        if not after:
            return
        job.placement = after
        job.counts = tuple(count for _, count in after)
        job.held_since_ns = now_ns
        if job.start_ns is None:
            job.start_ns = now_ns
        else:
            job.restarts += 1
        job.placed_ns = now_ns
        job.begin_ns = job.since_ns = now_ns + round(job.work.restart_s * NS)
        job.saved = job.begin_ns, job.done, job.phase
        self._rate(job, now_ns)

    def _view(self, job: Running) -> JobView:
        work = job.work
        remaining_s = None
        if hasattr(work, "duration_s"):
            remaining_s = work.duration_s - job.done
        return JobView(
            index=job.index,
            submit_s=job.submit_ns / NS,
            gpus=job.gpus,
            placement=job.placement,
            executed_s=job.held_ns / NS,
            gpu_seconds=job.gpu_ns / NS,
            restarts=job.restarts,
            remaining_s=remaining_s,
            deadline_s=job.deadline_s,
            work=work,
            done=(job.phase, job.done),
        )
