"""How well the traffic of jobs fits on one link, by how much each is best shifted, what sharing does to their steps.

    pattern   in each period a job sends for a while at a rate, then nothing
    circle    a time after which all patterns repeat together (the least common multiple of the periods)
    score     1 - mean over the circle of max(0, sum of rates - capacity) / capacity, under the best shifts: 1 where
              nobody meets anybody, below 0 where more is asked for than twice the link

Source: S. Rajasekaran et al., "CASSINI", NSDI 2024 (arXiv 2308.00852): the mechanism, in our words. Time is cut into
cells of a 72nd of the shortest period; where periods do not meet again within `MOST` cells they are taken to drift
past each other, and a shift means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine.events import EventQueue

CELLS, MOST = 72, 20_000  # of the shortest period; of the circle
EXACT = 4_000_000  # cells of all shifts together up to which all are tried
ROUNDS = 5  # in which shifts are looked for again, one job after the other
STEPS = 200  # of each job that are played at least
APART = 100.0  # longest over shortest period, as they are played
NS = 1e9
SENT = -1


@dataclass(frozen=True, slots=True)
class Pattern:
    """Seconds and bytes per second. `busy_s`: what a period's traffic takes alone at `rate`."""

    name: str
    period_s: float
    busy_s: float
    rate: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Of jobs on one link. Shifts in seconds; None where periods drift."""

    score: float
    shifts_s: tuple[float, ...] | None


def fit_of(patterns: Sequence[Pattern], capacity: float) -> Fit:
    """The score of jobs on a link, and the shifts that give it.

    Exact for two jobs, and for more where all shifts together are few; else one job after the other.
    """
    if not patterns:
        return Fit(1.0, ())
    shortest, longest = (of(pattern.period_s for pattern in patterns) for of in (min, max))
    if longest * CELLS > shortest * MOST:
        return Fit(_drifting(patterns, capacity), None)
    cell = shortest / CELLS
    periods = [round(pattern.period_s / cell) for pattern in patterns]
    circle = math.lcm(*periods)
    if circle > MOST:
        return Fit(_drifting(patterns, capacity), None)
    waves = [_wave(pattern, cell, cells, circle) for pattern, cells in zip(patterns, periods, strict=True)]
    shifts = [0] * len(waves)
    order = sorted(range(len(waves)), key=lambda at: -patterns[at].rate * patterns[at].busy_s / patterns[at].period_s)
    if len(waves) > 2 and math.prod(periods[at] for at in order[1:]) * circle <= EXACT:
        rates = waves[order[0]][None]
        for at in order[1:]:
            rolled = np.stack([np.roll(waves[at], by) for by in range(periods[at])])
            rates = (rates[:, None] + rolled).reshape(-1, circle)
        excesses = np.maximum(rates - capacity, 0.0).mean(axis=1) / capacity
        first = int(np.argmin(excesses))
        for at, by in zip(order[1:], np.unravel_index(first, [periods[at] for at in order[1:]]), strict=True):
            shifts[at] = int(by)
        return Fit(1.0 - float(excesses[first]), tuple(by * cell for by in shifts))
    placed: list[int] = []
    best = math.inf
    for turn in range(ROUNDS):
        before = best
        for at in order:
            if turn == 0:
                placed.append(at)
            others = sum(
                (np.roll(waves[number], shifts[number]) for number in placed if number != at), np.zeros(circle)
            )
            if len(placed) > 1 and at != order[0]:  # the first one's shift is nobody's gain
                excesses = [_excess(others + np.roll(waves[at], by), capacity) for by in range(periods[at])]
                shifts[at] = int(np.argmin(excesses))
            best = _excess(others + np.roll(waves[at], shifts[at]), capacity)
        if best >= before:
            break
    return Fit(1.0 - best, tuple(by * cell for by in shifts))


def _wave(pattern: Pattern, cell: float, cells: int, circle: int) -> NDArray[np.float64]:
    """Rates of a job over the circle; a cell that is partly busy has its share."""
    share = np.clip(pattern.busy_s / cell - np.arange(cells), 0.0, 1.0)
    return np.tile(pattern.rate * share, circle // cells)


def _excess(rates: NDArray[np.float64], capacity: float) -> float:
    return float(np.maximum(rates - capacity, 0.0).mean() / capacity)


def _drifting(patterns: Sequence[Pattern], capacity: float) -> float:
    """The score where every set of those that send meets for as long as chance has it."""
    rates = {0.0: 1.0}
    for pattern in patterns:
        duty = min(1.0, pattern.busy_s / pattern.period_s)
        after: dict[float, float] = {}
        for rate, chance in rates.items():
            after[rate + pattern.rate] = after.get(rate + pattern.rate, 0.0) + chance * duty
            after[rate] = after.get(rate, 0.0) + chance * (1 - duty)
        rates = after
    return 1.0 - sum(chance * max(0.0, rate - capacity) for rate, chance in rates.items()) / capacity


def slowdowns(patterns: Sequence[Pattern], capacity: float, shifts_s: Sequence[float]) -> list[float]:
    """By how much steps get longer where those that send share the link fairly, each no faster than its rate.

    A job computes (its period less `busy_s`), sends, and begins its next step; a job that was shifted begins so much
    later, and afterwards whenever it is done. Periods that lie far apart are played closer (`_nearer`).
    """
    scales = _nearer([pattern.period_s for pattern in patterns])
    patterns = [
        replace(each, period_s=each.period_s * scale, busy_s=each.busy_s * scale)
        for each, scale in zip(patterns, scales, strict=True)
    ]
    shifts_s = [shift * scale for shift, scale in zip(shifts_s, scales, strict=True)]
    queue: EventQueue[int] = EventQueue()  # a job that begins to send; SENT: the next of them has sent all
    for at, shift in enumerate(shifts_s):
        queue.push(round(NS * shift), at)
    unsent: dict[int, float] = {}  # bytes of those that send
    done, ends = [0] * len(patterns), [0.0] * len(patterns)
    now, sent = 0.0, 0
    rates: list[float] = []
    while any(count < STEPS for count in done):
        now_ns, began, _ = queue.pop()
        span, now = now_ns / NS - now, now_ns / NS
        unsent = {at: bytes_ - span * rate for (at, bytes_), rate in zip(unsent.items(), rates, strict=True)}
        if began != SENT:
            unsent[began] = patterns[began].rate * patterns[began].busy_s
            if sent:
                queue.cancel(sent)
        for at in [at for at, bytes_ in unsent.items() if bytes_ <= 1e-9 * patterns[at].rate * patterns[at].busy_s]:
            del unsent[at]
            done[at] += 1
            ends[at] = now
            queue.push(now_ns + round(NS * (patterns[at].period_s - patterns[at].busy_s)), at)
        rates = _fair([patterns[at].rate for at in unsent], capacity)
        ends_s = min((bytes_ / rate for bytes_, rate in zip(unsent.values(), rates, strict=True)), default=0.0)
        sent = queue.push(now_ns + math.ceil(NS * ends_s), SENT) if unsent else 0
    return [
        (end - shift) / (count * pattern.period_s - (pattern.period_s - pattern.busy_s))
        for end, count, shift, pattern in zip(ends, done, shifts_s, patterns, strict=True)
    ]


def _nearer(periods: Sequence[float]) -> list[float]:
    """By how much each period is stretched so that the longest is a second and the shortest no less than it / APART.

    A step of a job does not tell how short those of another are once many pass in it: their mean rate counts. So wide
    gaps between periods become narrower, all of them equal; smaller ones stay, since there it counts how steps meet.
    """
    order = sorted(set(periods), reverse=True)
    gaps = [above / below for above, below in pairwise(order)]
    left, widest = APART, math.inf
    for count, gap in zip(range(len(gaps), 0, -1), sorted(gaps), strict=True):
        if gap > left ** (1 / count):
            widest = left ** (1 / count)
            break
        left /= gap
    played = {order[0]: 1.0}
    for (above, below), gap in zip(pairwise(order), gaps, strict=True):
        played[below] = played[above] / min(gap, widest)
    return [played[period] / period for period in periods]


def _fair(rates: Sequence[float], capacity: float) -> list[float]:
    """Max-min fair parts of a link."""
    parts = [0.0] * len(rates)
    free, open_ = capacity, sorted(range(len(rates)), key=lambda at: rates[at])
    for place, at in enumerate(open_):
        parts[at] = min(rates[at], free / (len(open_) - place))
        free -= parts[at]
    return parts
