"""Whether a schedule is complete and ends: what every schedule of the product is held to."""

from __future__ import annotations

import numpy as np

from windtunnel.errors import ScheduleError
from windtunnel.studies.training.schedules import Kind, Schedule, walk


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
