"""Themis: finish-time fairness. GPUs go to the jobs that are furthest behind their share.

rho = (time in the system so far + time still needed on its GPUs) / time alone on 1/N of the cluster, N jobs now. Each
round the jobs with the largest rho run first; ties by submission. The paper's auction, which needs jobs that can run
on fewer GPUs than they ask for, is `auction.py`.
Source: K. Mahajan et al., "Themis", NSDI 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.studies.fleet.clock.decision import Decision, JobView, Snapshot, all_that_fit
from windtunnel.studies.fleet.traits import FAILING, Traits


@dataclass(frozen=True)
class Themis:
    """No parameter."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Jobs need `remaining_s`."""
        share = max(snapshot.capacity / max(len(snapshot.jobs), 1), 1.0)

        def rho(job: JobView) -> float:
            left_s = job.remaining_s or 0.0
            alone_s = (job.executed_s + left_s) * max(job.gpus / share, 1.0)
            return (snapshot.now_s - job.submit_s + left_s) / max(alone_s, 1e-9)

        order = sorted(snapshot.jobs, key=lambda job: (-rho(job), job.submit_s, job.index))
        return all_that_fit(order, snapshot.capacity)


LEASE_S = 1200.0  # 20 minutes in its paper
POLICY = Traits(
    name="themis",
    asks="rounds",
    make=lambda site, options: Themis(),
    measured="each",
    capacity=FAILING,
    interval_s=LEASE_S,
)
