"""AdaptDL's simulator's clock: a tick each 60 s, and everything that it rounds.

Each tick: all jobs advance by 60 s on the allocation of the last tick; jobs submitted by now are admitted; the policy
decides; a job whose allocation changed spends its next 30 s restarting. An epoch that ends inside a tick ends at a
whole second. Jobs restart where only the order of their nodes differs, as published. Source: petuum/adaptdl, branch
osdi21-artifact, simulator/simulator.py (Apache-2.0), as rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from windtunnel.studies.fleet.clock.decision import EMPTY, JobView, Placement, Policy, Snapshot, kept_or_placed

TICK_S = 60
RESTART_S = 30


@dataclass
class Running:
    """One job's state in this clock."""

    index: int
    submit_s: float
    gpus: int
    work: Any
    placement: Placement = EMPTY
    counts: tuple[int, ...] = ()
    restart_left_s: float = 0
    progress: float = 0.0
    epoch: int = 0
    executed_s: float = 0
    gpu_seconds: float = 0.0
    start_s: float | None = None
    end_s: float | None = None
    restarts: int = -1
    now_s: float = field(default=0)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on the allocation held."""
        if not self.counts:
            return
        now_s = self.now_s
        delay = min(self.restart_left_s, seconds)
        self.restart_left_s -= delay
        held = sum(self.counts)
        used = delay
        seconds -= delay
        now_s += delay
        app = self.work.app
        while seconds > 0 and self.end_s is None:
            rate = self.work.rate(self.counts, self.epoch)
            until = app.epoch_end(self.epoch)
            if self.progress + rate * seconds < until:
                self.progress += rate * seconds
                used += seconds
                seconds = 0
            else:
                whole = round((until - self.progress) / rate)
                self.epoch += 1
                self.progress = until
                now_s += whole
                used += whole
                seconds -= whole
                if self.epoch > app.epochs - 1:
                    self.end_s = now_s
        self.gpu_seconds += used * held


def run(jobs: Sequence[Running], nodes: Sequence[int], policy: Policy, *, until_s: float | None = None) -> None:
    """Run until all jobs are done (or `until_s`); each job's fields hold the outcome."""
    now_s = 0
    waiting = sorted(jobs, key=lambda job: job.submit_s)
    active: list[Running] = []
    memory: Any = None
    while waiting or active:
        if until_s is not None and now_s >= until_s:
            return
        if not active and waiting[0].submit_s > now_s + TICK_S:
            now_s = (math.ceil(waiting[0].submit_s / TICK_S) - 1) * TICK_S
        for job in active:
            job.now_s = now_s
            job.advance(TICK_S)
            if job.counts:
                job.executed_s += TICK_S
        now_s += TICK_S
        active = [job for job in active if job.end_s is None]
        arrived = [job for job in waiting if job.submit_s <= now_s]
        if arrived:
            waiting = [job for job in waiting if job.submit_s > now_s]
            active = sorted([*active, *arrived], key=lambda job: job.index)
        if not active:
            continue
        snapshot = Snapshot(now_s, [_view(job, now_s) for job in active], nodes, memory)
        decision = policy.decide(snapshot)
        memory = decision.memory
        placements = kept_or_placed(snapshot, decision)
        for job in active:
            after = placements.get(job.index, EMPTY)
            if after != job.placement:
                _reallocate(job, after, now_s)


def _view(job: Running, now_s: float) -> JobView:
    return JobView(
        index=job.index,
        submit_s=job.submit_s,
        gpus=job.gpus,
        placement=job.placement,
        executed_s=job.executed_s,
        gpu_seconds=job.gpu_seconds,
        restarts=max(job.restarts, 0),
        work=job.work,
        progress=job.epoch,
    )


def _reallocate(job: Running, after: Placement, now_s: float) -> None:
    job.placement = after
    job.counts = tuple(count for _, count in after)
    if not after:
        return
    job.restart_left_s = RESTART_S
    job.restarts += 1
    if job.start_s is None:
        job.start_s = now_s
