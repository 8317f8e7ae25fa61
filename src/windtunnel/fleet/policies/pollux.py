"""Pollux: jobs, their GPUs and their batch sizes chosen together, to maximise goodput fairly.

Each interval: maximise the harmonic mean over jobs of speed-up x restart factor, by NSGA-II (population 100, 100
generations at most, and no more once `patience` of them in a row have not improved that mean) from the last interval's
front. Speed-up = goodput over the goodput on ceil(G / jobs) GPUs of one node;
where the allocation changes it counts max(age - 30 s x restarts, 0) / (age + 30 s) only. At most one multi-node job per
node; at most twice as many GPUs as the job ever tried. Where nodes overflow, jobs with least attained service win.
Source: A. Qiao et al., "Pollux", OSDI 2021; adaptdl, simulator/pollux.py (Apache-2.0), as rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError
from windtunnel.fleet.decision import Decision, JobView, Placement, Snapshot

RESTART_S = 30.0
States = NDArray[np.uint64]  # packed, [state, job, word]


@dataclass(frozen=True)
class Memory:
    """The last front: which jobs its rows are, the states, and how many decisions were made."""

    jobs: tuple[int, ...]
    states: States
    round: int


@dataclass(frozen=True)
class Pollux:
    """`seed` makes runs repeatable: Pollux itself is random."""

    seed: int = 0
    population: int = 100
    generations: int = 100
    patience: int = 10

    def decide(self, snapshot: Snapshot) -> Decision:
        """Jobs need `work` with `most_gpus` and `speedups(most, reference)`."""
        from windtunnel.engine.compiled.genetic_kernels import MOST_PER_NODE, pack, search, some_of, unpack

        if max(snapshot.nodes) > MOST_PER_NODE:
            raise SpecError("--cluster", f"{max(snapshot.nodes)} GPUs a node", f"pollux knows at most {MOST_PER_NODE}")
        jobs = sorted(snapshot.jobs, key=lambda job: (job.gpu_seconds, job.submit_s))
        nodes = np.array(snapshot.nodes, dtype=np.int64)
        counts = np.zeros((len(jobs), len(nodes)), dtype=np.int64)
        for row, job in enumerate(jobs):
            for node, count in job.placement:
                counts[row, node] += count
        base = pack(counts)
        memory: Memory | None = snapshot.memory
        start = base[None] if memory is None else _carried(memory, jobs)
        most = np.array([min(job.work.most_gpus, snapshot.capacity) for job in jobs], dtype=np.int64)
        fair = -(-snapshot.capacity // len(jobs))
        width = snapshot.capacity + 1
        speedup = np.zeros((len(jobs), 2, width))
        for row, job in enumerate(jobs):
            speedup[row, :, : int(most[row]) + 1] = job.work.speedups(int(most[row]), fair)
        age = np.array([snapshot.now_s - job.submit_s for job in jobs])
        restarts = np.array([job.restarts for job in jobs])
        factor = np.maximum(age - restarts * RESTART_S, 0.0) / (age + RESTART_S)
        round_ = memory.round + 1 if memory else 0
        seed = (self.seed * 1_000_003 + round_) % 2**31
        share = len(nodes) / snapshot.capacity
        limits = some_of(len(jobs)), self.population, self.generations, self.patience
        states, best = search(start, base, speedup, factor, most, nodes, share, *limits, seed)
        placement = _placements(unpack(states[best], len(nodes)), jobs)
        return Decision(
            gpus={index: sum(count for _, count in cells) for index, cells in placement.items()},
            placement=placement,
            memory=Memory(tuple(job.index for job in jobs), states, round_),
        )


def _carried(memory: Memory, jobs: list[JobView]) -> States:
    """The last front for today's jobs: rows of jobs that left go, rows of new ones are empty."""
    row_of = {index: row for row, index in enumerate(memory.jobs)}
    rows = [(row, row_of[job.index]) for row, job in enumerate(jobs) if job.index in row_of]
    states: States = np.zeros((len(memory.states), len(jobs), memory.states.shape[2]), np.uint64)
    if rows:
        now, before = zip(*rows, strict=True)
        states[:, now] = memory.states[:, before]
    return states


def _placements(cells: Any, jobs: list[JobView]) -> dict[int, Placement]:
    """Of the jobs that hold GPUs in `cells`, [job, node]."""
    rows, nodes = np.nonzero(cells)
    held: dict[int, list[tuple[int, int]]] = {}
    for row, node, count in zip(rows.tolist(), nodes.tolist(), cells[rows, nodes].tolist(), strict=True):
        held.setdefault(jobs[row].index, []).append((node, count))
    return {index: tuple(on) for index, on in held.items()}
