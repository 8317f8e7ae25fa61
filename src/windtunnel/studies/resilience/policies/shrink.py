"""Shrink and grow: the replica that lost a machine is left out until the machine is replaced; the others go on.

    loss      detect + localise + delta groups; at most the step under way is lost; replicas - 1 until replaced
    return    delta groups + state from a replica
    last replica, software, corrupt state     full restart

Speed with fewer replicas is the predictor's, each replica keeping its part of the batch.
"""

from __future__ import annotations

from windtunnel.studies.resilience.failures import Cause
from windtunnel.studies.resilience.policies.policy import Job, Phases, Policy, Reaction, full_restart, noticed


def shrink(job: Job) -> Policy:
    """The policy for a job."""
    times = job.times
    change = Phases(groups=times.delta_groups, load=times.peer_state)

    def react(cause: Cause, spare: bool) -> Reaction:
        if job.replicas_hit(cause.hosts) >= job.replicas or not cause.hosts:
            return full_restart(cause, times)
        if cause.symptom == "planned":
            return Reaction(Phases(groups=times.delta_groups), keeps_step=True, away_s=times.schedule)
        if cause.symptom in ("silent", "manual"):
            return full_restart(cause, times)
        phases = noticed(cause, times)._replace(groups=times.delta_groups)
        return Reaction(phases, keeps_step=True, away_s=times.replenish)

    return Policy(
        "shrink",
        react,
        away="from the job",
        units=lambda cause: job.replicas_hit(cause.hosts),
        rate=lambda away: job.rate(max(0, job.replicas - away)),
        rejoin=change,
        slow_found_s=times.slow_found,
        swap=change,
    )
