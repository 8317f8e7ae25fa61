"""Layers into stages on submeshes: Alpa's inter-operator dynamic programme (Zheng et al., OSDI 2022, section 5.2).

Layers 0..K-1, D devices, B micro-batches; t[k, i, s, c] is the time of one micro-batch, forward and backward, of layers
k..i on submesh s in configuration c. Of all ways to cut the layers into stages and give each a submesh, so that all
devices are used, the least of

    sum over stages of t  +  (B - 1) x the longest stage

For each bound on the longest stage, in rising order, F(s, k, d) is the least sum for layers k.. in s stages on d
devices. Looking stops when B x bound is no less than the best total: any plan whose longest stage takes that costs at
least as much. Memory: a stage with q stages behind it keeps q + 1 micro-batches (1F1B), so it is allowed only where q
is at most its table of most successors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers first..last on a submesh in a configuration."""

    first: int
    last: int
    submesh: int
    configuration: int


@dataclass(frozen=True, slots=True)
class Staging:
    """The stages in model order, and what a step of them takes."""

    stages: tuple[Stage, ...]
    time: float


def best_stages(
    times: NDArray[np.float64],
    devices: Sequence[int],
    total_devices: int,
    micro_batches: int,
    most_successors: NDArray[np.int64] | None = None,
    tolerance: float = 0.0,
) -> Staging | None:
    """`times`: [layers, layers, submeshes, configurations], inf where it cannot be; `devices` of each submesh.

    `tolerance`: of bounds on the longest stage that lie within this part of each other only the largest is tried, so
    that the answer takes no more than 1 + tolerance times the best. None where no cut fits.
    """
    layers = times.shape[0]
    candidates = _apart(np.unique(times[np.isfinite(times)]), tolerance)
    best: Staging | None = None
    for longest in candidates.tolist():
        if best is not None and micro_batches * longest >= best.time * (1.0 + tolerance):
            break
        found = _least_sum(np.where(times <= longest, times, np.inf), devices, total_devices, layers, most_successors)
        if found is None:
            continue
        each = [float(times[one.first, one.last, one.submesh, one.configuration]) for one in found]
        total = sum(each) + (micro_batches - 1) * max(each)
        if best is None or total < best.time:
            best = Staging(found, total)
    return best


def _apart(rising: NDArray[np.float64], tolerance: float) -> NDArray[np.float64]:
    """The largest of each group of values within `tolerance` of its least."""
    if tolerance <= 0.0 or not len(rising):
        return rising
    kept, first = [], 0
    while first < len(rising):
        behind = int(np.searchsorted(rising, rising[first] * (1.0 + tolerance), side="right"))
        kept.append(float(rising[behind - 1]))
        first = behind
    return np.array(kept)


def _least_sum(
    times: NDArray[np.float64],
    devices: Sequence[int],
    total_devices: int,
    layers: int,
    most_successors: NDArray[np.int64] | None,
) -> tuple[Stage, ...] | None:
    """The cut with the least sum of stage times, by number of stages behind, first layer and devices left."""
    size = (layers + 1, layers + 1, total_devices + 1)
    least = np.full(size, np.inf)  # [stages, first layer, devices]
    least[0, layers, 0] = 0.0
    choice: dict[tuple[int, int, int], Stage] = {}
    for stages in range(1, layers + 1):
        allowed = times if most_successors is None else np.where(most_successors >= stages - 1, times, np.inf)
        quickest = allowed.min(axis=3)
        which = allowed.argmin(axis=3)
        for submesh, width in enumerate(devices):
            if width > total_devices:
                continue
            for first in range(layers):
                # [last layer, devices left behind]
                behind = least[stages - 1, first + 1 :, : total_devices + 1 - width]
                sums = quickest[first, first:, submesh][:, None] + behind
                last = sums.argmin(axis=0)
                value = sums[last, np.arange(sums.shape[1])]
                better = np.flatnonzero(value < least[stages, first, width:])
                for left in better.tolist():
                    end = first + int(last[left])
                    least[stages, first, left + width] = value[left]
                    choice[stages, first, left + width] = Stage(first, end, submesh, int(which[first, end, submesh]))
    stages = int(np.argmin(least[:, 0, total_devices]))
    if not np.isfinite(least[stages, 0, total_devices]):
        return None
    found: list[Stage] = []
    first, left = 0, total_devices
    while stages:
        stage = choice[stages, first, left]
        found.append(stage)
        stages, first, left = stages - 1, stage.last + 1, left - devices[stage.submesh]
    return tuple(found)


def every_staging(layers: int, devices: Sequence[int], total_devices: int) -> Iterator[tuple[Stage, ...]]:
    """All cuts on all submeshes, configuration 0: the oracle for small ones."""

    def behind(first: int, left: int) -> Iterator[tuple[Stage, ...]]:
        if first == layers:
            if left == 0:
                yield ()
            return
        for last in range(first, layers):
            for submesh, width in enumerate(devices):
                if width <= left:
                    for rest in behind(last + 1, left - width):
                        yield (Stage(first, last, submesh, 0), *rest)

    return behind(0, total_devices)


def submeshes(hosts: int, per_host: int) -> tuple[tuple[int, int], ...]:
    """Alpa's: 2^j devices of one host, or whole hosts. These always tile the cluster."""
    small = []
    width = 1
    while width <= per_host:
        small.append((1, width))
        width *= 2
    if small[-1][1] != per_host:
        small.append((1, per_host))
    return (*small, *((count, per_host) for count in range(2, hosts + 1)))
