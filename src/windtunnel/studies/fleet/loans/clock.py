"""Lyra on the event loop: jobs, own servers, and servers that a serving pool lends and asks back.

At one time, in this order: loans change, jobs end, jobs arrive; then base demands start, and extra workers are dealt
out. All decisions are functions of `policies/beyond/lyra.py`; here they are carried out and what they cost is counted.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from windtunnel.physics.engine.events import EventQueue
from windtunnel.studies.fleet.loans.servers import Held, Servers
from windtunnel.studies.fleet.policies.beyond.lyra import Lyra, extra_workers, next_to_start, reclaim

NS = 1_000_000_000
LOAN, END, ARRIVE = range(3)  # priorities of what happens at one time


@dataclass
class Training:
    """One job. Work is counted in nanoseconds of its base demand; `speed(gpus)` is relative to that, 1 at `gpus`."""

    index: int
    submit_ns: int
    gpus: int  # base demand
    most: int  # GPUs that it can use
    work_ns: int
    speed: Callable[[int], float] = field(repr=False, default=lambda gpus: 1.0)
    done_ns: float = 0.0
    base_gpus: Held = field(default_factory=list)
    extra: Held = field(default_factory=list)
    rate: float = 0.0
    since_ns: int = 0  # progress is booked up to here; later than now after a pause
    booked_ns: int = 0
    start_ns: int | None = None
    end_ns: int | None = None
    restarts: int = 0
    resizes: int = 0
    lost_ns: float = 0.0  # work done and lost
    gpu_ns: int = 0
    ticket: int | None = None

    @property
    def extras(self) -> int:
        """GPUs above the base demand."""
        return sum(count for _, count in self.extra)

    @property
    def left_ns(self) -> float:
        """Work that is left."""
        return self.work_ns - self.done_ns


class LoanClock:
    """Runs jobs under Lyra.

    `offers`: (time in ns, servers that the pool lends from then on). `loan_speed`: of a borrowed GPU beside an own
    one; a job goes as fast as its slowest. `until_ns`: GPU time is also counted up to here.
    """

    def __init__(
        self,
        jobs: Sequence[Training],
        own: int,
        per_server: int,
        policy: Lyra,
        offers: Sequence[tuple[int, int]] = (),
        *,
        loan_speed: float = 1.0,
        until_ns: int | None = None,
    ) -> None:
        self.jobs, self.policy, self.own, self.per_server = list(jobs), policy, own, per_server
        self.servers = Servers(own, per_server)
        self.loan_speed = loan_speed
        self.until_ns = until_ns
        self.gpu_ns_until = 0
        self.queue: EventQueue[tuple[int, int]] = EventQueue()
        self.waiting: dict[int, list[tuple[float, float, int, int]]] = {}  # by size: (left, submit, job, GPUs)
        self.elastic: dict[int, Training] = {}  # those that run and can use more
        self.on: dict[int, dict[int, int]] = {}  # base GPUs by borrowed server and job
        self.lent: list[tuple[int, int]] = [(0, 0)]  # (time in ns, servers away)
        self.running = 0
        self.stopped = 0
        self.lost_gpu_ns = 0.0
        for job in self.jobs:
            self.queue.push(job.submit_ns, (ARRIVE, job.index), ARRIVE)
        for time_ns, count in offers if policy.loan else ():
            self.queue.push(time_ns, (LOAN, count), LOAN)
        self.place = {job.index: job for job in self.jobs}
        self.unfinished = len(self.jobs)

    def run(self) -> None:
        """Until all jobs are done or none can start any more."""
        while self.unfinished and (time_ns := self.queue.next_ns()) is not None:
            while self.queue.next_ns() == time_ns:
                _, (kind, what), _ = self.queue.pop()
                if kind == ARRIVE:
                    self._wait(self.place[what])
                elif kind == END:
                    self._end(self.place[what], time_ns)
                else:
                    self._change_loan(time_ns, what)
            self._start(time_ns)
            if self.policy.elastic and self.elastic:
                self._deal(time_ns)

    def _wait(self, job: Training) -> None:
        insort(
            self.waiting.setdefault(job.gpus, []), (max(job.left_ns, 0.0), float(job.submit_ns), job.index, job.gpus)
        )

    def _start(self, now_ns: int) -> None:
        """Base demands, as if no extra worker held anything."""
        if not any(self.waiting.values()):
            return
        flexible = [job for job in self.elastic.values() if job.extra]
        spare = sum(job.extras for job in flexible)
        least = min(size for size, jobs in self.waiting.items() if jobs)
        if least > self.servers.free_gpus + spare:
            return
        before = {job.index: job.extra for job in flexible}
        for job in flexible:
            self.servers.release(job.extra)
        while True:
            heads = [jobs[0] for jobs in self.waiting.values() if jobs]
            chosen = next_to_start(heads, self.servers.fits)
            if chosen is None:
                break
            job = self.place[chosen]
            self.waiting[job.gpus].pop(0)
            self._begin(job, now_ns)
        for job in flexible:
            if self.servers.take_again(before[job.index]):
                continue
            self._book(job, now_ns)
            job.extra = []
            self._pause(job, now_ns, self.policy.rescale_s)

    def _deal(self, now_ns: int) -> None:
        """Extra workers, by the knapsack over all that is left over."""
        jobs = list(self.elastic.values())
        extras = [job.extras for job in jobs]
        room = self.servers.free_gpus + sum(extras)
        if room == 0 or (self.servers.free_gpus == 0 and len(jobs) == 1):
            return
        pause = self.policy.rescale_s
        for job in jobs:
            self._book(job, now_ns)
        values = [self._savings(job, now, pause) for job, now in zip(jobs, extras, strict=True)]
        wanted = extra_workers(values, room)
        moves = [(job, now, then) for job, now, then in zip(jobs, extras, wanted, strict=True) if now != then]
        for job, now, then in moves:
            if then < now:
                self.servers.release(job.extra)
                job.extra = []
        for job, now, then in moves:
            more = then - now if then > now else then
            if more:
                job.extra = _merged(job.extra, self.servers.take_extra(more))
            job.resizes += 1
            self._pause(job, now_ns, pause)

    def _savings(self, job: Training, now: int, pause_s: float) -> list[float]:
        """Seconds that each number of extra GPUs saves; a change from what the job holds costs a pause."""
        left_s = max(job.left_ns, 0.0) / NS
        loss = pause_s if now == 0 else 0.0
        values = [left_s - left_s / job.speed(job.gpus + k) - loss for k in range(1, job.most - job.gpus + 1)]
        if now:
            values[now - 1] += pause_s
        return values

    def _begin(self, job: Training, now_ns: int) -> None:
        job.base_gpus = self.servers.take(job.gpus)
        for server, count in job.base_gpus:
            if server >= self.own:
                self.on[server][job.index] = count
        job.booked_ns = now_ns
        job.since_ns = now_ns
        if job.start_ns is None:
            job.start_ns = now_ns
            self._rate(job, now_ns)
        else:
            job.restarts += 1
            self._pause(job, now_ns, self.policy.restart_s)
        if self.policy.elastic and job.most > job.gpus:
            self.elastic[job.index] = job

    def _book(self, job: Training, now_ns: int) -> None:
        """Count progress and GPU time up to now."""
        if now_ns > job.since_ns:
            job.done_ns += (now_ns - job.since_ns) * job.rate
            job.since_ns = now_ns
        if now_ns > job.booked_ns:
            gpus = job.gpus + job.extras
            job.gpu_ns += (now_ns - job.booked_ns) * gpus
            if self.until_ns is not None:
                self.gpu_ns_until += max(min(now_ns, self.until_ns) - job.booked_ns, 0) * gpus
            job.booked_ns = now_ns

    def _pause(self, job: Training, now_ns: int, pause_s: float) -> None:
        """No progress for a while, then at the rate of what is held now."""
        job.since_ns = now_ns + round(pause_s * NS)
        self._rate(job, now_ns)

    def _rate(self, job: Training, now_ns: int) -> None:
        job.rate = job.speed(job.gpus + job.extras) if job.extra else 1.0
        if self.loan_speed != 1.0 and any(server >= self.own for server, _ in (*job.base_gpus, *job.extra)):
            job.rate *= self.loan_speed
        if job.ticket is not None:
            self.queue.cancel(job.ticket)
        end_ns = max(job.since_ns, now_ns) + max(round(job.left_ns / job.rate), 0)
        job.ticket = self.queue.push(end_ns, (END, job.index), END)

    def _end(self, job: Training, now_ns: int) -> None:
        job.ticket = None
        self._leave(job, now_ns)
        job.done_ns = job.work_ns
        job.end_ns = now_ns
        self.unfinished -= 1

    def _leave(self, job: Training, now_ns: int) -> None:
        self._book(job, now_ns)
        if job.ticket is not None:
            self.queue.cancel(job.ticket)
            job.ticket = None
        self.servers.release(job.base_gpus)
        self.servers.release(job.extra)
        for server, _ in job.base_gpus:
            if server >= self.own:
                del self.on[server][job.index]
        job.base_gpus, job.extra = [], []
        self.elastic.pop(job.index, None)

    def _stop(self, job: Training, now_ns: int) -> None:
        """Its servers go back: it returns to its last checkpoint and to the queue."""
        self._leave(job, now_ns)
        step = round(self.policy.checkpoint_s * NS)
        checkpoint_ns = job.done_ns // step * step if step else job.done_ns
        lost = job.done_ns - checkpoint_ns
        job.lost_ns += lost
        job.done_ns = checkpoint_ns
        self.stopped += 1
        self.lost_gpu_ns += lost * job.gpus
        self._wait(job)

    def _change_loan(self, now_ns: int, count: int) -> None:
        away = len(self.on)
        if count > away:
            server = self.own
            for _ in range(count - away):
                while server in self.on:
                    server += 1
                self.on[server] = {}
                self.servers.borrow(server)
        elif count < away:
            self._give_back(now_ns, away - count)
        if count != away:
            self.lent.append((now_ns, count))

    def _give_back(self, now_ns: int, count: int) -> None:
        """Empty servers, then those that only extra workers hold, then those whose jobs are stopped."""
        base_free = sorted((s for s, entry in self.on.items() if not entry), key=lambda s: (-self.servers.free[s], s))
        going = base_free[:count]
        stopped: list[int] = []
        if len(going) < count:
            rest = {server: entry for server, entry in self.on.items() if server not in going}
            chosen, stopped = reclaim(rest, count - len(going))
            going += chosen
        leaving = set(going)
        for index in stopped:
            self._stop(self.place[index], now_ns)
        for job in list(self.elastic.values()):
            if any(server in leaving for server, _ in job.extra):
                self._book(job, now_ns)
                self.servers.release([part for part in job.extra if part[0] in leaving])
                job.extra = [part for part in job.extra if part[0] not in leaving]
                job.resizes += 1
                self._pause(job, now_ns, self.policy.rescale_s)
        for server in going:
            self.servers.give_back(server)
            del self.on[server]


def _merged(before: Held, more: Held) -> Held:
    """One entry for each server."""
    total = dict(before)
    for server, count in more:
        total[server] = total.get(server, 0) + count
    return list(total.items())
