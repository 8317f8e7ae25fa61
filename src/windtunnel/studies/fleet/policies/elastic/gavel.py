"""Gavel: max-min fair shares of time on each kind of GPU, made real in rounds.

Every 360 s: the linear program of `kinds/programs.py` gives each job its share X of time on each kind, for the GPUs
that it asks for. Then jobs take the round in falling order of priority = X / (share of its time in the system that it
has had on that kind), infinite where it had none, while GPUs of the kind are left; one kind a job and round; ties:
larger X, submission, row. A job that keeps its kind keeps its nodes.
Source: D. Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020
(policy max-min fairness, no space sharing). Of the many solutions of the program the paper names none: here, of those
with the best least job, the one with the largest sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from windtunnel.studies.fleet.clock.decision import Decision, Snapshot
from windtunnel.studies.fleet.kinds.programs import shares
from windtunnel.studies.fleet.kinds.work import capacity_of, decision
from windtunnel.studies.fleet.traits import FAILING, Traits

ROUND_S = 360.0


@dataclass(frozen=True)
class Gavel:
    """`kinds`: of each node."""

    kinds: tuple[str, ...]
    per_node: int
    interval_s: float = ROUND_S

    def decide(self, snapshot: Snapshot) -> Decision:
        """Jobs need `work` with `rates`. Memory: when it was asked last, and seconds by job and kind."""
        last_s, had = snapshot.memory or (snapshot.now_s, {})
        had = self._booked(snapshot, had, snapshot.now_s - last_s)
        free = capacity_of(snapshot, self.kinds)
        names = list(free)
        speed = np.array([[job.work.rates.get(kind, {}).get(job.gpus, 0.0) for kind in names] for job in snapshot.jobs])
        share = shares(speed, [job.gpus for job in snapshot.jobs], list(free.values()))
        queue = []
        for row, job in enumerate(snapshot.jobs):
            time_s = max(snapshot.now_s - job.submit_s, 1e-9)
            for column, kind in enumerate(names):
                x = float(share[row, column])
                if x <= 1e-9:
                    continue
                received = had.get(job.index, {}).get(kind, 0.0) / time_s
                priority = x / received if received > 0 else math.inf
                queue.append((-priority, -x, job.submit_s, job.index, kind, job.gpus))
        chosen: dict[int, tuple[str, int]] = {}
        for *_, index, kind, gpus in sorted(queue):
            if index not in chosen and gpus <= free[kind]:
                chosen[index] = (kind, gpus)
                free[kind] -= gpus
        return decision(snapshot, chosen, self.kinds, self.per_node, memory=(snapshot.now_s, had))

    def _booked(
        self, snapshot: Snapshot, had: Mapping[int, Mapping[str, float]], lasted_s: float
    ) -> dict[int, dict[str, float]]:
        """Seconds by job and kind, with the round that has passed; jobs that left are forgotten."""
        result = {}
        for job in snapshot.jobs:
            mine = dict(had.get(job.index, {}))
            if job.placement:
                kind = self.kinds[job.placement[0][0]]
                mine[kind] = mine.get(kind, 0.0) + lasted_s
            result[job.index] = mine
        return result


POLICY = Traits(
    name="gavel",
    asks="rounds",
    make=lambda site, options: Gavel(site.node_kinds, site.per_node),
    needs=frozenset({"speed"}),
    sizes=False,
    kinds=True,
    capacity=FAILING,
    interval_s=ROUND_S,
)
