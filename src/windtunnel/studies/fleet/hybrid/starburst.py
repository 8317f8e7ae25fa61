"""Starburst on the event loop: a job waits for own GPUs as long as its patience, then runs in the cloud at once.

The own queue is in order of submission and starts all that fits. At one time: ends, arrivals, then one pass over the
queue; whose patience ends then leaves for the cheapest cloud that may hold it. Jobs that no cloud may hold wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from windtunnel.physics.engine.events import EventQueue
from windtunnel.studies.fleet.hybrid.clouds import Clouds
from windtunnel.studies.fleet.hybrid.plan import NS, HybridJob, Placed, offer_of, secret_of
from windtunnel.studies.fleet.policies.hybrid import STRATEGIES, allowed, choose, patience_s

END, ARRIVE, LEAVE = range(3)


def starburst(jobs: Sequence[HybridJob], clouds: Clouds) -> list[Placed | None]:
    """What becomes of each job; None where nobody may hold it."""
    own = clouds.pools[0]
    assert own.gpus is not None
    labels = [cloud.privacy for cloud in clouds.pools]
    outside = {
        job.index: [
            at
            for at in allowed(job.label, labels)
            if at > 0 and clouds.pools[at].gpus is None and clouds.pools[at].spot_s is None
        ]
        for job in jobs
    }
    by_index = {job.index: job for job in jobs}
    queue: EventQueue[tuple[int, int]] = EventQueue()
    for job in jobs:
        queue.push(round(job.submit_s * NS), (ARRIVE, job.index), ARRIVE)
    waiting: dict[int, deque[int]] = {}  # by size, in order of arrival
    gone: set[int] = set()
    order: dict[int, int] = {}
    free = own.gpus
    result: list[Placed | None] = [None] * len(jobs)
    while (time_ns := queue.next_ns()) is not None:
        leaving: list[int] = []
        while queue.next_ns() == time_ns:
            _, (kind, index), _ = queue.pop()
            job = by_index[index]
            if kind == END:
                free += job.gpus
            elif kind == LEAVE:
                leaving.append(index)
            elif job.label <= labels[0]:
                order[index] = len(order)
                waiting.setdefault(job.gpus, deque()).append(index)
                if outside[index]:
                    patience = patience_s(clouds.per, clouds.factor, job.duration_s, job.gpus)
                    queue.push(time_ns + round(patience * NS), (LEAVE, index), LEAVE)
            elif outside[index]:
                leaving.append(index)
        while free > 0:
            heads = [line[0] for size, line in waiting.items() if size <= free and _live(line, gone)]
            if not heads:
                break
            index = min(heads, key=order.__getitem__)
            job = by_index[index]
            waiting[job.gpus].popleft()
            gone.add(index)
            free -= job.gpus
            placed = _at_home(job, time_ns, clouds)
            result[index] = placed
            queue.push(time_ns + round((placed.end_s - placed.start_s) * NS), (END, index), END)
        for index in leaving:
            if index in gone:
                continue
            gone.add(index)
            result[index] = _away(by_index[index], time_ns, clouds, outside[index])
    return result


def _live(line: deque[int], gone: set[int]) -> bool:
    """Whether somebody still waits in this line, whose first is then one of them."""
    while line and line[0] in gone:
        line.popleft()
    return bool(line)


def _at_home(job: HybridJob, now_ns: int, clouds: Clouds) -> Placed:
    own, source = clouds.pools[0], clouds.pools[job.data_at]
    moved = 0.0 if job.data_at == 0 else job.data_gb
    start_s = now_ns / NS
    lasts_s = (own.move_s(moved, source) if moved else 0.0) + job.duration_s
    cost = lasts_s * job.gpus * own.price_per_gpu_s + moved * source.egress_per_gb
    return Placed(job.index, 0, start_s, start_s + lasts_s, cost, moved, 0.0, lasts_s * job.gpus)


def _away(job: HybridJob, now_ns: int, clouds: Clouds, outside: Sequence[int]) -> Placed:
    late = HybridJob(job.index, now_ns / NS, job.gpus, job.duration_s, job.label, job.data_gb, job.data_at)
    best = choose([offer_of(late, at, clouds, None) for at in outside], STRATEGIES["hybrid-cost"])
    cloud = clouds.pools[best.pool]
    gpu_s = (job.duration_s + cloud.startup_s) * job.gpus
    secret = secret_of(job, cloud, clouds, best.moved_gb)
    return Placed(job.index, best.pool, best.start_s, best.end_s, best.cost, best.moved_gb, secret, gpu_s)
