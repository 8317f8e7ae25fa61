"""Plans under what goes wrong: the step on a disturbed cluster, and the progress that failures leave of it.

    score = step time under the disturbances / share of time that is progress

Failures of the whole job come with a mean time between them, 1 / lam (exponential). With a checkpoint every tau seconds
of progress, w to write it and R to restart, the time of one interval is (1 / lam + R) (exp(lam (tau + w)) - 1), and tau
is chosen best (Daly, Future Generation Computer Systems 22, 2006, eq. 13 without his approximation of it). w is the
fullest rank's state over the rate of one writer, so it depends on the plan: sharded optimizers write in parallel.

Both only add to the calm step time, so bounds of that stay bounds, and the search stays exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.errors import SpecError
from windtunnel.physics.hardware import Cluster
from windtunnel.physics.model import Model
from windtunnel.studies.planning.oracle import Layout, predict, saved_bytes_of_a_rank

WRITE_BYTES_PER_S = 1e9  # one rank's share of a parallel file system while all write; an assumption
RESTART_S = 300.0  # noticing, rescheduling, loading; an assumption (Llama 3's report: minutes)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong: disturbances as `predict` takes them, and the job's mean time between failures."""

    slow: tuple[str, ...] = ()
    mtbf_s: float | None = None

    def __post_init__(self) -> None:
        if self.mtbf_s == 0.0:
            raise SpecError("mtbf", self.mtbf_s, "give a time above 0, such as 6h")

    @property
    def most_progress(self) -> float:
        """Share of time that is progress at best, whatever the plan: checkpoints that take no time."""
        return progress(0.0, self.mtbf_s)

    def __bool__(self) -> bool:
        return bool(self.slow) or self.mtbf_s is not None


def progress_score(model: Model, cluster: Cluster, trouble: Trouble) -> Callable[[Layout, int], float]:
    """Nanoseconds of a step's worth of progress, from a layout and its calm step, times the most progress of any plan.

    So it is no less than the calm step, and near it where the plan loses little.
    """
    most = trouble.most_progress

    def score(layout: Layout, step_ns: int) -> float:
        if trouble.slow:
            step_ns = max(step_ns, predict(model, cluster, layout.user_plan, slow=trouble.slow).step_time_ns)
        return step_ns * most / progress(saved_bytes_of_a_rank(layout) / WRITE_BYTES_PER_S, trouble.mtbf_s)

    return score


def progress(write_s: float, mtbf_s: float | None, restart_s: float = RESTART_S) -> float:
    """Share of time that is progress, at the best interval between checkpoints."""
    if mtbf_s is None:
        return 1.0

    def share(interval_s: float) -> float:
        exponent = (interval_s + write_s) / mtbf_s
        return interval_s / ((mtbf_s + restart_s) * math.expm1(exponent)) if exponent < 700.0 else 0.0

    if write_s <= 0.0:  # then all the time
        return mtbf_s / (mtbf_s + restart_s)

    low, high = 1.0, 10.0 * mtbf_s + write_s  # the best one is near sqrt(2 w / lam)
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    while high - low > 1e-3 * low:
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, b) if share(a) >= share(b) else (a, high)
    return max(share(low), 1e-12)
