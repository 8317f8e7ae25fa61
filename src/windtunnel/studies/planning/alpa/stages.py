"""Layers into stages on submeshes: Alpa's inter-operator dynamic programme (Zheng et al., OSDI 2022, section 5.2).

Layers 0..K-1, D devices, B micro-batches; t[k, i, s, c] is the time of one micro-batch, forward and backward, of layers
k..i on submesh s in configuration c. Of all ways to cut the layers into stages and give each a submesh, so that all
devices are used, the least of

    sum over stages of t  +  (B - 1) x the longest stage

For each bound on the longest stage, in rising order, F(s, k, d) is the least sum for layers k.. in s stages on d
devices. Looking begins at the least bound under which the layers need no more devices than there are (that number
falls as the bound rises, so it is found by bisection), and stops when B x bound is no less than the best total: any
plan whose longest stage takes that costs at least as much. Memory: a stage with q stages behind it keeps q + 1
micro-batches (1F1B), so it is allowed only where q is at most its table of most successors.

Under a bound most small submeshes are too slow for any layer. Devices are counted in the largest unit that divides the
widths of those that are not, which is what makes thousands of devices small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

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
    candidates = _apart(np.unique(times[np.isfinite(times)]), tolerance)
    times = np.ascontiguousarray(times, dtype=np.float64)
    best: Staging | None = None
    for longest in candidates[_first_that_can(times, devices, total_devices, candidates) :].tolist():
        if best is not None and micro_batches * longest >= best.time * (1.0 + tolerance):
            break
        stages = _least_sum(times, devices, total_devices, longest, most_successors)
        if stages is None:
            continue
        each = [float(times[stage.first, stage.last, stage.submesh, stage.configuration]) for stage in stages]
        total = sum(each) + (micro_batches - 1) * max(each)
        if best is None or total < best.time:
            best = Staging(stages, total)
    return best


def _first_that_can(
    times: NDArray[np.float64], devices: Sequence[int], total_devices: int, rising: NDArray[np.float64]
) -> int:
    """Place of the least bound under which there are devices enough."""
    from windtunnel.physics.engine.compiled.stage_kernels import fewest_devices

    widths, none = np.array(devices, np.int64), total_devices + max(devices) + 1
    low, high = 0, len(rising)
    while low < high:
        middle = (low + high) // 2
        if fewest_devices(times, widths, float(rising[middle]), none) <= total_devices:
            high = middle
        else:
            low = middle + 1
    return low


def _apart(rising: NDArray[np.float64], tolerance: float) -> NDArray[np.float64]:
    """The largest of each group of values within `tolerance` of its least."""
    if tolerance <= 0.0 or not len(rising):
        return rising
    largest, first = [], 0
    while first < len(rising):
        behind = int(np.searchsorted(rising, rising[first] * (1.0 + tolerance), side="right"))
        largest.append(float(rising[behind - 1]))
        first = behind
    return np.array(largest)


def _least_sum(
    times: NDArray[np.float64],
    devices: Sequence[int],
    total_devices: int,
    longest: float,
    most_successors: NDArray[np.int64] | None,
) -> tuple[Stage, ...] | None:
    """The cut with the least sum of stage times, none of them longer than `longest`."""
    from windtunnel.physics.engine.compiled.stage_kernels import least_sums

    layers, _, submeshes, configurations = times.shape
    usable: list[bool] = np.any(times <= longest, axis=(0, 1, 3)).tolist()
    widths = [width for width, fits in zip(devices, usable, strict=True) if fits and width <= total_devices]
    unit = gcd(*widths)
    if not widths or total_devices % unit:
        return None
    total = total_devices // unit
    # In units; what cannot be used is wider than all there is.
    units = np.array([width // unit if fits else total + 1 for width, fits in zip(devices, usable, strict=True)])
    planes = 1 if most_successors is None else 1 + min(layers, total_devices // min(widths))
    least = np.empty((planes, layers + 1, total + 1))
    chosen = np.zeros(least.shape, np.int64)
    limits = times if most_successors is None else np.ascontiguousarray(most_successors, dtype=np.float64)
    least_sums(times, limits, units, total, longest, least, chosen)
    plane = int(np.argmin(least[:, 0, total]))
    if not np.isfinite(least[plane, 0, total]):
        return None
    stages: list[Stage] = []
    first, devices_left = 0, total
    while first < layers:
        rest, configuration = divmod(int(chosen[plane, first, devices_left]), configurations)
        last, submesh = divmod(rest, submeshes)
        stages.append(Stage(first, last, submesh, configuration))
        plane, first, devices_left = max(0, plane - 1), last + 1, devices_left - int(units[submesh])
    return tuple(stages)


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
