"""EDF as in ElasticFlow's evaluation: each job as wide as it can be, in deadline order; nobody is turned away.

At each decision, in deadline order (ties: order of the trace; no deadline last), a job takes the largest number of GPUs
on which it was measured, up to its cap (64, its batch) and to what is free. Decisions are at least a slot apart.
Source: D. Gu et al., "ElasticFlow", ASPLOS 2023, section 6; pkusys/ElasticFlow, as rules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel.studies.fleet.clock.decision import Decision, JobView, Snapshot
from windtunnel.studies.fleet.speeds.scaling import slot_of
from windtunnel.studies.fleet.traits import Traits


@dataclass(frozen=True)
class Edf:
    """`slot_s`: least time between decisions."""

    slot_s: float = 60.0

    def decide(self, snapshot: Snapshot) -> Decision:
        """Jobs need `work` with `levels` (`clock/work.py`, Scaling)."""
        free = snapshot.capacity
        gpus: dict[int, int] = {}
        for job in sorted(snapshot.jobs, key=by_deadline):
            count = max((level for level in job.work.levels if level <= free), default=0)
            gpus[job.index] = count
            free -= count
        return Decision({index: count for index, count in gpus.items() if count})


def by_deadline(job: JobView) -> tuple[float, int]:
    """The order of deadlines."""
    return math.inf if job.deadline_s is None else job.deadline_s, job.index


POLICY = Traits(
    name="edf",
    asks="all",
    make=lambda site, options: Edf(slot_of(site.gpu)),
    needs=frozenset({"speed", "deadline"}),
    sizes=True,
    slots=True,
    restarts=False,
    other_names=("edf-elastic",),
)
