"""Compiled model of a job's goodput: the fit of its step-time curve, and the batch that is best by it.

The curve and its error are those of `fleet/measured/chosen.py`: seven bounded parameters, of which those with equal
bounds stay where they are. The fit goes by Levenberg and Marquardt's steps over those that are free to move, from the
fit before where there was one. Each function's `.py_func` is the same code uncompiled.
"""

from __future__ import annotations

import numpy as np

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array

ITERATIONS = 200
SIZES = 50  # batch sizes tried, in geometric steps
GRADIENT, DECREASE = 1e-5, 1e-6  # largest slope, and relative decrease twice in a row, at which the search ends
SMALLEST = 1e-3  # error, in logarithms, of which such a decrease is always too small to go on
DAMPED, MOST_DAMPED, TINY = 1e-6, 1e12, 1e-30
SMOOTH = 1e-8  # square of the error below which it is round: at nought the root has an edge where searches stick
LONGEST = 1.0  # step of any parameter: beyond a factor of e, times that vanish have no slope left to come back on
FLOOR = 1e-8
SURELY_SEEN = 1e-5  # seconds: below it a fitted time has hardly any slope
START = np.array([1e-1, 1e-2] * 3 + [1.0 + 1e-3])
LOG_FLOOR = np.log(FLOOR)
NEGLIGIBLE = 37.0  # e to the minus this is lost beside 1
ROUNDING = 1e-8  # under which a ceiling ignores the rest
SURELY = 1 + 1e-12  # more than what rounding does to a goodput


@njit(cache=True)
def loss(u: Array, case: Array, seen: Array, slope: Array, bend: Array) -> float:
    """Error of the curve; its gradient goes into `slope` (f64[7]), its Hessian, as of linear residuals, into `bend`.

    `u`: logarithms of the six times, then the exponent: times differ by orders of magnitude. `case`: 0 one GPU, 2
    across nodes, 4 inside one. `seen`: f64[n, 4], GPUs beyond two, samples, log of computing, log of the step.
    """
    n = len(seen)
    x = np.exp(u)
    c = u[6]
    squares, compute_squares = 0.0, 0.0
    compute_slope, compute_bend = np.zeros(2), np.zeros((2, 2))
    slope[:] = 0.0
    bend[:] = 0.0
    which, by = np.empty(5, np.int64), np.empty(5)
    which[0], which[1], which[2] = 0, 1, 6
    for at in range(n):
        beyond, local, kind = seen[at, 0], seen[at, 1], case[at]
        compute = x[0] + x[1] * local
        network = FLOOR if kind == 0 else x[kind] + x[kind + 1] * beyond
        log_compute, log_network = np.log(compute), LOG_FLOOR if kind == 0 else np.log(network)
        behind = c * (log_network - log_compute)  # of the network, in powers of e
        ratio = np.exp(-abs(behind)) if abs(behind) < NEGLIGIBLE else 0.0
        total = max(log_compute, log_network) + (np.log1p(ratio) / c if ratio > 0 else 0.0)
        share = (1.0 if behind < 0 else ratio) / (1.0 + ratio)  # of computing, in the sum of powers
        off, compute_off = total - seen[at, 3], log_compute - seen[at, 2]
        squares += off * off
        compute_squares += compute_off * compute_off
        by[0], by[1] = x[0] / compute, x[1] * local / compute
        for row in range(2):
            compute_slope[row] += compute_off * by[row]
            for column in range(row, 2):
                compute_bend[row, column] += by[row] * by[column]
        by[0], by[1] = share * by[0], share * by[1]
        by[2] = (share * log_compute + (1.0 - share) * log_network - total) / c
        count = 3
        if kind > 0:
            count, which[3], which[4] = 5, kind, kind + 1
            by[3] = (1.0 - share) * x[kind] / network
            by[4] = (1.0 - share) * x[kind + 1] * beyond / network
        for row in range(count):
            slope[which[row]] += off * by[row]
            for column in range(row, count):
                bend[which[row], which[column]] += by[row] * by[column]
    rms, compute_rms = np.sqrt(squares / n + SMOOTH), np.sqrt(compute_squares / n + SMOOTH)
    for row in range(7):  # of the root of the mean square
        slope[row] /= n * rms
        for column in range(row):  # filled on either side, each pair on one of them
            bend[column, row] += bend[row, column]
    for row in range(7):
        for column in range(row, 7):
            bend[row, column] = bend[row, column] / (n * rms) - slope[row] * slope[column] / rms
    compute_slope /= n * compute_rms
    for row in range(2):
        for column in range(row, 2):
            bend[row, column] += compute_bend[row, column] / (n * compute_rms)
            bend[row, column] -= compute_slope[row] * compute_slope[column] / compute_rms
        slope[row] += compute_slope[row]
    value: float = rms + compute_rms + 1e-3 * (c - 1) ** 2
    slope[6] += 2e-3 * (c - 1)
    bend[6, 6] += 2e-3
    for at in (2, 4):
        squared = 1e-2 * (x[at + 1] / x[at]) ** 2
        value += squared
        slope[at] -= 2 * squared
        slope[at + 1] += 2 * squared
        bend[at, at] += 4 * squared
        bend[at + 1, at + 1] += 4 * squared
        bend[at, at + 1] -= 4 * squared
    return value


