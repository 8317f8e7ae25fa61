"""Full restart: every interruption ends all processes, which start again from the last checkpoint.

    detect + localise + schedule a machine + groups + warm-up + load + work since the checkpoint

The baseline of all others; 6.47 min without the lost work at 8,192 GPUs (TrainMover, OSDI 2026).
"""

from __future__ import annotations

from windtunnel.studies.resilience.policies.policy import Job, Policy, full_restart


def restart(job: Job) -> Policy:
    """The policy for a job. Nobody asks which machine it was before the job starts again, so lemons come back."""
    return Policy("restart", lambda cause, spare: full_restart(cause, job.times), evicts=False)
