"""How fast a job is on each number of GPUs where no table was measured: asked of whoever can predict it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from windtunnel.errors import UserError
from windtunnel.fleet.jobs.trace import Jobs

Speeds = Callable[[Jobs, int, str, int, int], Mapping[int, float]]
"""(jobs, row, kind of GPU, GPUs of a node, GPUs in all) -> iterations per second by number of GPUs that it fits on."""
Runtime = Callable[[str, float, int], float]  # (model, batch, GPUs) -> seconds of an iteration
MOST = 512  # GPUs of one job


def sizes(asked: int, batch: float, most: int, least: int = 1) -> list[int]:
    """Numbers of GPUs worth a look: `least` doubled, and what the job asks for, as far as they divide the batch."""
    most = min(MOST, most)
    doubled = [least << power for power in range(most.bit_length())]
    return sorted({n for n in (*doubled, asked) if n <= most and n % least == 0 and batch % (n // least) == 0})


def speeds_by(runtime: Runtime) -> Speeds:
    """Speeds from seconds of an iteration. What it returns raises UserError for a job without batch_size."""

    def speeds(jobs: Jobs, index: int, kind: str, per_node: int, most: int) -> Mapping[int, float]:
        batch = float(jobs.batch_size[index])
        if math.isnan(batch):
            raise UserError(f"{jobs.where(index)}: batch_size is missing: how fast this job is hangs on it")
        looked = sizes(int(jobs.gpus[index]), batch, most)
        took = {gpus: runtime(jobs.model[index], batch, gpus) for gpus in looked}
        return {gpus: 1 / seconds for gpus, seconds in took.items() if 0 < seconds < math.inf}

    return speeds
