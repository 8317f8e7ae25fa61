"""Stamps to measures: TTFT, TPOT, inter-token and end-to-end latency, throughput, attainment.

    TTFT = first token - arrival        TPOT = (last - first) / (output - 1), requests of one token have none
    E2E  = last - arrival               ITL  = every gap between two tokens of a request, pooled
    throughput: tokens over the window from the first send to the last token
    attainment: share of all requests, refused and unfinished ones too, whose TTFT and TPOT both meet their limits

Percentiles interpolate linearly. Quantities of measured tables are means over requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.serving.replica.sequence import Sequence as Request
from windtunnel.studies.serving.replica.tally import GAP_SHIFT
from windtunnel.studies.serving.step_time.times import TICKS_PER_S

Floats = NDArray[np.float64]
QUANTILES = (("p50", 50.0), ("p90", 90.0), ("p95", 95.0), ("p99", 99.0))


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles of one quantity, in seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


def distribution(values: Floats) -> Distribution | None:
    """Of plain values; None where there are none."""
    if len(values) == 0:
        return None
    return Distribution(float(values.mean()), *(float(np.percentile(values, q)) for _, q in QUANTILES))


def gap_distribution(counts: Iterable[Mapping[int, int]]) -> Distribution | None:
    """Of the gaps that replicas counted."""
    total: dict[int, int] = {}
    for gaps in counts:
        for key, count in gaps.items():
            total[key] = total.get(key, 0) + count
    if not total:
        return None
    keys = np.array(sorted(total))
    weights = np.array([total[int(key)] for key in keys], dtype=np.float64)
    seconds = (keys + 0.5) * float(1 << GAP_SHIFT) / TICKS_PER_S
    below = np.cumsum(weights) / weights.sum()
    picks = [float(seconds[min(len(keys) - 1, int(np.searchsorted(below, q / 100.0)))]) for _, q in QUANTILES]
    return Distribution(float((seconds * weights).sum() / weights.sum()), *picks)


@dataclass(frozen=True, eq=False)
class Stamps:
    """Stamps of all requests that were sent, in seconds from the start; NaN where an event never came."""

    index: NDArray[np.int64]  # in the workload, or in the file it came from
    prompt: Floats
    output: Floats
    arrival: Floats
    queued: Floats
    scheduled: Floats
    first: Floats
    last: Floats
    hit: Floats
    waited: Floats  # for a place to decode in, after its prompt was computed elsewhere; 0 where nobody waits

    @property
    def queue(self) -> Floats:
        """Waiting of every request, before its prompt and before it decodes; NaN where it was never begun."""
        return self.scheduled - self.arrival + self.waited

    @property
    def ttft(self) -> Floats:
        """First token - arrival, of those that got one."""
        return (self.first - self.arrival)[~np.isnan(self.first)]

    @property
    def e2e(self) -> Floats:
        """Last token - arrival, of the finished."""
        return (self.last - self.arrival)[~np.isnan(self.last)]

    @property
    def tpot(self) -> Floats:
        """Of the finished with two tokens or more."""
        wanted = (self.output > 1) & ~np.isnan(self.last)
        return np.asarray(((self.last - self.first) / np.maximum(self.output - 1.0, 1.0))[wanted])

    def attainment(self, ttft_s: float | None, tpot_s: float | None, total: int) -> float:
        """Share of `total` requests that finished and met both limits."""
        done = ~np.isnan(self.last)
        in_time = done.copy()
        with np.errstate(invalid="ignore"):
            if ttft_s is not None:
                in_time &= (self.first - self.arrival) <= ttft_s
            if tpot_s is not None:
                in_time &= (self.output <= 1) | ((self.last - self.first) <= tpot_s * (self.output - 1.0))
        return float(in_time.sum()) / total if total else 0.0


_read = attrgetter(
    "index", "prompt", "output", "cached_len",
    "arrival_ns", "queued_ns", "scheduled_ns", "first_ns", "last_ns", "waited_ns",
)  # fmt: skip


def stamps_of(requests: Sequence[Request]) -> Stamps:
    """Arrays of requests, in the order of their index."""
    rows = [_read(request) for request in sorted(requests, key=lambda sequence: sequence.index)]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 10).T
    prompt, output, hit = columns[1:4].astype(np.float64)
    arrival, queued, scheduled, first, last, waited = np.where(columns[4:] < 0, np.nan, columns[4:] * 1e-9)
    return Stamps(columns[0], prompt, output, arrival, queued, scheduled, first, last, hit, waited)
