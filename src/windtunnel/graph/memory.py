"""Memory of one rank from the lifetimes of its tensors: a running total of what is allocated, and its peak.

    total(t) = base + sum of the deltas at times <= t

At equal times frees come before allocations: an op that ends at t returns its buffers before the op that starts at t
takes its own. Otherwise the given order holds. The total between two events is that after the earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class MemoryProfile:
    """Allocated bytes over time and at the peak. Events are in time order, m of them."""

    time_ns: NDArray[np.int64]  # [m]
    total_bytes: NDArray[np.int64]  # [m] after the event, base included
    peak_bytes: int
    peak_time_ns: int  # 0 if the base is never exceeded
    peak_by_category_bytes: NDArray[np.int64]  # [categories], sums to peak_bytes


def peak(
    time_ns: NDArray[np.int64],
    delta_bytes: NDArray[np.int64],
    category: NDArray[np.integer],
    base_bytes: NDArray[np.int64],
) -> MemoryProfile:
    """The running total of one program and its first peak.

    `time_ns`, `delta_bytes` (+ allocates, - frees), `category`: [m] events in any order. `base_bytes`: [categories]
    held for the whole step. O(m log m).
    """
    assert len(time_ns) == len(delta_bytes) == len(category)
    order = np.lexsort((delta_bytes > 0, time_ns))  # stable
    times, deltas = time_ns[order].astype(np.int64), delta_bytes[order].astype(np.int64)
    base = base_bytes.astype(np.int64)
    total = int(base.sum()) + np.cumsum(deltas)
    by_category = base.copy()
    at = int(np.argmax(total)) if len(total) else -1
    if at < 0 or total[at] <= base.sum():
        return MemoryProfile(times, total, int(base.sum()), 0, by_category)
    np.add.at(by_category, category[order][: at + 1], deltas[: at + 1])
    return MemoryProfile(times, total, int(total[at]), int(times[at]), by_category)
