"""Compiled fit of a step-time curve with seven bounded parameters: projected BFGS.

The curve and its error are those of `fleet/adaptdl/goodput.py`; parameters with equal bounds stay where they are. Each
step: a quasi-Newton direction over the parameters that are free to move, Armijo's rule along its projection, and a
fresh start of the curvature where a bound becomes active. Each function's `.py_func` is the same code uncompiled.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from windtunnel.engine.compiled import njit

Array: TypeAlias = NDArray[Any]
ITERATIONS = 200
GRADIENT, DECREASE = 1e-5, 2.2e-9  # at which the search ends: scipy's defaults for L-BFGS-B
PROGRESS = 1e-4  # relative decrease after which a search that had stalled may begin anew once more
SMOOTH = 1e-8  # square of the error below which it is round: at nought the root has an edge where searches stick
LONGEST = 1.0  # step of any parameter: beyond a factor of e, times that vanish have no slope left to come back on
FLOOR = 1e-8
ROUNDING = 1e-8  # under which a ceiling ignores the rest
MOST_KEPT = 4096  # samples per GPU up to which the power of their time is kept
SURELY = 1 + 1e-12  # more than what rounding does to a goodput


@njit(cache=True)
def loss(
    u: Array, case: Array, beyond: Array, local: Array, log_compute: Array, log_step: Array, work: Array, out: Array
) -> float:
    """Error of the curve; its gradient goes into `out` (f64[7]). `case`: 0 one GPU, 2 across nodes, 4 inside one.

    `u`: logarithms of the six times, then the exponent: times differ by orders of magnitude. Scratch: `work` f64[6, n].
    """
    n = len(local)
    x = np.exp(u)
    c = u[6]
    squares_compute, squares_step = 0.0, 0.0
    for at in range(n):
        compute = x[0] + x[1] * local[at]
        network = FLOOR if case[at] == 0 else x[case[at]] + x[case[at] + 1] * beyond[at]
        first, second = compute**c, network**c
        logs = np.log(compute), np.log(first + second)
        work[0, at], work[1, at], work[2, at], work[3, at] = compute, network, first, second
        work[4, at], work[5, at] = logs
        squares_compute += (logs[0] - log_compute[at]) ** 2
        squares_step += (logs[1] / c - log_step[at]) ** 2
    rms_compute, rms_step = np.sqrt(squares_compute / n + SMOOTH), np.sqrt(squares_step / n + SMOOTH)
    out[:] = 0.0
    for at in range(n):
        compute, network, first, second = work[0, at], work[1, at], work[2, at], work[3, at]
        total = first + second
        log_of_compute, log_of_total = work[4, at], work[5, at]
        error_compute = log_of_compute - log_compute[at]
        error_step = log_of_total / c - log_step[at]
        weight_compute = error_compute / (n * rms_compute) if rms_compute > 0 else 0.0
        weight_step = error_step / (n * rms_step) if rms_step > 0 else 0.0
        by_compute = weight_compute / compute + weight_step * first / (compute * total)
        out[0] += by_compute
        out[1] += by_compute * local[at]
        if case[at] > 0:
            by_network = weight_step * second / (network * total)
            out[case[at]] += by_network
            out[case[at] + 1] += by_network * beyond[at]
        mixed = (first * log_of_compute + second * np.log(network)) / total
        out[6] += weight_step * (mixed - log_of_total / c) / c
    value: float = rms_compute + rms_step + 1e-3 * (c - 1) ** 2
    out[6] += 2e-3 * (c - 1)
    for at in (2, 4):
        ratio = x[at + 1] / x[at]
        value += 1e-2 * ratio**2
        out[at] -= 2e-2 * ratio**2 / x[at]
        out[at + 1] += 2e-2 * ratio / x[at]
    for at in range(6):
        out[at] *= x[at]
    return value


@njit(cache=True)
def minimise(
    x: Array, low: Array, high: Array, case: Array, beyond: Array, local: Array, log_compute: Array, log_step: Array
) -> float:
    """Improve `x` in place between its bounds; returns the error reached."""
    n = len(x)
    gradient, gradient_there = np.empty(n), np.empty(n)
    work = np.empty((6, len(local)))
    value = loss(x, case, beyond, local, log_compute, log_step, work, gradient)
    inverse = np.eye(n)
    free, free_before = np.empty(n, np.bool_), np.zeros(n, np.bool_)
    direction, there = np.empty(n), np.empty(n)
    fresh, restarted = True, False
    for _ in range(ITERATIONS):
        largest = 0.0
        changed = False
        for at in range(n):
            stuck = (x[at] <= low[at] and gradient[at] >= 0) or (x[at] >= high[at] and gradient[at] <= 0)
            free[at] = not stuck and low[at] < high[at]
            changed |= free[at] != free_before[at]
            free_before[at] = free[at]
            if free[at]:
                largest = max(largest, abs(gradient[at]))
        if largest < GRADIENT:
            break
        if changed:
            inverse[:] = np.eye(n)
            fresh = True
        slope = 0.0
        for at in range(n):
            direction[at] = 0.0
            if free[at]:
                for other in range(n):
                    if free[other]:
                        direction[at] -= inverse[at, other] * gradient[other]
                slope += direction[at] * gradient[at]
        if slope >= 0:
            inverse[:] = np.eye(n)
            fresh = True
            for at in range(n):
                direction[at] = -gradient[at] if free[at] else 0.0
        step = 1.0
        if fresh:
            size = 0.0
            for at in range(n):
                size += direction[at] ** 2
            step = min(1.0, 1.0 / np.sqrt(size))
        longest = 0.0
        for at in range(n):
            longest = max(longest, abs(direction[at]))
        if step * longest > LONGEST:
            step = LONGEST / longest
        found = False
        for _ in range(40):
            promise = 0.0
            for at in range(n):
                there[at] = min(max(x[at] + step * direction[at], low[at]), high[at])
                promise += gradient[at] * (there[at] - x[at])
            value_there = loss(there, case, beyond, local, log_compute, log_step, work, gradient_there)
            if value_there <= value + 1e-4 * promise and value_there < value:
                found = True
                break
            step *= 0.5
        if not found:
            if fresh:
                break
            inverse[:] = np.eye(n)
            fresh = True
            continue
        moved, turned = there - x, gradient_there - gradient
        curvature = (moved * turned).sum()
        if curvature > 1e-14:
            if fresh:
                inverse[:] = np.eye(n) * (curvature / (turned * turned).sum())
            bent = np.zeros(n)
            for at in range(n):
                for other in range(n):
                    bent[at] += inverse[at, other] * turned[other]
            scale = 1.0 + (turned * bent).sum() / curvature
            for at in range(n):
                for other in range(n):
                    inverse[at, other] += (
                        scale * moved[at] * moved[other] - bent[at] * moved[other] - moved[at] * bent[other]
                    ) / curvature
            fresh = False
        decrease = value - value_there
        x[:] = there
        gradient[:] = gradient_there
        before, value = value, value_there
        if decrease <= DECREASE * max(abs(before), abs(value), 1.0):
            if restarted:
                break
            inverse[:] = np.eye(n)
            fresh = restarted = True
        elif decrease > PROGRESS * value:
            restarted = False
    return value


@njit(cache=True)
def best_batches(
    speed: Array,
    sqr: float,
    var: float,
    limits: Array,
    sizes: int,
    across: Array,
    gpus: Array,
    goodput: Array,
    atomic: Array,
    accumulations: Array,
) -> None:
    """Best goodput, its samples per GPU and accumulations for each entry of `gpus`, over `sizes` batches.

    `speed`: f64[7] as `fleet/adaptdl/goodput.py` orders it. `limits`: initial batch, largest, smallest and largest per
    GPU. Batches in geometric steps that round to the same split are tried once. Of equals the first is taken.
    An iteration takes at least the longer of computing and network: a batch that is no better even then is not tried.
    """
    initial, largest, smallest_local, largest_local = limits
    c = speed[6]
    keeps = largest_local <= MOST_KEPT
    power = np.full(int(largest_local) + 1 if keeps else 1, -1.0)
    for entry in range(len(gpus)):
        n = float(gpus[entry])
        beyond = max(n - 2.0, 1e-8)
        network = FLOOR
        if across[entry]:
            network = speed[2] + speed[3] * beyond
        elif n > 1:
            network = speed[4] + speed[5] * beyond
        network_c = network**c
        least = max(initial, smallest_local * n)
        step = np.log(largest / least) / (sizes - 1)
        top, top_atomic, top_accumulations = -1.0, 0.0, 0.0
        last_atomic, last_accumulations = -1.0, -1.0
        for at in range(sizes):
            local = (largest if at == sizes - 1 else least * np.exp(step * at)) / n
            times = np.ceil(local / largest_local - ROUNDING) - 1
            if n == 1 and local > initial + ROUNDING:
                times = max(times, 1.0)
            samples = np.ceil(local / (times + 1) - ROUNDING)
            if samples == last_atomic and times == last_accumulations:
                continue
            last_atomic, last_accumulations = samples, times
            found = 0.0
            if smallest_local <= samples <= largest_local:
                compute = speed[0] + speed[1] * samples
                batch = n * samples * (times + 1)
                scale = batch / initial
                worth = (var + sqr) / (var / scale + sqr) / scale
                if batch / (times * compute + max(compute, network)) * worth * SURELY <= top:
                    continue
                compute_c = power[int(samples)] if keeps else -1.0
                if compute_c < 0:
                    compute_c = compute**c
                    if keeps:
                        power[int(samples)] = compute_c
                iteration = times * compute + (compute_c + network_c) ** (1 / c)
                found = batch / iteration * worth
            if found > top:
                top, top_atomic, top_accumulations = found, samples, times
        goodput[entry], atomic[entry], accumulations[entry] = top, top_atomic, top_accumulations
