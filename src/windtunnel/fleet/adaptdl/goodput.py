"""Pollux's model of a job's goodput: samples per second times how much a sample is worth, fitted while the job runs.

    T_iter = s T_g + (T_g^c + T_s^c)^(1/c)      T_g = a_c + b_c m     (m samples per GPU, s accumulations, 1 <= c <= 10)
    T_s = 0 on one GPU, a_r + b_r (n - 2) inside a node, a_n + b_n (n - 2) across nodes
    efficiency = (phi + B0) / (phi + B),  phi = B0 var / sqr         goodput = B / T_iter x efficiency

Seven parameters, fitted to all steps seen by least root-mean-square error of log T_g and log T_iter plus
1e-3 (c - 1)^2 + 1e-2 ((b_n / a_n)^2 + (b_r / a_r)^2). What has not been seen stays at its floor: unseen scale looks
free. Source: A. Qiao et al., "Pollux", OSDI 2021; adaptdl, simulator/goodput.py (Apache-2.0), as rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
FLOOR = 1e-8
SIZES = 50  # batch sizes tried, in geometric steps
START = np.array([1e-1, 1e-2] * 3 + [1.0 + 1e-3])


class Speed(NamedTuple):
    """Fitted parameters, seconds."""

    compute: float
    compute_per_sample: float
    across: float
    across_per_gpu: float
    inside: float
    inside_per_gpu: float
    overlap: float  # c


Config = tuple[int, int, int]  # nodes, GPUs, samples per GPU


def fit(seen: Mapping[Config, tuple[float, float]]) -> Speed:
    """Fit to (step s, synchronisation s) by configuration."""
    from windtunnel.engine.compiled.goodput_kernels import minimise

    keys = np.array(list(seen))
    nodes, gpus, local = keys[:, 0], keys[:, 1], keys[:, 2].astype(float)
    step = np.array([step_s for step_s, _ in seen.values()])
    compute = step - np.array([sync_s for _, sync_s in seen.values()])
    start = START.copy()
    low, high = np.array([FLOOR] * 6 + [1.0]), np.array([np.inf] * 6 + [10.0])

    def hold(at: tuple[int, ...], value: float) -> None:
        for each in at:
            start[each] = low[each] = high[each] = value

    if (local == local[0]).all():
        hold((0,), float(np.mean(compute)) / 2)
    if not (nodes > 1).any():
        hold((2, 3), FLOOR)
    if not ((nodes == 1) & (gpus > 1)).any():
        hold((4, 5), FLOOR)
    if not (gpus > 2).any():
        hold((3, 5), FLOOR)
    case = np.where(nodes > 1, 2, np.where(gpus > 1, 4, 0))
    beyond = np.maximum(gpus - 2.0, 1e-8)
    for bound in (start, low, high):
        bound[:6] = np.log(bound[:6])
    found = start
    minimise(found, low, high, case, beyond, local, np.log(compute), np.log(step))
    found[:6] = np.exp(found[:6])
    if not (nodes > 1).any():
        found[2], found[3] = max(found[2], 1.1 * found[4]), max(found[3], 1.1 * found[5])
    return Speed(*map(float, found))


class Limits(NamedTuple):
    """Batches that an application may use."""

    initial: int
    largest: int
    smallest_local: int
    largest_local: int


def best(
    speed: Speed, gradient: tuple[float, float], limits: Limits, across: Array, gpus: Array
) -> tuple[Array, Array, Array]:
    """Best goodput, its atomic batch and accumulations, for each entry of `gpus` (on several nodes where `across`)."""
    from windtunnel.engine.compiled.goodput_kernels import best_batches

    found = np.empty((3, len(gpus)))
    best_batches(np.array(speed), *gradient, np.array(limits, float), SIZES, across, gpus, *found)
    return found[0], found[1], found[2]
