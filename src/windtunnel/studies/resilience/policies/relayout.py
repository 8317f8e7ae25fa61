"""Policies that lay the job out anew on the machines that are left: Oobleck, Varuna and Parcae.

    oobleck   pipeline templates made in advance: 57 s when a machine leaves, 100 s when it joins; every machine left
              works
    varuna    the best depth and width for the machines left, from the last checkpoint: groups + warm-up + load
    parcae    the same layouts, but live: state moves between machines, no work is lost; groups + warm-up + state

On a cluster without notice of failures Parcae has nothing to forecast; with spot machines see `spot/`. Sources: Oobleck
(SOSP 2023), Varuna (EuroSys 2022), Parcae (NSDI 2024); Oobleck's times as TrainMover (OSDI 2026) measured them.
"""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.studies.resilience.failures import Cause
from windtunnel.studies.resilience.policies.policy import Job, Phases, Policy, Reaction, full_restart, noticed

RateOfHosts = Callable[[int], float]


def oobleck(job: Job) -> Policy:
    """Oobleck for a job: speed follows the machines left."""

    def rate(away: int) -> float:
        return max(0.0, 1.0 - away / job.hosts)

    return _relayout(job, "oobleck", Phases(groups=job.times.leave), Phases(groups=job.times.join), rate, live=True)


def varuna(job: Job) -> Policy:
    """Varuna for a job: whole replicas of the machines left, restarted from a checkpoint."""
    again = Phases(groups=job.times.groups, warm_up=job.times.warm_up, load=job.times.load)
    return _relayout(job, "varuna", again, again, _whole_replicas(job), live=False)


def parcae(job: Job) -> Policy:
    """Parcae for a job: whole replicas of the machines left, by live migration."""
    move = Phases(groups=job.times.groups, warm_up=job.times.warm_up, load=job.times.peer_state)
    return _relayout(job, "parcae", move, move, _whole_replicas(job), live=job.replicas > 1)


def _whole_replicas(job: Job) -> RateOfHosts:
    """Machines left are grouped anew, so a replica is lost only when fewer machines than it needs are missing in
    all."""

    def rate(away: int) -> float:
        left = max(0, job.gpus - away * job.gpus_per_node)
        return job.rate(left * job.replicas // job.gpus)

    return rate


def _relayout(job: Job, name: str, leave: Phases, join: Phases, rate: RateOfHosts, *, live: bool) -> Policy:
    times = job.times

    def react(cause: Cause, spare: bool) -> Reaction:
        if cause.symptom in ("silent", "manual") or not cause.hosts:
            return full_restart(cause, times)
        seen = noticed(cause, times)
        phases = leave._replace(detect=seen.detect, localise=seen.localise)
        return Reaction(phases, keeps_step=live or cause.symptom == "planned", away_s=times.replenish)

    return Policy(name, react, away="from the job", rate=rate, rejoin=join)