@njit(cache=True)
def _solve(bend: Array, slope: Array, free: Array, damping: float, factor: Array, step: Array) -> None:
    """The damped Newton step over the parameters that are free, by Cholesky's factor; 0 for the others."""
    n = len(slope)
    for row in range(n):
        step[row] = 0.0
        if not free[row]:
            continue
        for column in range(row + 1):
            if not free[column]:
                continue
            value = bend[column, row]
            if row == column:
                value += damping * (value + DAMPED)
            for at in range(column):
                if free[at]:
                    value -= factor[row, at] * factor[column, at]
            factor[row, column] = np.sqrt(max(value, TINY)) if row == column else value / factor[column, column]
        step[row] = -slope[row]
        for at in range(row):
            if free[at]:
                step[row] -= factor[row, at] * step[at]
        step[row] /= factor[row, row]
    for row in range(n - 1, -1, -1):
        if free[row]:
            for at in range(row + 1, n):
                if free[at]:
                    step[row] -= factor[at, row] * step[at]
            step[row] /= factor[row, row]


@njit(cache=True)
def minimise(u: Array, low: Array, high: Array, case: Array, seen: Array) -> float:
    """Improve `u` in place between its bounds, by Levenberg and Marquardt's steps; returns the error reached."""
    n = len(u)
    slope, bend, slope_there, bend_there = np.empty(n), np.empty((n, n)), np.empty(n), np.empty((n, n))
    free, step, there, factor = np.empty(n, np.bool_), np.empty(n), np.empty(n), np.empty((n, n))
    value = loss(u, case, seen, slope, bend)
    damping, small = 1e-2, 0
    for _ in range(ITERATIONS):
        largest = 0.0
        for at in range(n):
            stuck = (u[at] <= low[at] and slope[at] >= 0) or (u[at] >= high[at] and slope[at] <= 0)
            free[at] = not stuck and low[at] < high[at]
            largest = max(largest, abs(slope[at]) if free[at] else 0.0)
        if largest < GRADIENT or damping > MOST_DAMPED:
            break
        _solve(bend, slope, free, damping, factor, step)
        for at in range(n):
            there[at] = min(max(u[at] + min(max(step[at], -LONGEST), LONGEST), low[at]), high[at])
        value_there = loss(there, case, seen, slope_there, bend_there)
        if not value_there < value:
            damping *= 8
            continue
        damping = max(damping / 6, 1e-9)
        small = small + 1 if value - value_there <= DECREASE * max(value, SMALLEST) else 0
        value = value_there
        for row in range(n):
            u[row], slope[row] = there[row], slope_there[row]
            for column in range(n):
                bend[row, column] = bend_there[row, column]
        if small == 2:
            break
    return value


@njit(cache=True)
def _bounds(array: Array, start: Array, low: Array, high: Array) -> None:
    """Where the search for a curve begins, and its bounds: what was not seen stays at its floor."""
    n = len(array)
    sizes, across, inside, wide = False, False, False, False
    compute = 0.0
    for at in range(n):
        sizes |= array[at, 2] != array[0, 2]
        across |= array[at, 0] > 1
        inside |= array[at, 0] == 1 and array[at, 1] > 1
        wide |= array[at, 1] > 2
        compute += (array[at, 3] - array[at, 4]) / n
    for at in range(7):
        start[at] = START[at]
    low[:6], low[6] = FLOOR, 1.0
    high[:6], high[6] = np.inf, 10.0
    if not sizes:
        start[0] = low[0] = high[0] = compute / 2
    for at in range(2, 6):
        if not (across if at < 4 else inside) or (at % 2 and not wide):
            start[at] = low[at] = high[at] = FLOOR


