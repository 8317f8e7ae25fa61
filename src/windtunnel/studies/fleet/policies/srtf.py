"""SRTF: shortest remaining time first, with preemption. Ties: submission, then order of the trace.

Walking that order, whatever fits runs. The best mean JCT on one server (Schrage, 1968); it knows all durations.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.studies.fleet.decision import Decision, Snapshot, all_that_fit
from windtunnel.studies.fleet.traits import FAILING, Traits


@dataclass(frozen=True)
class Srtf:
    """No parameter."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Jobs need `remaining_s`."""
        order = sorted(snapshot.jobs, key=lambda job: (job.remaining_s or 0.0, job.submit_s, job.index))
        return all_that_fit(order, snapshot.capacity)


POLICY = Traits(
    name="srtf",
    asks="all",
    make=lambda site, options: Srtf(),
    measured="each",
    capacity=FAILING,
    source="Schrage, 1968",
)
