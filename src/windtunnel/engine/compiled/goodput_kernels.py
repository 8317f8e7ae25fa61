"""Compiled error of a step-time curve with seven parameters, with its gradient, and the best batch on such a curve.

The formulas are those of `fleet/adaptdl/goodput.py`. Each function's `.py_func` is the same code uncompiled.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
FLOOR = 1e-8


@njit(cache=True, error_model="numpy")
def loss(x: Array, case: Array, beyond: Array, local: Array, log_compute: Array, log_step: Array, out: Array) -> float:
    """Error of the curve; its gradient goes into `out` (f64[7]). `case`: 0 one GPU, 2 across nodes, 4 inside one.

    At an error of nought the root has no slope, and the gradient is NaN.
    """
    n = len(local)
    c = x[6]
    squares_compute, squares_step = 0.0, 0.0
    for at in range(n):
        compute = x[0] + x[1] * local[at]
        network = FLOOR if case[at] == 0 else x[case[at]] + x[case[at] + 1] * beyond[at]
        squares_compute += (np.log(compute) - log_compute[at]) ** 2
        squares_step += (np.log(compute**c + network**c) / c - log_step[at]) ** 2
    rms_compute, rms_step = np.sqrt(squares_compute / n), np.sqrt(squares_step / n)
    out[:] = 0.0
    for at in range(n):
        compute = x[0] + x[1] * local[at]
        network = FLOOR if case[at] == 0 else x[case[at]] + x[case[at] + 1] * beyond[at]
        first, second = compute**c, network**c
        total = first + second
        error_compute = np.log(compute) - log_compute[at]
        error_step = np.log(total) / c - log_step[at]
        weight_compute = error_compute / (n * rms_compute)
        weight_step = error_step / (n * rms_step)
        by_compute = weight_compute / compute + weight_step * first / (compute * total)
        out[0] += by_compute
        out[1] += by_compute * local[at]
        if case[at] > 0:
            by_network = weight_step * second / (network * total)
            out[case[at]] += by_network
            out[case[at] + 1] += by_network * beyond[at]
        mixed = (first * np.log(compute) + second * np.log(network)) / total
        out[6] += weight_step * (mixed - np.log(total) / c) / c
    value: float = rms_compute + rms_step + 1e-3 * (c - 1) ** 2
    out[6] += 2e-3 * (c - 1)
    for at in (2, 4):
        ratio = x[at + 1] / x[at]
        value += 1e-2 * ratio**2
        out[at] -= 2e-2 * ratio**2 / x[at]
        out[at + 1] += 2e-2 * ratio / x[at]
    return value
