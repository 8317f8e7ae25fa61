"""Pollux: jobs, their GPUs and their batch sizes chosen together, to maximise goodput fairly.

Each interval: maximise the harmonic mean over jobs of speed-up x restart factor. Speed-up = goodput over the goodput on
ceil(G / jobs) GPUs of one node; where the allocation changes it counts max(age - 30 s x restarts, 0) / (age + 30 s)
only. At most one multi-node job per node; at most twice as many GPUs as the job ever tried. The released code searches
by NSGA-II (population 100, 100 generations); here steps between one or two jobs are taken while any improves the mean,
which on the published workloads finds allocations as good or better, and the same ones each time. Of equal steps the
one for the job with least attained service is taken.
Source: A. Qiao et al., "Pollux", OSDI 2021; adaptdl, simulator/pollux.py (Apache-2.0), as rules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.studies.fleet.clock.decision import Decision, Placement, Snapshot
from windtunnel.studies.fleet.traits import FAILING, Traits

RESTART_S = 30.0


@dataclass(frozen=True)
class Pollux:
    """No parameter."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Jobs need `work` with `most_gpus` and `speedups(most, reference)`."""
        from windtunnel.physics.engine.compiled.fleet.allocation_kernels import allocate

        jobs = sorted(snapshot.jobs, key=lambda job: (job.gpu_seconds, job.submit_s))
        nodes = np.array(snapshot.nodes, dtype=np.int64)
        before = np.zeros((len(jobs), len(nodes)), dtype=np.int64)
        for row, job in enumerate(jobs):
            for node, count in job.placement:
                before[row, node] += count
        most = np.array([min(job.work.most_gpus, snapshot.capacity) for job in jobs], dtype=np.int64)
        fair = -(-snapshot.capacity // len(jobs))
        speedup = np.zeros((len(jobs), 2, int(most.max()) + 1))
        for row, job in enumerate(jobs):
            speedup[row, :, : int(most[row]) + 1] = job.work.speedups(int(most[row]), fair)
        age = np.array([snapshot.now_s - job.submit_s for job in jobs])
        restarts = np.array([job.restarts for job in jobs])
        factor = np.maximum(age - restarts * RESTART_S, 0.0) / (age + RESTART_S)
        cells = np.empty_like(before)
        allocate(before, speedup, factor, most, nodes, len(nodes) / snapshot.capacity, cells)
        placement: dict[int, Placement] = {}
        for row, node in np.argwhere(cells).tolist():
            index = jobs[row].index
            placement[index] = (*placement.get(index, ()), (node, int(cells[row, node])))
        return Decision({index: sum(count for _, count in on) for index, on in placement.items()}, placement)


POLICY = Traits(
    name="pollux",
    asks="rounds",
    make=lambda site, options: Pollux(),
    needs=frozenset({"speed"}),
    sizes=True,
    capacity=FAILING,
    interval_s=60.0,
)
