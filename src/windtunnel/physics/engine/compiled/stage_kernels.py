"""Compiled inner loops of the dynamic programme that cuts layers into stages (`planning/alpa/stages.py`).

Each function's `.py_func` is the same code uncompiled.
"""

from __future__ import annotations

import numpy as np

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array


@njit(cache=True)
def fewest_devices(times: Array, widths: Array, longest: float, none: int) -> int:
    """Devices that all layers need at least where no stage takes longer than `longest`; `none` where they cannot."""
    layers, submeshes, configurations = times.shape[0], times.shape[2], times.shape[3]
    need = np.full(layers + 1, none, np.int64)
    need[layers] = 0
    for first in range(layers - 1, -1, -1):
        for last in range(first, layers):
            if need[last + 1] >= none:
                continue
            for submesh in range(submeshes):
                total = need[last + 1] + widths[submesh]
                if total >= need[first]:
                    continue
                for configuration in range(configurations):
                    if times[first, last, submesh, configuration] <= longest:
                        need[first] = total
                        break
    fewest: int = need[0]
    return fewest


@njit(cache=True)
def least_sums(
    times: Array, limits: Array, widths: Array, devices: int, longest: float, least: Array, chosen: Array
) -> None:
    """Fill `least` and `chosen`, [stages, first layer, devices]: the least sum of stage times, and the stage it takes.

    `times`, `limits`: [layers, layers, submeshes, configurations]; a stage may have so many behind it. One plane of
    `least` more than one: by the number of stages; else regardless of it (`limits` is not looked at then).
    """
    layers, submeshes, configurations = times.shape[0], times.shape[2], times.shape[3]
    planes = least.shape[0]
    least[:] = np.inf
    least[0, layers, 0] = 0.0
    for plane in range(min(1, planes - 1), planes):
        before = max(0, plane - 1)
        some = False
        for first in range(layers - 1, -1, -1):
            for last in range(first, layers):
                for submesh in range(submeshes):
                    width = widths[submesh]
                    if width > devices:
                        continue
                    quickest, which = np.inf, -1
                    for configuration in range(configurations):
                        time = times[first, last, submesh, configuration]
                        if planes > 1 and limits[first, last, submesh, configuration] < plane - 1:
                            continue
                        if time <= longest and time < quickest:
                            quickest, which = time, configuration
                    if which < 0:
                        continue
                    code = (last * submeshes + submesh) * configurations + which
                    for left in range(devices + 1 - width):
                        total = quickest + least[before, last + 1, left]
                        if total < least[plane, first, left + width]:
                            least[plane, first, left + width] = total
                            chosen[plane, first, left + width] = code
                            some = True
        if planes > 1 and not some:
            return
