"""SRTF: shortest remaining time first, with preemption. Ties: submission, then order of the trace.

Walking that order, whatever fits runs. The best mean JCT on one server (Schrage, 1968); it knows all durations.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.fleet.decision import Decision, Snapshot


@dataclass(frozen=True)
class Srtf:
    """No parameter."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Jobs need `remaining_s`."""
        free = snapshot.capacity
        gpus: dict[int, int] = {}
        for job in sorted(snapshot.jobs, key=lambda job: (job.remaining_s or 0.0, job.submit_s, job.index)):
            if job.gpus <= free:
                gpus[job.index] = job.gpus
                free -= job.gpus
        return Decision(gpus)
