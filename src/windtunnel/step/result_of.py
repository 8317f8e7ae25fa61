"""A replayed step as a Result, however the step was made."""

from __future__ import annotations

from collections.abc import Mapping

STRAGGLING = "waiting for the slowest rank"
DISTURBED = "waiting for disturbed ranks"
PLAIN = ("gemm", "attention", "memory-bound", "optimizer")  # the work itself; anything else is overhead of the layout
Z95 = 1.645  # standard deviations from the mean to the 95th percentile
SLOWER = 1.15  # the upper half of the band over the lower


def sum_to(parts: Mapping[str, int], total: int) -> dict[str, int]:
    """Scale integer parts so that they sum exactly to `total` (largest remainder; ties by name)."""
    whole = sum(parts.values())
    if whole == 0:
        return {}
    scaled = {name: divmod(value * total, whole) for name, value in parts.items()}
    result = {name: quotient for name, (quotient, _) in scaled.items()}
    left = total - sum(result.values())
    for name in sorted(scaled, key=lambda name: (-scaled[name][1], name))[:left]:
        result[name] += 1
    return result
