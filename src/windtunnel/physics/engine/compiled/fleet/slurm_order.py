"""The order of Slurm's queue: who may preempt and the partition's tier, priority, submission.

Arrays are those of `slurm_kernels.py`.
"""

from __future__ import annotations

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array
from windtunnel.physics.engine.compiled.fleet.slurm_arrays import AFTER, BAND, WAITING


@njit(cache=True)
def enqueue(jobs: Array, priority: Array, queue: Array, job: int, many: int) -> None:
    """A job joins `many` that wait."""
    low, high = 0, many
    while low < high:
        middle = (low + high) // 2
        other = queue[middle]
        if jobs[BAND, job] != jobs[BAND, other]:
            before = jobs[BAND, job] < jobs[BAND, other]
        elif priority[job] != priority[other]:
            before = priority[job] > priority[other]
        else:
            before = jobs[AFTER, job] < jobs[AFTER, other]
        if before:
            high = middle
        else:
            low = middle + 1
    for at in range(many, low, -1):
        queue[at] = queue[at - 1]
    queue[low] = job


@njit(cache=True)
def order(now: Array, jobs: Array, priority: Array, queue: Array) -> None:
    """Those that wait stand by their priorities, where these have changed."""
    waiting = queue[: now[WAITING]].copy()
    for many in range(len(waiting)):
        enqueue(jobs, priority, queue, waiting[many], many)
