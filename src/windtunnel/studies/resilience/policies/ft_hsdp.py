"""Replicas that fail alone, as FT-HSDP and torchft do: the others go on while one replica restarts.

    loss      detect + a vote that drops the replica; the replica restarts beside the job: schedule + groups + warm-up
              + load
    return    state from a replica at a step boundary

As `shrink`, but a replica is away only for its own restart, because a machine is scheduled at once.
"""

from __future__ import annotations

from windtunnel.studies.resilience.failures import Cause
from windtunnel.studies.resilience.policies.policy import Job, Phases, Policy, Reaction, full_restart, noticed


def ft_hsdp(job: Job) -> Policy:
    """The policy for a job."""
    times = job.times

    def react(cause: Cause, spare: bool) -> Reaction:
        hit = max(1, job.replicas_hit(cause.hosts))
        if hit >= job.replicas or cause.symptom in ("silent", "manual"):
            return full_restart(cause, times)
        alone = times.groups + times.warm_up + times.load + (times.schedule if cause.hosts else 0.0)
        phases = noticed(cause, times)._replace(groups=times.drop_replica)
        return Reaction(phases, keeps_step=True, away_s=alone)

    return Policy(
        "ft-hsdp",
        react,
        away="from the job",
        units=lambda cause: max(1, job.replicas_hit(cause.hosts)),
        rate=lambda away: job.rate(max(0, job.replicas - away)),
        rejoin=Phases(load=times.peer_state),
    )