@njit(cache=True)
def fit(seen: Array, speed: Array, has_fit: bool) -> None:
    """Fit `speed` (f64[7]) to steps seen: f64[n, 5] of nodes, GPUs, samples per GPU, step s and synchronisation s.

    `has_fit`: `speed` holds the fit to all but the last of them. What that had to fit too, and did not find to be
    almost nothing, begins there.
    """
    n = len(seen)
    start, low, high = np.empty(7), np.empty(7), np.empty(7)
    if has_fit:
        before, narrow, wide = np.empty(7), np.empty(7), np.empty(7)
        _bounds(seen[: n - 1], before, narrow, wide)
        _bounds(seen, start, low, high)
        for at in range(7):
            if narrow[at] < wide[at] and low[at] < high[at] and speed[at] > SURELY_SEEN:
                start[at] = speed[at]
    else:
        _bounds(seen, start, low, high)
    case, logs = np.empty(n, np.int64), np.empty((n, 4))
    across = False
    for at in range(n):
        across |= seen[at, 0] > 1
        case[at] = 2 if seen[at, 0] > 1 else 4 if seen[at, 1] > 1 else 0
        logs[at, 0], logs[at, 1] = max(seen[at, 1] - 2.0, 1e-8), seen[at, 2]
        logs[at, 2], logs[at, 3] = np.log(seen[at, 3] - seen[at, 4]), np.log(seen[at, 3])
    for at in range(6):
        start[at], low[at], high[at] = np.log(start[at]), np.log(low[at]), np.log(high[at])
    minimise(start, low, high, case, logs)
    for at in range(7):
        speed[at] = np.exp(start[at]) if at < 6 else start[at]
    if not across:
        speed[2], speed[3] = max(speed[2], 1.1 * speed[4]), max(speed[3], 1.1 * speed[5])


@njit(cache=True)
def splits(limits: Array, gpus: int, out: Array) -> int:
    """Fill f64[SIZES, 3] with how batches of geometric sizes are split: samples per GPU, accumulations, batch.

    Sizes that round to the same split stand once; the batch is 0 where it does not fit. Returns how many there are.
    `limits`: initial batch, largest, smallest and largest per GPU.
    """
    initial, largest, smallest_local, largest_local = limits
    n = float(gpus)
    least = max(initial, smallest_local * n)
    step = np.log(largest / least) / (SIZES - 1)
    count = 0
    for at in range(SIZES):
        local = (largest if at == SIZES - 1 else least * np.exp(step * at)) / n
        times = np.ceil(local / largest_local - ROUNDING) - 1
        if gpus == 1 and local > initial + ROUNDING:
            times = max(times, 1.0)
        samples = np.ceil(local / (times + 1) - ROUNDING)
        if count and samples == out[count - 1, 0] and times == out[count - 1, 1]:
            continue
        out[count, 0], out[count, 1] = samples, times
        out[count, 2] = n * samples * (times + 1) if smallest_local <= samples <= largest_local else 0.0
        count += 1
    return count


@njit(cache=True)
def best(
    speed: Array, sqr: float, var: float, initial: float, across: bool, gpus: int, rows: Array, first: int
) -> tuple[float, int]:
    """Goodput of the best of the splits in `rows` on so many GPUs, and which it is; of equals the first.

    The time of computing and network together is bounded from below, by the longer of them and by their sum times
    2^(1/c - 1) (means of powers): a split that is no better even then is not tried. `first` is tried first, so that few
    others are.
    """
    c = speed[6]
    beyond = max(gpus - 2.0, 1e-8)
    network = FLOOR
    if across:
        network = speed[2] + speed[3] * beyond
    elif gpus > 1:
        network = speed[4] + speed[5] * beyond
    network_c, flat = network**c, 2.0 ** (1.0 / c - 1.0) * (1 - 1e-12)
    worth, loss_per = var + sqr, sqr / initial
    top, top_at = -1.0, len(rows)
    for turn in range(-1, len(rows)):
        at = min(first, len(rows) - 1) if turn < 0 else turn
        samples, times, batch = rows[at]
        compute = speed[0] + speed[1] * samples
        least = times * compute + max(compute, network, flat * (compute + network))
        if batch * worth * SURELY < top * least * (var + loss_per * batch):
            continue
        iteration = times * compute + (compute**c + network_c) ** (1 / c)
        goodput = batch / iteration * (worth / (var + loss_per * batch)) if batch > 0 else 0.0
        if goodput > top or (goodput == top and at < top_at):
            top, top_at = goodput, at
    return top, top_at
