"""Samples of a failure process: what happens to one job, for many seeds at once.

Each seed draws from a generator of its own, so a seed means the same failures whatever stands beside it, and every
policy meets the same ones. Rows are padded with `NEVER`. Failures of lemons after their first are marked: a policy that
sends a failed host away for good does not meet them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.resilience.failures.process import FailureProcess

NEVER = np.iinfo(np.int64).max
SLOW = -1  # in `cause`: no failure, a host becomes slow


@dataclass(frozen=True, slots=True)
class FailureTrace:
    """Events of `seeds` runs; every array has the shape (seeds, events)."""

    process: FailureProcess
    horizon_ns: int
    time_ns: NDArray[np.int64]  # ascending, NEVER beyond the last
    cause: NDArray[np.int16]  # index into process.causes, or SLOW
    slow_ns: NDArray[np.int64]  # how long a host stays slow; 0 for failures
    repeat: NDArray[np.bool_]  # a lemon that has failed before

    @property
    def seeds(self) -> int:
        """Runs that were sampled."""
        return len(self.time_ns)


def draw(
    process: FailureProcess, gpus: int, gpus_per_node: int, horizon_s: float, seeds: int, seed: int = 0
) -> FailureTrace:
    """`seeds` independent runs of `horizon_s` seconds; the same arguments give the same bytes."""
    nodes = -(-gpus // gpus_per_node)
    horizon_ns = round(horizon_s * 1e9)
    rates = np.array([cause.of_job(gpus, nodes) for cause in process.causes])
    of_machines = np.array([cause.hosts > 0 and cause.symptom != "planned" for cause in process.causes], bool)
    rows = [
        _draw_cause(process, rates, of_machines, nodes, horizon_s, np.random.default_rng((seed, i)))
        for i in range(seeds)
    ]
    width = max((len(row[0]) for row in rows), default=0) + 1  # every row ends with NEVER
    times = np.full((seeds, width), NEVER, np.int64)
    cause = np.zeros((seeds, width), np.int16)
    slow = np.zeros((seeds, width), np.int64)
    repeat = np.zeros((seeds, width), bool)
    for at, row in enumerate(rows):
        n = len(row[0])
        times[at, :n], cause[at, :n], slow[at, :n], repeat[at, :n] = row
    return FailureTrace(process, horizon_ns, times, cause, slow, repeat)


Row = tuple[NDArray[np.int64], NDArray[np.int16], NDArray[np.int64], NDArray[np.bool_]]


def _draw_cause(
    process: FailureProcess,
    rates: NDArray[np.float64],
    of_machines: NDArray[np.bool_],
    nodes: int,
    horizon_s: float,
    random: np.random.Generator,
) -> Row:
    lemons = process.lemons
    n_lemons = random.binomial(nodes, lemons.share_of_hosts) if lemons.share_of_hosts else 0
    rates = rates.copy()
    from_lemons = 0.0
    if lemons.share_of_hosts:
        # This job's hosts against the mean host: as many lemons as it happened to get.
        weight = (nodes - n_lemons) + n_lemons * lemons.times
        mean = nodes * ((1.0 - lemons.share_of_hosts) + lemons.share_of_hosts * lemons.times)
        rates[of_machines] *= weight / mean
        from_lemons = n_lemons * lemons.times / weight
    total = rates.sum()
    n = random.poisson(total * horizon_s) if total > 0 else 0
    times = random.uniform(0.0, horizon_s, n)
    cause = random.choice(len(rates), n, p=rates / total) if n else np.zeros(0, np.int64)
    second = random.random(n) < process.bursts.share
    late = times[second] + random.exponential(process.bursts.mean_delay_s, int(second.sum()))
    times, cause = np.concatenate([times, late]), np.concatenate([cause, cause[second]])
    order = np.argsort(times, kind="stable")
    times = times[order]
    kinds, repeat = cause[order].astype(np.int16), np.zeros(len(times), bool)
    if n_lemons:
        whose = np.where(random.random(len(times)) < from_lemons, random.integers(0, n_lemons, len(times)), -1)
        whose[~of_machines[kinds]] = -1
        repeat = whose >= 0
        _, first = np.unique(whose, return_index=True)
        repeat[first] = False
    lengths = np.zeros(len(times), np.int64)
    slow = process.slow
    if slow.rate_per_node_s > 0:
        n = random.poisson(slow.rate_per_node_s * nodes * horizon_s)
        times = np.concatenate([times, random.uniform(0.0, horizon_s, n)])
        durations = np.exp(random.uniform(np.log(slow.shortest_s), np.log(slow.longest_s), n)) * 1e9
        order = np.argsort(times, kind="stable")
        times, kinds = times[order], np.concatenate([kinds, np.full(n, SLOW, np.int16)])[order]
        lengths = np.concatenate([lengths, durations.astype(np.int64)])[order]
        repeat = np.concatenate([repeat, np.zeros(n, bool)])[order]
    keep = times < horizon_s
    # Two events never share a nanosecond: the later one is moved by one, so that both engines meet them one by one.
    stamps = np.maximum.accumulate(np.floor(times[keep] * 1e9).astype(np.int64) - np.arange(int(keep.sum())))
    stamps = stamps + np.arange(len(stamps)) + 1
    return stamps, kinds[keep], lengths[keep], repeat[keep]
