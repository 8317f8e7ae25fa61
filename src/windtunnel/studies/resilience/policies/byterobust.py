"""ByteRobust (SOSP 2025): evict more than needed rather than search, wake standbys, update code in place.

machine lost       detect + wake a standby + state from a neighbour's copy (a checkpoint every step: at most one step)
hang               the same without localising: all machines of the suspected pipeline group go
software, people   hot update in place; machines and pods stay
"""

from __future__ import annotations

from windtunnel.studies.resilience.failures import Cause
from windtunnel.studies.resilience.policies.policy import Job, Phases, Policy, Reaction, detection, full_restart


def byterobust(job: Job) -> Policy:
    """The policy for a job."""
    times = job.times

    def react(cause: Cause, spare: bool) -> Reaction:
        if cause.symptom == "silent":
            return full_restart(cause, times)
        if not cause.hosts or cause.symptom == "planned":
            return Reaction(Phases(detect=detection(cause, times), load=times.hot_update), keeps_step=True)
        wait = Phases(groups=times.standby_wake) if spare else Phases(schedule=times.schedule, groups=times.groups)
        phases = wait._replace(
            detect=detection(cause, times), warm_up=0.0 if spare else times.warm_up, load=times.peer_state
        )
        return Reaction(phases, keeps_step=True, away_s=times.replenish)

    def units(cause: Cause) -> int:
        return max(cause.hosts, job.hosts_of_pipeline) if cause.symptom == "hang" else cause.hosts

    swap = Phases(groups=times.standby_wake, load=times.peer_state)
    return Policy("byterobust", react, away="from standbys", units=units, slow_found_s=times.slow_found, swap=swap)
