"""Lab 7: how often to write a checkpoint. Fill in the functions; README.md explains them.

All times are in seconds of wall clock. Failures of a job strike at random with a mean time between them, `mtbf_s`,
whatever it is doing. `write_s`: the job waits for a checkpoint. `restart_s`: from a failure until it works again.
`interval_s`: work between two checkpoints. ETTR, the effective training time ratio, is kept work over wall time.
"""

from __future__ import annotations

import numpy as np


def job_mtbf_s(gpus: int, one_gpu_mtbf_s: float) -> float:
    """Mean time between failures of a job that stops when any of its GPUs does."""
    raise NotImplementedError


def linear_ettr(mtbf_s: float, restart_s: float, write_s: float, interval_s: float) -> float:
    """ETTR where failures are rare: a failure costs a restart and half an interval. At least 0."""
    raise NotImplementedError


def exact_ettr(mtbf_s: float, restart_s: float, write_s: float, interval_s: float) -> float:
    """ETTR under Poisson failures that strike while writing and restarting as well."""
    raise NotImplementedError


def young_s(mtbf_s: float, write_s: float) -> float:
    """Young's interval."""
    raise NotImplementedError


def daly_s(mtbf_s: float, write_s: float) -> float:
    """Daly's correction of it."""
    raise NotImplementedError


def best_interval_s(mtbf_s: float, restart_s: float, write_s: float) -> float:
    """Interval between 1 s and a day with the largest exact ETTR, to a part in a thousand, by search."""
    raise NotImplementedError


def simulated_ettr(
    mtbf_s: float, restart_s: float, write_s: float, interval_s: float, segments: int, rng: np.random.Generator
) -> float:
    """ETTR of one run until `segments` intervals of work are kept, its failures drawn from `rng`."""
    raise NotImplementedError
