"""Themis as published: GPUs on lease, auctioned to those furthest behind, who pay with a part of what they win.

Finish-time fairness of a job with h GPUs: rho = (time in the system + work left / h) / time alone on 1/N of the
cluster, N the jobs there now; its worth is V(h) = 1 / rho, 0 with no GPU. Whenever a lease ends or GPUs are free:

    1  free GPUs and those whose leases end are offered to the worst 1 - f of the jobs that can use more (f = 0.8)
    2  the winning bids maximise the product of V: here GPU by GPU to the largest gain of log V, which is the maximum,
       since log V is concave in h
    3  job i keeps floor(c_i x what it won), at least one, c_i = product over the others of V / V had i not been there;
       that they lose by i is what i pays, so that bidding the truth is best
    4  what is left goes to jobs that were not asked, one GPU at a time, at random; then back to the bidders

Each grant is a lease of 20 minutes. Jobs are divisible as in the paper, where an app is many small jobs: work left in
GPU-seconds, on any number of GPUs up to those asked for. Where fewer GPUs are offered than jobs bid, as many of the
worst bid: with someone at V = 0 the product says nothing. Rounding down, and what to do with GPUs that nobody else can
use, are ours: the paper does not say. Placement does not change V here.
Source: K. Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020, sections 3 to 5.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from windtunnel.studies.fleet.clock.decision import Decision, JobView, Snapshot
from windtunnel.studies.fleet.traits import FAILING, Traits

SOON_S = 1e-6  # a lease that ends within this has ended: clocks round to nanoseconds


class Bid(NamedTuple):
    """What a job says: seconds in the system, GPU-seconds left, GPUs that it keeps, and can use in all."""

    age_s: float
    left: float
    least: int
    most: int

    def gain(self, gpus: int) -> float:
        """Of log V by one GPU more than `gpus`."""
        if gpus == 0:
            return math.inf
        return math.log((self.age_s + self.left / gpus) / (self.age_s + self.left / (gpus + 1)))


Leases = Mapping[int, tuple[tuple[float, int], ...]]  # by job: (end, GPUs) of each


@dataclass(frozen=True)
class Auction:
    """`fairness`: f. `seed` draws who gets what the auction leaves over."""

    seed: int = 0
    lease_s: float = 1200.0
    fairness: float = 0.8

    def decide(self, snapshot: Snapshot) -> Decision:
        """Jobs need `remaining_s` on all that they ask for, and `done`. Memory: auctions held, and leases."""
        memory: tuple[int, Leases] | None = snapshot.memory
        auctions, old_leases = memory or (0, {})
        now_s, jobs = snapshot.now_s, {job.index: job for job in snapshot.jobs}
        leases = {
            index: tuple(lease for lease in old_leases.get(index, ()) if lease[0] > now_s + SOON_S)
            for index, job in jobs.items()
            if job.placement
        }
        leased = {index: sum(gpus for _, gpus in leases.get(index, ())) for index in jobs}
        offered = snapshot.capacity - sum(leased.values())
        awarded = self._auction(list(jobs.values()), leased, offered, snapshot, auctions) if offered > 0 else {}
        for index, gpus in awarded.items():
            leases[index] = (*leases.get(index, ()), (now_s + self.lease_s, gpus))
        total = {index: leased[index] + awarded.get(index, 0) for index in jobs}
        ends = [lease[0] for each in leases.values() for lease in each]
        return Decision(
            {index: gpus for index, gpus in total.items() if gpus > 0},
            wake_s=min(ends) if ends else None,
            memory=(auctions + (offered > 0), {index: lease for index, lease in leases.items() if lease}),
        )

    def _auction(
        self, jobs: Sequence[JobView], leased: Mapping[int, int], offered: int, snapshot: Snapshot, auctions: int
    ) -> dict[int, int]:
        """GPUs that each job gets of those offered."""
        share = max(snapshot.capacity / len(jobs), 1.0)
        bids, alone_s = dict[int, Bid](), dict[int, float]()
        for job in jobs:
            left_s = job.remaining_s or 0.0
            work = max(left_s, 1e-9) * job.gpus
            bids[job.index] = Bid(snapshot.now_s - job.submit_s, work, leased[job.index], job.gpus)
            alone_s[job.index] = (left_s + float(job.progress[1])) * max(job.gpus / share, 1.0)

        def behind(index: int) -> tuple[bool, float, int]:
            """The worst first: rho is infinite with no GPU; of these by what it were with all."""
            bid = bids[index]
            rho = (bid.age_s + bid.left / (bid.least or bid.most)) / max(alone_s[index], 1e-9)
            return bid.least > 0, -rho, index

        wanting = sorted((index for index, bid in bids.items() if bid.least < bid.most), key=behind)
        n_bidders = min(max(math.ceil((1 - self.fairness) * len(jobs) - 1e-9), 1), offered, len(wanting))
        bidders = wanting[:n_bidders]
        won = partial_allocation([bids[index] for index in bidders], offered)
        awarded = dict(zip(bidders, won, strict=True))
        random = np.random.default_rng((self.seed, auctions))
        for queue in (wanting[n_bidders:], bidders):
            offered_now = offered - sum(awarded.values())
            for index in _draw(queue, bids, awarded, offered_now, random):
                awarded[index] = awarded.get(index, 0) + 1
        return {index: gpus for index, gpus in awarded.items() if gpus > 0}


def _draw(
    queue: Sequence[int], bids: Mapping[int, Bid], entry: Mapping[int, int], gpus: int, random: np.random.Generator
) -> list[int]:
    """Who gets each of the left-over GPUs: drawn from those of `queue` that can use one more."""
    room = {index: bids[index].most - bids[index].least - entry.get(index, 0) for index in queue}
    there = [index for index in queue if room[index] > 0]
    result: list[int] = []
    while there and len(result) < gpus:
        at = int(random.integers(len(there)))
        result.append(there[at])
        room[there[at]] -= 1
        if room[there[at]] == 0:
            there[at] = there[-1]
            there.pop()
    return result


def proportional(bids: Sequence[Bid], have: Sequence[int], gpus: int, without: int = -1) -> tuple[list[int], float]:
    """GPUs for each bid beyond `have`, so that the product of V is largest; and by how much its logarithm grows.

    `without`: a bid that gets nothing.
    """
    awarded = [0] * len(bids)
    heap = [
        (-bid.gain(bid.least + have[at]), at)
        for at, bid in enumerate(bids)
        if at != without and bid.least + have[at] < bid.most
    ]
    heapq.heapify(heap)
    grown = 0.0
    while heap and gpus > 0:
        gain, at = heapq.heappop(heap)
        awarded[at] += 1
        grown -= gain
        gpus -= 1
        now = bids[at].least + have[at] + awarded[at]
        if now < bids[at].most:
            heapq.heappush(heap, (-bids[at].gain(now), at))
    return awarded, grown


def partial_allocation(bids: Sequence[Bid], gpus: int) -> list[int]:
    """What each bid wins after its payment. No more bids than GPUs.

    Had one not been there, the others would go on from what they have, since the GPUs are given in falling order of
    gain whoever takes part.
    """
    won, _ = proportional(bids, [0] * len(bids), gpus)
    result = []
    for at, mine in enumerate(won):
        _, lost = proportional(bids, won, mine, without=at)
        result.append(max(math.floor(math.exp(-lost) * mine + 1e-9), min(mine, 1)))
    return result


POLICY = Traits(
    name="themis-auction",
    asks="all",
    make=lambda site, options: Auction(seed=options.seed),
    measured="each",
    divides=True,
    capacity=FAILING,
)
