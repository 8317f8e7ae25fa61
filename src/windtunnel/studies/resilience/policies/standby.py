"""TrainMover (OSDI 2026): a failed machine is replaced by a warm standby, the layout stays.

    with a standby     detect + localise + delta groups + state from a peer; at most the step under way is lost
    without            the same after scheduling a machine and warming it up
    planned            delta groups + state
    software           processes are gone, machines are not: restart without scheduling

What makes a standby warm, and how its groups are built: docs/resilience-live.md.
"""

from __future__ import annotations

from windtunnel.studies.resilience.failures import Cause
from windtunnel.studies.resilience.policies.policy import Job, Phases, Policy, Reaction, full_restart, noticed


def standby(job: Job) -> Policy:
    """The policy for a job."""
    times = job.times

    def react(cause: Cause, spare: bool) -> Reaction:
        if cause.symptom in ("silent", "manual") or not (cause.hosts or cause.symptom == "planned"):
            # Corrupt state or new code: nothing in memory is worth keeping.
            return full_restart(cause, times)
        phases = noticed(cause, times)._replace(groups=times.delta_groups, load=times.peer_state)
        if not spare and cause.symptom != "planned":  # a planned change waits until its machine is warm
            phases = phases._replace(schedule=times.schedule, warm_up=times.warm_up)
        return Reaction(phases, keeps_step=True, away_s=times.replenish)

    swap = Phases(groups=times.delta_groups, load=times.peer_state)
    return Policy("standby", react, away="from standbys", slow_found_s=times.slow_found, swap=swap)
