"""What runs beside what: use of services and tasks as it wanders, and how they slow each other down.

    service   requests `service_request` of its machine, uses a part of it that follows a daily wave
    task      uses a part of what it requests
    both      mean-reverting round their mean: u <- u + (mean - u) dt / settle + spread sqrt(2 dt / settle) N(0, 1)
    slow-down of the service   (1 + contention x use of the tasks beside) x max(1, use of the machine)
    speed of a task            share of its use that it gets / (1 + contention x use of all others)

Usage is not in the traces that we have, so its means are parameters; the machine's use follows from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DAY_S = 86400.0


@dataclass(frozen=True)
class Beside:
    """Means and spreads, shares of a machine or of a request."""

    service_request: float = 0.5
    service_use: float = 0.4  # of its request, over the day
    wave: float = 0.4  # of that, up and down
    service_memory: float = 0.3
    task_use: float = 0.4  # of its request, mean over tasks
    task_use_spread: float = 0.12  # between tasks
    task_memory: tuple[float, float] = (0.2, 0.7)  # of its request, uniform
    task_link: tuple[float, float] = (0.05, 0.4)
    spread: float = 0.15  # of a mean, in time
    settle_s: float = 600.0
    contention: float = 0.15  # slow-down of one beside a machine's full use by others


def wander(now: Floats, mean: Floats, dt_s: float, beside: Beside, draw: np.random.Generator) -> Floats:
    """Uses a step later; never negative."""
    step = min(dt_s / beside.settle_s, 1.0)
    noise = beside.spread * mean * math.sqrt(2.0 * step) * draw.standard_normal(len(now))
    later: Floats = np.maximum(now + (mean - now) * step + noise, 0.0)
    return later


def service_mean(time_s: float, phase: Floats, beside: Beside) -> Floats:
    """What the services of each machine use on average at a time of day."""
    day: Floats = 1.0 - beside.wave * np.cos(2.0 * math.pi * (time_s / DAY_S) + phase)
    return beside.service_request * beside.service_use * day


def service_slowdown(tasks: Floats, service: Floats, beside: Beside) -> Floats:
    """Slowdown of each machine's service."""
    slowdown: Floats = (1.0 + beside.contention * tasks) * np.maximum(1.0, tasks + service)
    return slowdown


def p95_of(slowdown: Floats, weight: Floats) -> float:
    """The 95th percentile of latencies that are exponential with these means, mixed by weight; mean 1 has ln 20."""
    low, high = 0.0, float(slowdown.max()) * 20.0
    total = float(weight.sum())
    for _ in range(60):
        middle = (low + high) / 2.0
        if float((weight * np.exp(-middle / slowdown)).sum()) / total > 0.05:
            low = middle
        else:
            high = middle
    return high
