"""Closed forms of a run of decode steps: what it takes, how many of its steps end by a time, which blocks they need.

    step i of a run takes   first + growth i ticks, since the batch adds as many tokens to its context in each
    k steps take            k first + growth k (k - 1) / 2

Blocks: `due[r]` counts the sequences whose context less the steps so far is r modulo the block size; one takes a block
in the step before which its context is a multiple of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import isqrt

from windtunnel.studies.serving.step_time.times import DecodeLine


def straight(line: DecodeLine, context_sum: int, batch: int, steps: int) -> tuple[int, int, int]:
    """(ticks of the first step, growth per step, steps that stay on the same straight piece)."""
    ends = line.ends
    piece = bisect_left(ends, context_sum, 0, len(ends) - 1)
    slope = line.slope[piece]
    stay = (ends[piece] - context_sum) // batch + 1
    return line.base[piece] + slope * context_sum, slope * batch, steps if steps < stay else stay


def ticks_of(steps: int, first: int, growth: int) -> int:
    """What so many steps take."""
    return steps * first + growth * (steps * (steps - 1) // 2)


def steps_until(ticks: int, first: int, growth: int) -> int:
    """The least number of steps, at least one, that take `ticks` or longer."""
    if ticks <= first:
        return 1
    if growth == 0:
        return -(-ticks // first)
    half = 2 * first - growth
    steps = (isqrt(half * half + 8 * growth * ticks) - half) // (2 * growth)
    steps = max(1, steps - 1)
    while steps * first + growth * (steps * (steps - 1) // 2) < ticks:  # `ticks_of`, without the call
        steps += 1
    return steps


def blocks_of(steps: int, due: Sequence[int], done: int, batch: int) -> int:
    """Blocks that `batch` sequences take in `steps` more steps, `done` decode steps into their replica's life."""
    size = len(due)
    whole, rest = divmod(steps, size)
    last = -done % size  # of the steps that are left over: this place and those before it
    first = last - rest + 1
    needed = sum(due[first : last + 1]) if first >= 0 else sum(due[: last + 1]) + sum(due[first:])
    return whole * batch + needed


def steps_that_fit(steps: int, free: int, due: Sequence[int], done: int, batch: int) -> int:
    """The most steps, up to `steps`, whose blocks are there; at least one, for which room was made."""
    if blocks_of(steps, due, done, batch) <= free:
        return steps
    low, high = 1, steps
    while high - low > 1:
        middle = (low + high) // 2
        if blocks_of(middle, due, done, batch) <= free:
            low = middle
        else:
            high = middle
    return low
