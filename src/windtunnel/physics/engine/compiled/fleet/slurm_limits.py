"""Limits of Slurm's associations and qualities of service, which a running job counts against.

Arrays are those of `slurm_kernels.py`.
"""

from __future__ import annotations

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array
from windtunnel.physics.engine.compiled.fleet.slurm_arrays import GPUS, GROUP


@njit(cache=True)
def allowed(jobs: Array, first: Array, caps: Array, used: Array, job: int) -> bool:
    """Whether limits let it run now."""
    group = jobs[GROUP, job]
    for at in range(first[group], first[group + 1]):
        counter = caps[at, 0]
        if caps[at, 1] >= 0 and used[counter, 0] + jobs[GPUS, job] > caps[at, 1]:
            return False
        if caps[at, 2] >= 0 and used[counter, 1] >= caps[at, 2]:
            return False
    return True


@njit(cache=True)
def count(jobs: Array, first: Array, caps: Array, used: Array, job: int, sign: int) -> None:
    """A job counts against its limits, or no longer."""
    group = jobs[GROUP, job]
    for at in range(first[group], first[group + 1]):
        used[caps[at, 0], 0] += sign * jobs[GPUS, job]
        used[caps[at, 0], 1] += sign
