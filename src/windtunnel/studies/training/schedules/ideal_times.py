"""When each action of a schedule ends if communication is free, in plain Python.

Every rank runs its list in order, each action waits for its dependencies, sends are asynchronous (a rank never waits
for a receiver). The schedule ends if and only if the union of the program orders and the dependencies has no cycle,
which is what walking it to the end finds out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import ScheduleError
from windtunnel.studies.training.schedules.table import Schedule

Seconds = NDArray[np.float64]


def walk(schedule: Schedule, duration: ArrayLike, fused: float | None = None) -> Seconds:
    """End of each action when communication is free and each rank runs its list in order. Raises on a deadlock.

    Overlapped pairs run one after the other; with `fused` they run as one action, which starts when both can, takes
    `fused` times the sum of the two, and ends for both at once. Plain Python on purpose: this is the oracle that the
    engine is held against.
    """
    pointer, index = (a.tolist() for a in schedule.depends())
    cost: list[float] = np.broadcast_to(np.asarray(duration, np.float64), schedule.rank.shape).tolist()
    offset: list[int] = schedule.rank_offset.tolist()
    end: list[float] = [-1.0] * len(cost)  # -1: not run yet
    free = [0.0] * schedule.stages
    # without `fused` no action has a partner
    partner: list[int] = [-1] * len(cost) if fused is None else schedule.overlap.tolist()
    scale = 1.0 if fused is None else fused
    at = offset[:-1]
    waiting: dict[int, list[int]] = {}  # action -> ranks that stopped because of it
    ready = list(range(schedule.stages))
    while ready:
        r = ready.pop()
        i, clock, stop = at[r], free[r], offset[r + 1]
        while i < stop:
            start = clock
            beyond = i + 2 if partner[i] > i else i + 1
            for need in index[pointer[i] : pointer[beyond]]:
                done = end[need]
                if done < 0.0:
                    waiting.setdefault(need, []).append(r)
                    break
                if done > start:
                    start = done
            else:
                clock = start + (cost[i] if beyond == i + 1 else scale * (cost[i] + cost[i + 1]))
                while i < beyond:
                    end[i] = clock
                    if i in waiting:
                        ready.extend(waiting.pop(i))
                    i += 1
                continue
            break
        at[r], free[r] = i, clock
    if waiting:
        need, ranks = min(waiting.items())
        holder = int(schedule.rank[need])
        raise ScheduleError(
            f"schedule {schedule.name!r} deadlocks: {schedule.describe(at[min(ranks)])} waits for"
            f" {schedule.describe(need)}, but that rank is stopped at {schedule.describe(at[holder])}"
        )
    return np.array(end)
