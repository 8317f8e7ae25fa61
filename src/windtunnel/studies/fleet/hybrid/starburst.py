"""Starburst on the fleet's clock: a job waits for own GPUs as long as its patience, then runs in the cloud at once.

The own queue is in order of submission and starts all that fits. At one time: ends, arrivals, then one pass over the
queue; whose patience ends then leaves for the cheapest cloud that may hold it. Jobs that no cloud may hold wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from windtunnel.studies.fleet.clock.board import Board, Move, next_in_queue
from windtunnel.studies.fleet.clock.clock import Clock
from windtunnel.studies.fleet.clock.decision import EMPTY
from windtunnel.studies.fleet.clock.queue_policy import QueuePolicy
from windtunnel.studies.fleet.clock.running import Rank, Running
from windtunnel.studies.fleet.clock.work import Rigid
from windtunnel.studies.fleet.hybrid.clouds import Clouds
from windtunnel.studies.fleet.hybrid.plan import NS, CloudRun, HybridJob, offer_of, secret_of
from windtunnel.studies.fleet.policies.beyond.hybrid import STRATEGIES, allowed, choose, patience_s


class Patience(QueuePolicy):
    """`leaves`: jobs that may go elsewhere, with when each has waited long enough, by that time."""

    def __init__(self, leaves: Sequence[tuple[int, Running]]) -> None:
        self.leaves = leaves
        self.passed = 0  # of these, those whose time has come or who run

    def rank(self, job: Running) -> Rank:
        """Rank jobs by arrival."""
        return 0, job.submit_ns, job.index

    def choose(self, board: Board) -> Iterator[Move]:
        """All that fits starts; whose patience has ended leaves."""
        queue = board.queue()
        job = next(queue, None) if board.free_gpus else None
        while job is not None:
            placement = board.gang(job.gpus, 0)
            if placement is not None:
                yield job, placement
            job = next_in_queue(queue, size=placement is None)
        while self.passed < len(self.leaves):
            leaves_ns, job = self.leaves[self.passed]
            if job.start_ns is None and leaves_ns > board.moment.ns:
                board.wake_ns = leaves_ns
                return
            self.passed += 1
            if job.start_ns is None:
                yield job, EMPTY
        board.wake_ns = None


def starburst(jobs: Sequence[HybridJob], clouds: Clouds) -> list[CloudRun | None]:
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
    at_home = [job for job in jobs if job.label <= labels[0]]
    running = {
        job.index: Running(job.index, round(job.submit_s * NS), job.gpus, Rigid(_lasts_s(job, clouds)))
        for job in at_home
    }
    leaves_ns = {
        job.index: running[job.index].submit_ns + round(_patience_s(job, clouds) * NS)
        for job in at_home
        if outside[job.index]
    }
    leaves = sorted(((at_ns, running[index]) for index, at_ns in leaves_ns.items()), key=lambda each: each[0])
    Clock(list(running.values()), [own.gpus], Patience(leaves)).run()
    result: list[CloudRun | None] = []
    for job in jobs:
        here, able = running.get(job.index), outside[job.index]
        if here is not None and here.start_ns is not None:
            result.append(_at_home(job, here.start_ns, clouds))
        elif able:
            result.append(_away(job, leaves_ns.get(job.index, round(job.submit_s * NS)), clouds, able))
        else:
            result.append(None)
    return result


def _patience_s(job: HybridJob, clouds: Clouds) -> float:
    return patience_s(clouds.per, clouds.factor, job.duration_s, job.gpus)


def _lasts_s(job: HybridJob, clouds: Clouds) -> float:
    """On own GPUs: its data move first."""
    own, source = clouds.pools[0], clouds.pools[job.data_at]
    return (own.move_s(job.data_gb, source) if job.data_at and job.data_gb else 0.0) + job.duration_s


def _at_home(job: HybridJob, now_ns: int, clouds: Clouds) -> CloudRun:
    own, source = clouds.pools[0], clouds.pools[job.data_at]
    moved = 0.0 if job.data_at == 0 else job.data_gb
    start_s, lasts_s = now_ns / NS, _lasts_s(job, clouds)
    cost = lasts_s * job.gpus * own.price_per_gpu_s + moved * source.egress_per_gb
    return CloudRun(job.index, 0, start_s, start_s + lasts_s, cost, moved, 0.0, lasts_s * job.gpus)


def _away(job: HybridJob, now_ns: int, clouds: Clouds, outside: Sequence[int]) -> CloudRun:
    late = HybridJob(job.index, now_ns / NS, job.gpus, job.duration_s, job.label, job.data_gb, job.data_at)
    best = choose([offer_of(late, at, clouds, None) for at in outside], STRATEGIES["hybrid-cost"])
    cloud = clouds.pools[best.pool]
    gpu_s = (job.duration_s + cloud.startup_s) * job.gpus
    secret = secret_of(job, cloud, clouds, best.moved_gb)
    return CloudRun(job.index, best.pool, best.start_s, best.end_s, best.cost, best.moved_gb, secret, gpu_s)
