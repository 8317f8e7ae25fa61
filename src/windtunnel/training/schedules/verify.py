"""What can be said of a schedule before it is timed: that it is complete, that it ends, and when.

Deadlock: every rank runs its list in order, each action waits for its dependencies, sends are asynchronous (a rank
never waits for a receiver). The schedule ends if and only if the union of the program orders and the dependencies has
no cycle, which is what walking it to the end finds out.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import ScheduleError
from windtunnel.training.schedules.table import Kind, Schedule

Seconds = NDArray[np.float64]


@lru_cache(maxsize=512)
def check(schedule: Schedule) -> None:
    """Raise `ScheduleError` unless every piece sees every micro-batch exactly once and the schedule ends."""
    _check_complete(schedule)
    walk(schedule, 0.0, fused=1.0)  # pairs as one action wait for more: what ends so ends also without


def _check_complete(schedule: Schedule) -> None:
    pieces = schedule.n_virtual
    key = schedule.stage_of.astype(np.int64) * schedule.micro_batches + schedule.micro_batch
    count = {k: np.bincount(key[schedule.kind == k], minlength=pieces * schedule.micro_batches) for k in Kind}
    for kind in Kind:
        if np.any(count[kind] > 1):
            at = int(np.argmax(count[kind] > 1))
            action = int(np.flatnonzero((key == at) & (schedule.kind == kind))[1])
            raise ScheduleError(f"schedule {schedule.name!r} does this twice: {schedule.describe(action)}")
    whole, split, weight = count[Kind.BACKWARD], count[Kind.BACKWARD_INPUT], count[Kind.BACKWARD_WEIGHT]
    for wrong, what in (
        (count[Kind.FORWARD] != 1, "lacks the forward"),
        (whole + split == 0, "lacks the backward"),
        (whole + split > 1, "has both a whole and a split backward"),
        (split > weight, "lacks the weight gradient"),
        (weight > split, "has a weight gradient without an input gradient"),
    ):
        if np.any(wrong):
            stage, micro_batch = divmod(int(np.argmax(wrong)), schedule.micro_batches)
            rank = schedule.holders(stage)[0]
            raise ScheduleError(
                f"schedule {schedule.name!r} {what} of micro-batch {micro_batch} on stage {stage} (rank {rank})"
            )
    home = np.full(pieces * schedule.micro_batches, -1, np.int64)
    home[key] = schedule.rank
    if np.any(home[key] != schedule.rank):
        action = int(np.argmax(home[key] != schedule.rank))
        raise ScheduleError(
            f"schedule {schedule.name!r} splits one piece of work over two ranks: {schedule.describe(action)}"
        )


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
